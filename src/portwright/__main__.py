"""`python -m portwright` is the command `portwright`."""

from portwright.cli import main

if __name__ == "__main__":
    main()
