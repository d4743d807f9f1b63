"""`python -m workbench`: the same as the `workbench` script."""

from workbench.cli.main import main

if __name__ == "__main__":
    main()
