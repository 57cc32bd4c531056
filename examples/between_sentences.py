"""The paper's Figure 5: a story between a first and a last sentence, both given.

python examples/between_sentences.py [--tokens 40] [--seed 0] [--model DIR]
"""

import argparse

import pmlm

FIRST = "Tom is a cat and Jerry is a mouse."
LAST = "Tom and Jerry become good friends in the end."


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    options = parser.parse_args(arguments)
    lm = pmlm.load(options.model)
    filled = lm.fill(f"{FIRST} [MASK:{options.tokens}] {LAST}", order="random", seed=options.seed, top_p=0.9)
    print(filled.text)


if __name__ == "__main__":
    main()
