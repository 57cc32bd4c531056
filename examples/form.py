"""Completing a form and a verse pattern: every blank says what may stand in it."""

import pmlm

FORM = "Name: [WORD|in=Anna,Ben,Clara,Max]. Animal: [WORD|in=cat,dog,fox,owl]. Feeling: [WORD|in=happy,sad,proud]."
VERSE = "The [WORD|starts=l] [WORD|in=cat,mouse,fox] ran over the [WORD|ends=ll], and the [WORD|starts=q] [WORD] slept."


def main() -> None:
    lm = pmlm.load()
    for template in (FORM, VERSE):
        for filled in lm.fill_batch([template] * 3, seeds=range(3), order="confidence"):
            print(filled.text)


if __name__ == "__main__":
    main()
