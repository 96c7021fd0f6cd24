"""CPU time of other processes, computed from `/proc/stat` and the CPU time of this process."""

from collections.abc import Iterator

import pytest
from benchmarks.load import OtherLoad

from benchmarks import load


def set_times(monkeypatch: pytest.MonkeyPatch, ticks: list[tuple[int, int]], own: list[float]) -> None:
    """Replace the times at the start and at the end: busy and total ticks, and own seconds."""
    machine: Iterator[load._Ticks] = iter([load._Ticks(*each) for each in ticks])
    seconds = iter(own)
    monkeypatch.setattr(load, "_TICKS_PER_SECOND", 100)
    monkeypatch.setattr(load, "_machine_ticks", lambda: next(machine))
    monkeypatch.setattr(load, "_own_seconds", lambda: next(seconds))


@pytest.mark.parametrize(
    ("busy_ticks", "own_seconds", "expected"),
    [
        (500, 5.0, 0.0),
        (700, 5.0, 0.1),
        (2000, 0.0, 1.0),
        # The clocks differ a little.
        (499, 5.0, 0.0),
    ],
)
def test_own_time_is_subtracted(
    monkeypatch: pytest.MonkeyPatch, busy_ticks: int, own_seconds: float, expected: float
) -> None:
    set_times(monkeypatch, [(1000, 9000), (1000 + busy_ticks, 11_000)], [3.0, 3.0 + own_seconds])
    assert OtherLoad().measure() == expected


def test_the_load_is_unknown_without_proc_stat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_machine_ticks", lambda: None)
    assert OtherLoad().measure() is None


def test_the_load_of_this_machine_is_a_fraction() -> None:
    other = OtherLoad()
    sum(range(1_000_000))
    measured = other.measure()
    assert measured is None or 0 <= measured <= 1
