"""Command lines: the options that benchmarks and comparisons share, and how their values are read.

What else a program takes is said in its own file.
"""

import argparse
import os
import pathlib
import subprocess
import sys


def options(description: str | None) -> argparse.ArgumentParser:
    """What every program takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="JSON lines only, one a measurement; no tables")
    parser.add_argument("--repeats", type=positive, default=5, help="of each measurement [5]")
    return parser


def peer_options(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """What every comparison takes whose contenders have virtual environments of their own."""
    parser = options(description)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    parser.add_argument(
        "--venv-dir", type=pathlib.Path, default=cache / "phalanx" / "peers", help="where peers are installed"
    )
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"about how long one repeat lasts [{seconds:g}]"
    )
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables to this file")
    return parser


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a positive whole number; got {text!r}")
    return int(text)


def sizes(text: str) -> tuple[int, ...]:
    """Positive whole numbers with commas between them."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"takes positive whole numbers with commas, as in 64,1024; got {text!r}"
        )
    return tuple(int(part) for part in parts)


def sizes_or_none(text: str) -> tuple[int, ...]:
    """The same, where empty stands for none."""
    return sizes(text) if text else ()


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(text.split(","))


def shape(text: str) -> tuple[int, int]:
    """Rows x columns."""
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"takes rows x columns, as in 30x30; got {text!r}")
    return int(rows), int(columns)


def run_program(name: str, *arguments: str) -> int:
    """Run another program of the folder `benchmarks`; its exit code."""
    path = pathlib.Path(__file__).resolve().parents[1] / name
    return subprocess.run([sys.executable, str(path), *arguments], check=False).returncode
