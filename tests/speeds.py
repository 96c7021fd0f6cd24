"""Which tests are slow, as `slow.txt` lists them. Marking and leaving out is in `conftest`."""

from pathlib import Path

HERE = Path(__file__).parent
SLOW = tuple(
    line for line in (HERE / "slow.txt").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
)
"""What begins the id of a slow test, below this folder."""


def is_slow(name: str) -> bool:
    """Whether a folder, a file or a test, by its path from here, is left out by `make check`.

    A parametrized test goes by its name without the parameters.
    """
    name = name.partition("[")[0]
    return any(
        name == entry or name.startswith(entry if entry.endswith("/") else f"{entry}::") for entry in SLOW
    )
