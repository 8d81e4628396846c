"""``python -m daskrado`` is the command line."""

from daskrado.cli.main import main

if __name__ == "__main__":
    main()
