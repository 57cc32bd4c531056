"""An acrostic: each sentence starts with a letter of a name.

python examples/acrostic.py [NAME]
"""

import sys

import pmlm


def template(name: str, tokens: int = 8) -> str:
    return " ".join(f"[MASK:{tokens}|starts={letter}|ends=.]" for letter in name.upper())


def main(name: str = "TOM") -> None:
    filled = pmlm.load().fill(template(name), order="random", seed=2, top_p=0.9)
    print(filled.text.replace(". ", ".\n"))


if __name__ == "__main__":
    main(*sys.argv[1:2])
