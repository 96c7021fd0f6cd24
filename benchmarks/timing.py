"""How a number is measured: repeats in alternating order, their values, and the median.

Each case is prepared and warmed up first. Then the cases of a group are measured in turn (A B C, C B A, ...),
so that a slower phase of the machine affects all of them. The published number is the median of the repeats.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.workers.protocol import measure

DEFAULT_REPEATS = 5
"""Number of repeats of each case."""
DEFAULT_SECONDS = 1.0
"""Approximate duration of a repeat. Short workloads are called several times."""
_TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


class Repeat(NamedTuple):
    """Work done in one repeat, and the time it took."""

    work: float
    seconds: float
    cpu_seconds: float

    def value(self, unit: str, cpu: bool = False) -> float:
        """Return the work per second for rates such as `steps/s`, or the time per work for `s` and `ms`."""
        seconds = self.cpu_seconds if cpu else self.seconds
        if unit in _TIME_UNITS:
            return seconds / self.work * _TIME_UNITS[unit]
        # The resolution of the CPU clock is 1 us on Linux; a repeat that short has no meaningful rate.
        return self.work / max(seconds, 1e-9)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Result of one case.

    Attributes:
        id: Name of the case, unique within the suite.
        system: Library that was measured.
        unit: Unit of the values, such as `steps/s`, `s`, `%` or `MRR`.
        values: One value per repeat or per seed.
        cpu_values: The same with CPU time instead of wall-clock time. Empty if nothing was timed.
        settings: Settings and facts about the case.
    """

    id: str
    system: str
    unit: str
    values: Sequence[float]
    cpu_values: Sequence[float] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_repeats(
        cls, id: str, system: str, unit: str, repeats: Sequence[Repeat], settings: Mapping[str, Any]
    ) -> "Measurement":
        """Convert the times of repeats to values of a unit."""
        values = [repeat.value(unit) for repeat in repeats]
        return cls(id, system, unit, values, [repeat.value(unit, cpu=True) for repeat in repeats], settings)

    def median(self) -> float:
        """Return the median of the values."""
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the result file."""
        return {**dataclasses.asdict(self), "median": self.median()}


class Measurable(Protocol):
    """Something that can be measured repeatedly: a workload in this process, or a worker process."""

    def measure(self) -> Repeat:
        """Measure one repeat."""
        ...


class InProcess:
    """A workload of Phalanx, measured in this process with the interface of `peers.Worker`."""

    def __init__(self, run: Callable[[], Any], work: float, seconds: float) -> None:
        self._run, self._work = run, work
        run()
        self._calls = max(1, round(seconds / measure(run, 1)[0]))

    def measure(self) -> Repeat:
        """Measure one repeat."""
        return Repeat(self._work * self._calls, *measure(self._run, self._calls))


def measure_in_turn(cases: Sequence[Measurable], repeats: int) -> list[list[Repeat]]:
    """Measure all cases in alternating order, and return the repeats of each case."""
    rounds: list[list[Repeat]] = [[] for _ in cases]
    for number in range(repeats):
        order = range(len(cases))
        for index in reversed(order) if number % 2 else order:
            rounds[index].append(cases[index].measure())
    return rounds
