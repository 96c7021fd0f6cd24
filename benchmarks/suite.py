"""Benchmark suites: named measurements of one topic, and the result file that they write.

A suite is one module in `speed/` or `learning/` that defines `suite`. Cases of the same group are measured in
turn by `timing.measure_in_turn`.
"""

import contextlib
import dataclasses
import datetime
import importlib
import importlib.metadata
import json
import pathlib
import pkgutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers import REPOSITORY, Peer, Worker
from benchmarks.timing import (
    DEFAULT_REPEATS,
    DEFAULT_SECONDS,
    InProcess,
    Measurable,
    Measurement,
    measure_in_turn,
)
from phalanx import __version__
from phalanx.io.atomic import atomic_write

RESULTS = REPOSITORY / "benchmarks" / "results"


@dataclasses.dataclass(frozen=True)
class Workload:
    """A compiled and warmed-up workload.

    Attributes:
        run: Performs the work once and returns when it is done.
        work: Number of steps, tokens, samples, ... that one call processes.
        info: Facts for the result file, such as the compile time.
    """

    run: Callable[[], Any]
    work: float
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Case:
    id: str
    group: str
    unit: str
    system: str
    settings: Mapping[str, Any]
    smoke_settings: Mapping[str, Any] | None
    prepare: Callable[..., Workload] | None = None
    peer: Peer | None = None
    worker: str = ""

    def settings_for(self, smoke: bool) -> dict[str, Any]:
        return {**self.settings, **(self.smoke_settings or {} if smoke else {})}


