"""Cloze answering: candidates for the blanks of a text, ranked by their exact joint probability."""

import pmlm

QUESTION = "Tom is a ___ and Jerry is a ___. They are good friends."
CANDIDATES = [["cat", "mouse"], ["mouse", "cat"], ["river", "cake"], ["cat", "the"]]


def main() -> None:
    lm = pmlm.load()
    print(QUESTION)
    for ranked in lm.rank(QUESTION, CANDIDATES, order="random", seed=0):
        print(f"{ranked.share:6.1%}  {ranked.score.nll:6.2f} nats  {' / '.join(ranked.fillings)}")


if __name__ == "__main__":
    main()
