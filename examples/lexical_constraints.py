"""Lexical constraints: words that must appear where the model likes, words that must not, and a number of words."""

import pmlm


def main() -> None:
    lm = pmlm.load()
    filled = lm.fill(
        "Once upon a time [MASK:24]", must=["kite", "river"], ban=["cat", "dog"], num_words=25, seed=3, top_p=0.9
    )
    print(filled.text)
    print(filled.template)


if __name__ == "__main__":
    main()