class Suite:
    """Measurements of one topic.

    Args:
        name: Name of the module, which is also the name of the result file.
        unit: Default unit of the cases.
        packages: Packages whose versions are recorded.
    """

    def __init__(self, name: str, unit: str = "steps/s", packages: Sequence[str] = ("jax", "numpy")) -> None:
        self.name, self.unit, self.packages = name, unit, packages
        self.depends_on_load = True
        self._cases: list[_Case] = []
        self._experiments: list[tuple[str, Callable[..., Iterable[Measurement]]]] = []

    def case(
        self,
        id: str,
        *,
        group: str = "",
        unit: str = "",
        system: str = "phalanx",
        smoke: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Callable[[Callable[..., Workload]], Callable[..., Workload]]:
        """Register a function that prepares a workload in this process. It can be applied several times.

        Args:
            id: Name of the case.
            group: Cases with the same group are measured in turn.
            unit: Unit, if it differs from the unit of the suite.
            system: What is measured, if it is not Phalanx, such as a simple baseline.
            smoke: Settings that replace others in a smoke test.
            settings: Keyword arguments of the function.
        """

        def register(prepare: Callable[..., Workload]) -> Callable[..., Workload]:
            self._cases.append(
                _Case(id, group or id, unit or self.unit, system, settings, smoke, prepare=prepare)
            )
            return prepare

        return register

    def peer_case(
        self,
        id: str,
        peer: Peer,
        worker: str,
        *,
        group: str,
        unit: str = "",
        system: str = "",
        **settings: Any,
    ) -> None:
        """Register a case that `benchmarks/workers/WORKER.py` measures with another library."""
        name = system or peer.name
        self._cases.append(
            _Case(id, group, unit or self.unit, name, settings, None, peer=peer, worker=worker)
        )

    def experiment(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function that returns measurements of its own, such as the result of a training run.

        The function is called with `smoke=True` or `smoke=False`.
        """

        def register(function: Callable[..., Iterable[Measurement]]) -> Callable[..., Any]:
            self._experiments.append((name, function))
            return function

        return register

    def prepare(self, id: str, smoke: bool = False) -> Workload:
        """Prepare the workload of a case that is measured in this process."""
        for case in self._cases:
            if case.id == id and case.prepare is not None:
                return case.prepare(**case.settings_for(smoke))
        raise KeyError(f"{self.name} has no case {id!r} that runs in this process")

    def ids(self) -> list[str]:
        """Return the names of all cases and experiments."""
        return [case.id for case in self._cases] + [name for name, _ in self._experiments]

    def has_experiments(self) -> bool:
        """Return whether some measurements are not cases, so that their names are known only after a run."""
        return bool(self._experiments)

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        return list(dict.fromkeys(case.group for case in self._cases))

    def run(
        self,
        *,
        only: Sequence[str] = (),
        smoke: bool = False,
        peers: bool = True,
        repeats: int = DEFAULT_REPEATS,
        seconds: float = DEFAULT_SECONDS,
    ) -> Iterator[Measurement]:
        """Measure all cases and experiments, and yield each result as soon as it is available.

        Args:
            only: Names of cases, groups or experiments. If empty, everything is measured.
            smoke: Use tiny sizes and a single short repeat.
            peers: Measure other libraries, too.
            repeats: Number of repeats of each case.
            seconds: Approximate duration of a repeat.
        """
        if smoke:
            repeats, seconds = 1, 0.01
        chosen = [
            case
            for case in self._cases
            if (peers or case.peer is None) and (not only or case.id in only or case.group in only)
        ]
        if smoke:
            # With tiny sizes, many cases are the same.
            unique: dict[str, _Case] = {}
            for case in chosen:
                key = str((case.settings_for(smoke), case.prepare, case.peer, case.worker))
                unique.setdefault(key, case)
            chosen = list(unique.values())
        for group in dict.fromkeys(case.group for case in chosen):
            yield from _measure_group(
                [case for case in chosen if case.group == group], smoke, repeats, seconds
            )
        for name, function in self._experiments:
            if not only or name in only:
                yield from function(smoke=smoke)

    def result(
        self, measurements: Sequence[Measurement], load_average: Sequence[float], other_load: float | None
    ) -> dict[str, Any]:
        """Return the content of the result file.

        Args:
            measurements: Measurements of this suite.
            load_average: Load average before the first suite of the command.
            other_load: CPU time of other processes during this suite, as a fraction of all cores.
        """
        return {
            "suite": self.name,
            "command": f"python -m benchmarks {self.name} --write",
            "commit": _git("rev-parse", "HEAD"),
            "dirty": bool(
                _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
            ),
            "version": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "load_average": [round(load, 2) for load in load_average],
            "other_load": other_load,
            "packages": {name: importlib.metadata.version(name) for name in self.packages},
            "measurements": [measurement.to_json() for measurement in measurements],
        }


def _measure_group(
    cases: Sequence[_Case], smoke: bool, repeats: int, seconds: float
) -> Iterator[Measurement]:
    with contextlib.ExitStack() as stack:
        measured: list[Measurable] = []
        settings = []
        for case in cases:
            values = case.settings_for(smoke)
            if case.peer is not None:
                worker = stack.enter_context(
                    Worker.start(case.peer, case.worker, {**values, "seconds": seconds})
                )
                worker.wait_until_ready()
                measured.append(worker)
                settings.append({**values, **worker.info})
            else:
                assert case.prepare is not None
                workload = case.prepare(**values)
                measured.append(InProcess(workload.run, workload.work, seconds))
                settings.append({**values, **workload.info})
        rounds = measure_in_turn(measured, repeats)
    for case, values, repeats_of_case in zip(cases, settings, rounds, strict=True):
        yield Measurement.from_repeats(case.id, case.system, case.unit, repeats_of_case, values)


def find_suites() -> dict[str, Suite]:
    """Import all modules in `speed/` and `learning/` and return their suites by name."""
    suites = {}
    for package in ("speed", "learning"):
        for module in pkgutil.iter_modules([str(REPOSITORY / "benchmarks" / package)]):
            suite = importlib.import_module(f"benchmarks.{package}.{module.name}").suite
            if suite.name != module.name:
                raise ValueError(
                    f"benchmarks/{package}/{module.name}.py defines a suite named {suite.name!r}"
                )
            # Training results do not depend on how busy the machine is.
            suite.depends_on_load = package == "speed"
            suites[suite.name] = suite
    return suites


def merge_results(path: pathlib.Path, result: dict[str, Any]) -> dict[str, Any]:
    """Add measurements of earlier runs that `result` does not repeat, if they come from the same commit.

    Raises:
        ValueError: The existing file was measured at another commit or on another machine.
    """
    old = json.loads(path.read_text())
    for field in ("commit", "machine", "version"):
        if old[field] != result[field]:
            raise ValueError(f"{path}: measured with another {field}; measure all cases of the suite again")
    new = {measurement["id"] for measurement in result["measurements"]}
    kept = [measurement for measurement in old["measurements"] if measurement["id"] not in new]
    # The file describes the busiest run that it contains.
    loads = [each["other_load"] for each in (old, result) if each.get("other_load") is not None]
    other_load = max(loads, default=None)
    return {**result, "other_load": other_load, "measurements": kept + result["measurements"]}


def write_result(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
