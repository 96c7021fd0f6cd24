"""Entry point of `python -m phalanx`, which is the same as the command `phalanx`."""

from phalanx.cli.app import main

if __name__ == "__main__":
    main()
