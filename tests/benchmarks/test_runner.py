"""Timing, worker processes and result files of the benchmark runner."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import Peer, Worker, WorkerError
from benchmarks.suite import Suite, Workload, merge_results, write_result
from benchmarks.timing import InProcess, Measurement, Repeat

from benchmarks import peers

WORKER = """
import sys
from benchmarks.workers import protocol

print("libraries may print")
settings = protocol.read_settings("Count calls.")
calls = []

def run():
    calls.append(1)
    if len(calls) > settings["dies_after"]:
        sys.exit("out of memory")

protocol.serve(run, settings["work"], 0.0, version="1.0")
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a tiny worker `count`, which is run by this interpreter."""
    folder = tmp_path / "benchmarks" / "workers"
    folder.mkdir(parents=True)
    (folder / "count.py").write_text(WORKER)
    protocol = Path(peers.__file__).parent / "workers" / "protocol.py"
    (folder / "protocol.py").write_text(protocol.read_text())
    monkeypatch.setattr(Peer, "python", lambda peer: Path(sys.executable))
    return tmp_path


def start(checkout: Path, **settings: Any) -> Worker:
    settings = {"dies_after": 1000, "work": 3, **settings}
    return Worker([sys.executable, "-m", "benchmarks.workers.count", json.dumps(settings)], checkout)


def test_a_worker_measures_once_per_request(workers: Path) -> None:
    with start(workers) as worker:
        worker.wait_until_ready()
        repeats = [worker.measure() for _ in range(2)]
    assert worker.info == {"version": "1.0"}
    assert [repeat.work for repeat in repeats] == [3, 3]
    assert all(repeat.seconds > 0 for repeat in repeats)


def test_a_worker_that_dies_is_reported_with_its_output(workers: Path) -> None:
    with start(workers, dies_after=2) as worker:
        worker.wait_until_ready()
        with pytest.raises(WorkerError, match=r"(?s)ended with code 1 .* instead of .*out of memory"):
            worker.measure()


def test_a_worker_that_does_not_answer_is_killed(workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TIMEOUT_SECONDS", 0.2)
    with (
        Worker([sys.executable, "-c", "import time; time.sleep(60)"], workers) as worker,
        pytest.raises(WorkerError, match=r"code -9 \(-9: no answer within 0.2 s\)"),
    ):
        worker.wait_until_ready()


def test_workers_get_additional_environment_variables(workers: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['MESSAGE'])"]
    variables = {"MESSAGE": '{"event": "ready", "info": {"devices": 2}}'}
    with Worker(command, workers, environment_variables=variables) as worker:
        worker.wait_until_ready()
    assert worker.info == {"devices": 2}


def test_cases_of_a_group_are_measured_in_turn() -> None:
    suite, calls = Suite("example", packages=()), []

    def prepare(name: str) -> Workload:
        return Workload(lambda: calls.append(name), 1, {"fact": 1})

    for name in ("a", "b"):
        suite.case(name, group="both", name=name)(prepare)
    suite.case("c", system="baseline", smoke={"name": "tiny"}, name="c")(prepare)
    measurements = list(suite.run(only=["both"], repeats=2, seconds=0.0))
    # Two calls per case for warm-up, then A B, B A.
    assert calls == ["a", "a", "b", "b", "a", "b", "b", "a"]
    assert [measurement.id for measurement in measurements] == ["a", "b"]
    assert measurements[0].settings == {"name": "a", "fact": 1}
    calls.clear()
    [tiny] = suite.run(only=["c"], smoke=True)
    assert (tiny.system, tiny.settings["name"], set(calls)) == ("baseline", "tiny", {"tiny"})


def test_experiments_yield_their_own_measurements() -> None:
    suite = Suite("example", packages=())

    @suite.experiment("accuracy")
    def accuracy(smoke: bool) -> list[Measurement]:
        return [Measurement("accuracy", "phalanx", "%", [50.0 if smoke else 90.0])]

    assert [measurement.values for measurement in suite.run(smoke=True)] == [[50.0]]
    assert list(suite.run(only=["other"])) == []


def test_values_are_rates_or_times() -> None:
    repeat = Repeat(work=10, seconds=2.0, cpu_seconds=4.0)
    values = [repeat.value("steps/s"), repeat.value("steps/s", cpu=True), repeat.value("ms")]
    assert values == [5.0, 2.5, 200.0]


def test_short_workloads_are_repeated_to_fill_the_time() -> None:
    calls: list[int] = []
    measured = InProcess(lambda: calls.append(1), 2, seconds=0.05)
    count = len(calls)
    repeat = measured.measure()
    assert repeat.work == 2 * (len(calls) - count) > 2


def result(**changes: Any) -> dict[str, Any]:
    measurements = [{"id": "a", "median": 1.0}]
    return {"commit": "c", "machine": {}, "version": "1", "measurements": measurements, **changes}


def test_measurements_of_the_same_commit_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "example.json"
    write_result(result(measurements=[{"id": "a", "median": 1.0}, {"id": "b", "median": 2.0}]), path)
    merged = merge_results(path, result(measurements=[{"id": "a", "median": 3.0}]))
    assert merged["measurements"] == [{"id": "b", "median": 2.0}, {"id": "a", "median": 3.0}]


@pytest.mark.parametrize(
    ("old", "new", "merged"), [(0.3, 0.1, 0.3), (0.1, 0.3, 0.3), (None, 0.1, 0.1), (None, None, None)]
)
def test_merged_results_have_the_highest_load(
    tmp_path: Path, old: float | None, new: float | None, merged: float | None
) -> None:
    path = tmp_path / "example.json"
    write_result(result(other_load=old), path)
    assert merge_results(path, result(other_load=new))["other_load"] == merged


@pytest.mark.parametrize("field", ["commit", "machine", "version"])
def test_measurements_of_other_conditions_are_not_merged(tmp_path: Path, field: str) -> None:
    path = tmp_path / "example.json"
    write_result(result(), path)
    with pytest.raises(ValueError, match=f"measured with another {field}"):
        merge_results(path, result(**{field: "other"}))
