"""The paper's Figure 1: the words of a sentence, scattered over a canvas, and a text written around them.

python examples/scattered_words.py [--length 60] [--seed 0] [--model DIR]
"""

import argparse

import pmlm

WORDS = "The quick brown fox jumps over the lazy dog"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    options = parser.parse_args(arguments)
    lm = pmlm.load(options.model)
    template = lm.scatter(WORDS, options.length, seed=options.seed)
    filled = lm.fill(template, order="random", seed=options.seed, top_p=0.9)
    print(f"{template}\n")
    written = set(filled.order)
    print("".join(token if i in written else token.upper() for i, token in enumerate(filled.tokens)).strip())


if __name__ == "__main__":
    main()
