"""The ARC benchmark: what a measurement says, and that what it measures is real work."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measuring.conditions import conditions
from random_actions import draw_fields

import arc as benchmark
from arc import Rollout, Workload, benchmark_tasks, measure

TINY = Workload(batch=8, grid=(5, 5), steps=4, max_episode_steps=3)


@pytest.fixture(scope="module")
def record() -> dict:
    return measure(TINY, repeats=2)


def test_a_measurement_names_its_conditions(record: dict) -> None:
    expected = {
        "benchmark": "arc",
        "batch": 8,
        "grid": "5x5",
        "action_format": "bbox",
        "tasks": 1,
        "observation": True,
        "max_episode_steps": 3,
        "steps_per_call": 4,
        "repeats": 2,
        "jax": jax.__version__,
    }
    assert {name: record[name] for name in expected} == expected
    assert record["engine"] in ("native", "xla")
    assert (record["isa"] is None) == (record["engine"] == "xla")
    assert record["nproc"] >= 1
    assert record["cpu"]
    assert record["load_average"] >= 0


def test_a_measurement_has_sane_figures(record: dict) -> None:
    assert record["steps_per_second_median"] >= record["steps_per_second_worst"] > 0
    assert record["compile_seconds"] > 0
    assert record["first_batch_step_seconds"] > 0
    assert record["calls_per_repeat"] >= 1
    # Ten boards of five rows of four bytes, eight registers of four, one similarity of four.
    assert record["state_bytes"] == 10 * 5 * 4 + 8 * 4 + 4


def test_a_measurement_is_one_json_line(record: dict) -> None:
    line = json.dumps(record)
    assert "\n" not in line
    assert json.loads(line) == record


def test_a_rollout_does_the_same_work_for_the_same_seed_and_goes_on_with_each_run() -> None:
    first, second = Rollout.prepare(TINY), Rollout.prepare(TINY)
    assert first.checksum == second.checksum != 0.0
    before = first.checksum
    first.run()
    second.run()
    assert first.checksum == second.checksum != before
    assert first.steps_per_run == 8 * 4


@pytest.mark.parametrize("change", [{"observation": False}, {"selection_format": "mask"}])
def test_a_workload_without_observations_or_with_masks_runs(change: dict) -> None:
    rollout = Rollout.prepare(Workload(batch=8, grid=(5, 5), steps=4, **change))
    assert rollout.checksum != 0.0


def test_larger_batches_take_fewer_steps_in_one_call() -> None:
    assert [Workload(batch=batch).steps_per_call for batch in (1, 64, 1024, 16384)] == [4096, 1024, 64, 16]
    assert Workload(batch=64, steps=7).steps_per_call == 7


@pytest.mark.parametrize("name", ["batch", "tasks", "steps", "max_episode_steps"])
def test_a_workload_of_nothing_is_refused_in_words(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
        Workload(**{name: 0})


def test_no_repeats_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"^repeats must be at least 1, got 0$"):
        measure(TINY, repeats=0)


def test_benchmark_tasks_fill_the_canvas_and_follow_the_seed() -> None:
    tasks = benchmark_tasks((7, 9), 3, seed=1)
    assert len(tasks) == 3
    shapes = {grid.shape for task in tasks for pair in task.pairs for grid in (pair.input, pair.output)}
    assert shapes == {(7, 9)}
    assert tasks == benchmark_tasks((7, 9), 3, seed=1)
    assert tasks != benchmark_tasks((7, 9), 3, seed=2)


def draw(counter: int, selection_format: str, seen: int = 0, batch: int = 4096) -> dict[str, np.ndarray]:
    cells = jnp.full(batch, seen, jnp.int32)
    fields = draw_fields(jnp.uint32(3), jnp.uint32(counter), cells, (30, 5), selection_format)
    return {name: np.asarray(value) for name, value in fields.items()}


def test_points_cover_every_operation_and_every_cell_and_nothing_else() -> None:
    fields = draw(0, "point")
    assert set(fields["operation"]) == set(range(35))
    assert set(fields["row"]) == set(range(30))
    assert set(fields["col"]) == set(range(5))


def test_boxes_draw_both_corners_on_their_own() -> None:
    fields = draw(0, "bbox")
    assert set(fields["r1"]) == set(fields["r2"]) == set(range(30))
    assert set(fields["c1"]) == set(fields["c2"]) == set(range(5))
    assert len({*zip(fields["c1"].tolist(), fields["c2"].tolist(), strict=True)}) == 25


def test_masks_take_about_half_of_the_cells_in_every_row_and_column() -> None:
    share = draw(0, "mask")["selection"].mean(axis=0)
    assert share.shape == (30, 5)
    assert np.all((share > 0.4) & (share < 0.6))


def test_actions_change_from_step_to_step_and_with_what_was_seen() -> None:
    operations = [
        draw(0, "point")["operation"],
        draw(1, "point")["operation"],
        draw(0, "point", 4)["operation"],
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(operations[first] == operations[second]) < 0.1


def test_an_unknown_format_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"^selection_format must be one of point, bbox, mask, got 'lasso'$"):
        draw(0, "lasso")


def test_json_prints_a_measurement_on_one_line(program) -> None:
    options = ("--batch", 8, "--grid", "5x5", "--steps", 4, "--repeats", 1, "--tasks", 2)
    result = program(benchmark, "--json", *options, "--format", "point", "--no-observation")
    assert (result.code, result.err) == (0, "")
    (line,) = result.out.splitlines()
    record = json.loads(line)
    expected = {"batch": 8, "grid": "5x5", "action_format": "point", "observation": False, "tasks": 2}
    assert {name: record[name] for name in expected} == expected
    assert record["steps_per_second_median"] > 0


def test_without_json_a_table_shows_each_batch_size_and_the_conditions(
    program, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def sweep(batches: tuple[int, ...], workload: Workload, repeats: int) -> list[dict]:
        asked.append((batches, workload, repeats))
        figures = {"steps_per_second_median": 1_234_567, "steps_per_second_worst": 1_000_000}
        seconds = {"compile_seconds": 1.25, "first_batch_step_seconds": 0.5}
        work = {"engine": "native", "isa": "avx2", "grid": "5x7", "action_format": "mask", "tasks": 3}
        rest = {"observation": True, "repeats": repeats, **conditions("jax")}
        return [{"batch": batch, **figures, **seconds, **work, **rest} for batch in batches]

    monkeypatch.setattr(benchmark, "sweep", sweep)
    options = ("--batch", "64,1024", "--grid", "5x7", "--format", "mask", "--tasks", 3, "--repeats", 2)
    result = program(benchmark, *options, "--engine", "xla")
    assert asked == [((64, 1024), Workload(engine="xla", grid=(5, 7), selection_format="mask", tasks=3), 2)]
    assert result.rows == [
        ["native (avx2)", "64", "1,234,567", "1,000,000", "1.25", "0.50"],
        ["native (avx2)", "1,024", "1,234,567", "1,000,000", "1.25", "0.50"],
    ]
    assert "5x7 canvas, mask actions, 3 task(s), with observations, 2 repeats" in result.out


@pytest.mark.parametrize("text", ["", "many", "0", "8,,4", "-1"])
def test_a_batch_size_that_is_no_number_is_refused(program, text: str) -> None:
    result = program(benchmark, f"--batch={text}")
    assert result.code == 2
    assert f"--batch: takes positive whole numbers with commas, as in 64,1024; got {text!r}" in result.err


@pytest.mark.parametrize("text", ["30", "30x", "axb", "30x30x30"])
def test_a_grid_that_is_no_size_is_refused(program, text: str) -> None:
    result = program(benchmark, "--grid", text)
    assert result.code == 2
    assert f"--grid: takes rows x columns, as in 30x30; got {text!r}" in result.err


def test_a_grid_that_is_too_large_is_refused_with_the_limit(program) -> None:
    result = program(benchmark, "--grid", "40x30")
    assert result.code == 2
    assert "max_grid_height must be between 1 and 30, got 40" in result.err


def test_the_native_engine_is_refused_with_the_reason_where_it_cannot_be_used(
    program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_NATIVE", "0")
    result = program(benchmark, "--engine", "native")
    assert result.code == 2
    assert "the native engine cannot be used: disabled by PHALANX_NATIVE=0" in result.err
