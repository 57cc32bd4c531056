"""An acrostic: each line starts with a letter of a name.

python examples/acrostic.py [NAME]
"""

import sys

import pmlm


def main(name: str = "TOM") -> None:
    template = pmlm.acrostic(name, size="8")
    print(pmlm.load().fill(template, order="random", seed=2, top_p=0.9).text)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except pmlm.PmlmError as error:
        sys.exit(str(error))
