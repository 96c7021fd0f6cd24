"""The group `phalanx data`: its commands, and help without heavy imports."""

import subprocess
import sys

import pytest

from phalanx.cli.output import format_fields, format_table

COMMANDS = {
    "lengths": ("build", "stats"),
    "plan": ("build", "info", "verify", "shard"),
    "analyze": ("report", "histogram", "suggest"),
}
ALIASES = ("batchplan build", "batchplan info", "batching analyze", "batching suggest", "batch generate")
"""Hidden commands under the names of chuk-lazarus."""
HEAVY = ("jax", "numpy", "pyarrow", "datasets", "tokenizers", "drawsvg", "phalanx.data")


@pytest.mark.parametrize("group", COMMANDS)
def test_each_group_lists_its_commands(phalanx, group: str) -> None:
    result = phalanx("data", group, "--help")
    assert result.code == 0
    for name in COMMANDS[group]:
        assert name in result.out


def test_help_imports_nothing_heavy() -> None:
    lines = [["data", group, name, "--help"] for group, names in COMMANDS.items() for name in names]
    lines += [["data", "pack", "--help"], ["data", "export", "--help"]]
    lines += [["data", *alias.split(), "--help"] for alias in ALIASES]
    program = (
        "import sys\n"
        "from phalanx.cli.app import main\n"
        f"for line in {lines!r}:\n"
        "    sys.argv = ['phalanx', *line]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, line\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_table_aligns_numbers_right_and_text_left() -> None:
    assert format_table(["NAME", "SAMPLES", "FULL"], [["a", 12000, 0.5], ["bb", 7, 1.0]]).splitlines() == [
        "NAME  SAMPLES    FULL",
        "a      12,000  0.5000",
        "bb          7  1.0000",
    ]


def test_long_values_are_wrapped_at_80_columns() -> None:
    lines = format_fields([("because", "word " * 30), ("n", 1000)]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("         word")
    assert lines[-1] == "n        1,000"
