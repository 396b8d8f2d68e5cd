"""`python -m portwright.cli`."""

from portwright.cli import main

main()
