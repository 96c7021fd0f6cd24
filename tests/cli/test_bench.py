"""`phalanx bench`: its two ways of printing, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from phalanx import cli
from phalanx.arc import benchmark
from phalanx.cli.errors import UserError

runner = CliRunner()


def refusal(*arguments: str) -> str:
    result = runner.invoke(cli.app, ["bench", "arc", *arguments])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_json_prints_a_measurement_on_one_line() -> None:
    options = ["--batch", "8", "--grid", "5x5", "--steps", "4", "--repeats", "1", "--tasks", "2"]
    result = runner.invoke(
        cli.app, ["bench", "arc", "--json", *options, "--format", "point", "--no-observation"]
    )
    assert result.exit_code == 0, result.output or result.exception
    (line,) = result.output.splitlines()
    record = json.loads(line)
    expected = {"batch": 8, "grid": "5x5", "action_format": "point", "observation": False, "tasks": 2}
    assert {name: record[name] for name in expected} == expected
    assert record["steps_per_second_median"] > 0


def test_without_json_a_table_shows_each_batch_size_and_the_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def sweep(batches: tuple[int, ...], workload: benchmark.Workload, repeats: int) -> list[dict]:
        asked.append((batches, workload, repeats))
        figures = {"steps_per_second_median": 1_234_567, "steps_per_second_worst": 1_000_000}
        seconds = {"compile_seconds": 1.25, "first_batch_step_seconds": 0.5}
        conditions = {"engine": "native", "isa": "avx2", "grid": "5x7", "action_format": "mask", "tasks": 3}
        rest = {"observation": True, "repeats": repeats, **benchmark.conditions()}
        return [{"batch": batch, **figures, **seconds, **conditions, **rest} for batch in batches]

    monkeypatch.setattr(benchmark, "sweep", sweep)
    arguments = ["--batch", "64,1024", "--grid", "5x7", "--format", "mask", "--tasks", "3", "--repeats", "2"]
    result = runner.invoke(cli.app, ["bench", "arc", *arguments, "--engine", "xla"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output or result.exception
    workload = benchmark.Workload(engine="xla", grid=(5, 7), selection_format="mask", tasks=3)
    assert asked == [((64, 1024), workload, 2)]
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line
    ]
    assert rows == [
        ["native (avx2)", "64", "1,234,567", "1,000,000", "1.25", "0.50"],
        ["native (avx2)", "1,024", "1,234,567", "1,000,000", "1.25", "0.50"],
    ]
    assert "5x7 canvas, mask actions, 3 task(s), with observations, 2 repeats" in result.output


@pytest.mark.parametrize("text", ["", "many", "0", "8,,4", "-1"])
def test_a_batch_size_that_is_no_number_is_refused(text: str) -> None:
    assert refusal("--batch", text) == (
        f"--batch takes positive whole numbers with commas, as in 1,64,1024; got {text!r}"
    )


@pytest.mark.parametrize("text", ["30", "30x", "axb", "30x30x30"])
def test_a_grid_that_is_no_size_is_refused(text: str) -> None:
    assert refusal("--grid", text) == f"--grid takes rows x columns, as in 30x30; got {text!r}"


def test_a_grid_that_is_too_large_is_refused_with_the_limit() -> None:
    assert "max_grid_height must be between 1 and 30, got 40" in refusal("--grid", "40x30")


def test_the_native_engine_is_refused_with_the_reason_where_it_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHALANX_NATIVE", "0")
    assert refusal("--engine", "native") == (
        "the native engine cannot be used: switched off by PHALANX_NATIVE=0"
    )
