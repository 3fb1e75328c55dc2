"""`python -m longspan` is the command line."""

from longspan.cli import main

main()
