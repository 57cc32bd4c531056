"""Text around given facts: sentences and names placed by the user, the rest by the model, as long as it likes."""

import pmlm

FACTS = ["Anna lost a kite near the river.", "It was raining.", "Ben found the kite."]


def main() -> None:
    lm = pmlm.load()
    template = "[MASK:4-12] " + " [MASK:4-12] ".join(FACTS) + " [MASK:8]"
    filled = lm.fill(template, order="random", seed=1, top_p=0.9)
    print(filled.text)


if __name__ == "__main__":
    main()
