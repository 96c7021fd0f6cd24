"""Lets `python -m phalanx` do what the `phalanx` command does; the commands are in `phalanx.cli`."""

from phalanx.cli.app import main

if __name__ == "__main__":
    main()
