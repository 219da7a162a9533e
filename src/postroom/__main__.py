"""`python -m postroom`: the same as the `postroom` command."""

from postroom.cli import main

if __name__ == "__main__":
    main()
