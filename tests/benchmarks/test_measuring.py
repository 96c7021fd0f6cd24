"""What all benchmarks share: targets, tables, command lines, memory."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from measuring.conditions import conditions
from measuring.memory import peak_bytes, peak_of_call, reset_peak
from measuring.options import positive, sizes, sizes_or_none
from measuring.records import VERDICT, Column, held_to, tell
from measuring.timing import at_least_one, calls_lasting

ROOT = Path(__file__).parents[2]


def test_targets_are_bounds_on_fields() -> None:
    record = {"efficiency": 0.97, "seconds": 0.2}
    assert held_to(record, {"efficiency": {"at_least": 0.97}, "seconds": {"at_most": 0.2}})["passed"]
    assert not held_to(record, {"efficiency": {"at_least": 0.98}})["passed"]
    assert not held_to(record, {"efficiency": {"at_least": 0.97}, "seconds": {"at_most": 0.1}})["passed"]
    assert held_to(record, {}) == record


def test_a_table_grows_by_a_row_for_each_record_and_ends_with_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = [Column("name", lambda record: record["name"]), VERDICT]
    records = iter([{"name": "one", "passed": True}, {"name": "two", "passed": False}])
    tell(records, False, "Title", columns, lambda told: [f"{len(told)} in all"])
    out = capsys.readouterr().out
    assert "one" in out and "pass" in out and "FAIL" in out
    assert out.splitlines()[-1] == "2 in all"


def test_conditions_name_the_libraries_and_the_machine() -> None:
    found = conditions("jax", "numpy")
    assert list(found)[:3] == ["backend", "jax", "numpy"]
    assert found["numpy"] == np.__version__
    assert {"load_average", "nproc", "cpu", "python", "phalanx"} <= set(found)


def test_numbers_of_a_command_line_are_positive() -> None:
    assert (positive("3"), sizes("1,64"), sizes_or_none("")) == (3, (1, 64), ())
    for read, text in ((positive, "0"), (positive, "x"), (sizes, ""), (sizes, ","), (sizes_or_none, "1,-2")):
        with pytest.raises(argparse.ArgumentTypeError, match="positive whole number"):
            read(text)


def test_counts_below_one_are_refused_in_words() -> None:
    at_least_one(repeats=1, steps=None)
    with pytest.raises(ValueError, match=r"^repeats must be at least 1, got 0$"):
        at_least_one(steps=3, repeats=0)


def test_a_repeat_has_at_least_one_call() -> None:
    assert calls_lasting(0.0, lambda: None) == 1


def test_memory_is_what_a_call_holds_at_its_peak() -> None:
    assert 8 <= peak_of_call(lambda: np.ones(2**20).sum()) < 9


def test_the_peak_of_memory_starts_anew() -> None:
    reset_peak()
    block = np.ones(40_000_000, np.uint8)
    high = peak_bytes()
    del block
    reset_peak()
    assert high - peak_bytes() > 20_000_000


def test_nothing_that_only_measures_is_in_the_package() -> None:
    package = ROOT / "src" / "phalanx"
    assert [path for path in package.rglob("*.py") if "bench" in path.stem] == []
    targets = [path for path in package.rglob("*.py") if '"at_least"' in path.read_text(encoding="utf-8")]
    assert targets == []
