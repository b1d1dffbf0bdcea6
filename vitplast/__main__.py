"""`python -m vitplast` is the `vitplast` command."""

from vitplast.cli import main

main()
