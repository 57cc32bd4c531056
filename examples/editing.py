"""Editing: a part of a finished text is hidden and written again, then the whole is polished; likelihoods are exact."""

import pmlm

TEXT = "Tom is a cat and Jerry is a mouse. They played with the kite until it was dark."
PART = "played with the kite"


def main() -> None:
    lm = pmlm.load()
    template = TEXT.replace(PART, "[MASK:2-6]")
    for seed in range(3):
        filled = lm.fill(template, seed=seed, top_p=0.9)
        refined = lm.refine(filled, method="gibbs", passes=1, seed=seed, temperature=0.7)
        print(f"{filled.text}\n  {refined.nll_before:.1f} -> {refined.nll_after:.1f} nats: {refined.text}")


if __name__ == "__main__":
    main()
