"""Entry point of `python -m phalanx`, which is the same as the `phalanx` command."""

from phalanx.cli.app import main

if __name__ == "__main__":
    main()
