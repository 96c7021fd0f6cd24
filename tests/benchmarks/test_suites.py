"""All benchmark suites at tiny sizes, and the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import benchmarks.__main__ as command
import pytest
from benchmarks.speed import arc_planner
from benchmarks.suite import Suite, find_suites
from benchmarks.timing import Measurement

from benchmarks import plots
from phalanx.arc import generate_tasks
from tests.helpers.puzzle_server import installed_server

SUITES = find_suites()
RESULT_FIELDS = {
    "suite": str,
    "command": str,
    "commit": str,
    "dirty": bool,
    "version": str,
    "date": str,
    "machine": dict,
    "load_average": list,
    "other_load": float,
    "packages": dict,
    "measurements": list,
}
MEASUREMENT_FIELDS = {
    "id": str,
    "system": str,
    "unit": str,
    "values": list,
    "cpu_values": list,
    "settings": dict,
    "median": float,
}


def check_result(result: dict[str, Any]) -> None:
    """Check that a result file has all fields with the right types, and no empty measurement."""
    assert {name: type(value) for name, value in result.items()} == RESULT_FIELDS
    ids = [measurement["id"] for measurement in result["measurements"]]
    assert ids and len(ids) == len(set(ids))
    for measurement in result["measurements"]:
        types = {name: type(value) for name, value in measurement.items()}
        assert types | {"median": float} == MEASUREMENT_FIELDS, measurement["id"]
        assert measurement["values"] and all(value >= 0 for value in measurement["values"])
        assert len(measurement["cpu_values"]) in (0, len(measurement["values"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_suite_returns_valid_results(name: str) -> None:
    if name == "puzzle_server" and installed_server() is None:
        pytest.skip("no puzzle server is installed")
    suite = SUITES[name]
    measurements = list(suite.run(smoke=True, peers=False))
    # Through JSON, as when the file is written and read again.
    check_result(json.loads(json.dumps(suite.result(measurements, (0.0, 0.0, 0.0), 0.0))))


@pytest.mark.parametrize("name", SUITES)
def test_smoke_run_selects_cases_of_other_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurements are left out, because they install the other libraries."""
    measured: list[str] = []

    def record(cases: Any, *_: Any) -> Iterator[Measurement]:
        measured.extend(case.id for case in cases)
        return iter(())

    monkeypatch.setattr("benchmarks.suite._measure_group", record)
    suite = SUITES[name]
    groups = suite.groups()
    assert list(suite.run(smoke=True, only=groups or ["no case"])) == []
    assert bool(measured) == bool(groups)


def test_planner_tasks_of_all_datasets_have_unique_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    task = generate_tasks(num_tasks=1, seed=0)[0]
    monkeypatch.setattr(arc_planner, "load_tasks", lambda *arguments, **options: [task])
    assert [task.id for task in arc_planner.load_datasets(["a", "b"])] == [f"a/{task.id}", f"b/{task.id}"]


def test_cases_of_all_suites_have_unique_names() -> None:
    for suite in SUITES.values():
        assert len(suite.ids()) == len(set(suite.ids())), suite.name


def test_list_prints_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["arc_env", "--list"]) == 0
    assert capsys.readouterr().out.startswith("arc_env: native-30x30-1, ")


def test_only_selects_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["batch_planning", "--smoke", "--no-peers", "--only", "pack-2000"]) == 0
    out, err = capsys.readouterr()
    [record] = [json.loads(line) for line in out.splitlines()]
    assert (record["suite"], record["id"], record["unit"]) == ("batch_planning", "pack-2000", "tokens/s")
    assert "batch_planning pack-2000 (phalanx): " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["swim"], "there is no suite 'swim'; choose from "),
        (["arc_env", "--only", "swim"], "there is no case 'swim' in arc_env"),
        (["--smoke", "--write"], "--smoke cannot be combined with --write"),
        (["--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for results, a suite of each kind, and a load average of 0.51."""
    suites = {}
    for name, depends_on_load in (("fast", True), ("trained", False)):
        suites[name] = Suite(name, packages=())
        suites[name].depends_on_load = depends_on_load
        suites[name].experiment("only")(lambda smoke: [Measurement("only", "phalanx", "%", [50.0])])
    monkeypatch.setattr(command, "find_suites", lambda: suites)
    monkeypatch.setattr(command, "load_average", lambda: (0.51, 0.2, 0.1))
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    return tmp_path


def test_results_of_a_busy_machine_are_not_written(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["trained", "fast", "--write"]) == 2
    out, err = capsys.readouterr()
    assert (out, list(written.iterdir())) == ("", [])
    assert err == (
        "the load average is 0.51, but --write needs an idle machine (at most 0.5); "
        "wait, or use --allow-load\n"
    )


def test_a_busy_machine_can_be_allowed(written: Path) -> None:
    assert command.main(["--write", "--allow-load"]) == 0
    results = [json.loads((written / f"{name}.json").read_text()) for name in ("fast", "trained")]
    for result in results:
        check_result(result)
    assert [result["load_average"] for result in results] == [[0.51, 0.2, 0.1]] * 2


def test_training_results_do_not_need_an_idle_machine(written: Path) -> None:
    assert command.main(["trained", "--write"]) == 0
    assert (written / "trained.json").exists()


def test_measuring_without_writing_does_not_need_an_idle_machine(written: Path) -> None:
    assert command.main(["fast"]) == 0


def test_only_speed_suites_depend_on_the_load() -> None:
    assert SUITES["arc_env"].depends_on_load and not SUITES["arc_demo"].depends_on_load


def test_plots_show_all_lines(tmp_path: Path) -> None:
    measurements = [
        Measurement(
            f"padding-pool-{size}",
            "phalanx",
            "%",
            [50.0 + size],
            settings={"pool_batches": size, "relative_length_deviation": 0.5},
        ).to_json()
        for size in (4, 1)
    ]
    svg = plots.padding_versus_shuffling({"measurements": measurements}).as_svg()
    assert "padding efficiency" in svg and "length deviation in a batch" in svg
    with pytest.raises(ValueError, match="at least two points, got 1"):
        plots.padding_versus_shuffling({"measurements": measurements[:1]})
    with pytest.raises(ValueError, match="the line 'a' has 1 values, but there are 2 points"):
        plots.plot("title", "x", [1, 2], {"a": [1.0]})
