"""`python -m pmlm` is `pmlm`."""

from pmlm.cli import main

main()
