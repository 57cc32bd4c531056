"""The paper's table of states: a sentence of eight tokens, written in the order 3 -> 7 -> 1 -> 2 -> 4 -> 6 -> 5 -> 8.

    python examples/states.py [--seed 0] [--model DIR]

Each step is shown as it comes (`lm.stream`).
"""

import argparse

import pmlm

ORDER = [3, 7, 1, 2, 4, 6, 5, 8]  # the paper counts from 1


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    options = parser.parse_args(arguments)
    lm = pmlm.load(options.model)
    stream = lm.stream("[MASK:8]", order=[i - 1 for i in ORDER], seed=options.seed)
    print(row(0, "n/a", stream.draft))
    for step in stream:
        print(row(step.number, step.position + 1, step.canvas))
    print(f"Output: {stream.result.text}")


def row(step: int, index: int | str, canvas) -> str:
    return f"{step:>2}  {index:>3}  " + " ".join(f"{'_' if token is None else token.strip():<10}" for token in canvas)


if __name__ == "__main__":
    main()
