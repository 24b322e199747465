"""`python -m plog` is the `plog` command."""

from plog.cli import main

main()
