"""Files of a run: contents, formats, rotation, and behavior when a process is killed or the disk is full."""

import contextlib
import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import arc_reset
from phalanx.arc.config import ArcConfig
from phalanx.arc.generators import generate_task
from phalanx.config import Config, load_config
from phalanx.io.append_only import AppendOnlyFile
from phalanx.logging import (
    ExperimentLogger,
    FileHandler,
    LoggingConfig,
    read_records,
)
from tests.helpers.file_damage import limited_file_size
from tests.helpers.recording_handler import RecordingHandler

EPISODE = {
    "episode_num": 50,
    "total_reward": 1.5,
    "success": True,
    "task_id": "move 3",
    "initial_state": None,
    "final_state": jnp.array([1, 2]),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.logging.handlers.file.time", SimpleNamespace(time=lambda: 12.5))


def handler(folder: Path, **settings: Any) -> FileHandler:
    return FileHandler(folder, LoggingConfig(**settings))


class Board(NamedTuple):
    working_grid: Any


class ExperimentConfig(Config):
    logging: LoggingConfig = LoggingConfig()


def test_metrics_are_json_lines_with_timestamp_and_step(tmp_path: Path) -> None:
    files = handler(tmp_path / "runs" / "a")
    files.log_aggregated_metrics({"reward_mean": 0.5}, 10)
    files.log_aggregated_metrics({"reward_mean": float("nan"), "reward_max": float("inf")}, 20)
    text = (tmp_path / "runs" / "a" / "batch_metrics.jsonl").read_text(encoding="utf-8")
    assert text == (
        '{"timestamp": 12.5, "step": 10, "metrics": {"reward_mean": 0.5}}\n'
        '{"timestamp": 12.5, "step": 20, "metrics": {"reward_mean": "nan", "reward_max": "inf"}}\n'
    )


@pytest.mark.parametrize(
    ("settings", "name", "line"),
    [
        (
            {},
            "episodes.jsonl",
            '{"timestamp": 12.5, "event": "episode", "episode_num": 50, "total_reward": 1.5, '
            '"success": true, "task_id": "move 3"}\n',
        ),
        (
            {"log_format": "structured"},
            "episodes.pairs",
            'timestamp=12.5 event=episode episode_num=50 total_reward=1.5 success=true task_id="move 3"\n',
        ),
        (
            {"log_format": "text"},
            "episodes.log",
            "episode: episode num 50, total reward 1.5, success True, task id move 3\n",
        ),
    ],
)
def test_episodes_are_written_in_the_selected_format(
    settings: dict[str, Any], name: str, line: str, tmp_path: Path
) -> None:
    handler(tmp_path, **settings).log_episode_summary(EPISODE)
    assert (tmp_path / name).read_text(encoding="utf-8") == line


def read_pickles(path: Path) -> list[Any]:
    records = []
    with path.open("rb") as file:
        while file.peek(1):
            records.append(pickle.load(file))
    return records


def test_records_can_be_pickled(tmp_path: Path) -> None:
    files = handler(tmp_path, log_format="pickle")
    for number in (1, 2):
        files.log_episode_summary({"episode_num": number, "total_reward": jnp.float32(0.5)})
    files.close()
    expected = {"timestamp": 12.5, "event": "episode", "total_reward": 0.5}
    assert read_pickles(tmp_path / "episodes.pkl") == [expected | {"episode_num": n} for n in (1, 2)]


@pytest.mark.parametrize("lost_bytes", [1, 20])
def test_an_incomplete_pickle_of_a_killed_run_is_removed(lost_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "episodes.pkl"
    for number in (1, 2):
        files = handler(tmp_path, log_format="pickle")
        files.log_episode_summary({"episode_num": number})
        files.close()
    path.write_bytes(path.read_bytes()[:-lost_bytes])
    files = handler(tmp_path, log_format="pickle")
    files.log_episode_summary({"episode_num": 3})
    files.close()
    assert [record["episode_num"] for record in read_pickles(path)] == [1, 3]


def test_pickles_are_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "episodes.pkl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        handler(tmp_path / "run", log_format="pickle").log_episode_summary(EPISODE)
    assert target.read_bytes() == b""


def test_include_full_states_writes_arrays(tmp_path: Path) -> None:
    board = Board(jnp.array([[1, 2]], jnp.int8))
    handler(tmp_path, include_full_states=True).log_episode_summary({"final_state": board})
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert record["final_state"] == {"working_grid": [[1, 2]]}


def test_task_starts_are_written(tmp_path: Path) -> None:
    handler(tmp_path).log_task_start({"task_id": "a", "episode_num": np.int32(3)})
    assert list(read_records(tmp_path / "tasks.jsonl")) == [
        {"timestamp": 12.5, "event": "task", "task_id": "a", "episode_num": 3}
    ]


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, None),
        ({"step_fields": ("reward",)}, {"reward": 0.25}),
        ({"step_fields": ("action",)}, {"action": {"['operation']": 4}}),
        ({"step_fields": ("grid_changes",)}, {"grid_changes": [[0, 1, 2, 7]]}),
    ],
)
def test_step_fields_select_what_is_written(
    settings: dict[str, Any], fields: dict[str, Any] | None, tmp_path: Path
) -> None:
    step = {
        "step_num": 1,
        "action": {"operation": jnp.int32(4)},
        "reward": jnp.float32(0.25),
        "before_state": Board(jnp.array([[1, 2]])),
        "after_state": Board(jnp.array([[1, 7]])),
    }
    handler(tmp_path, **settings).log_step(step)
    path = tmp_path / "steps.jsonl"
    assert path.exists() == (fields is not None)
    if fields is not None:
        assert list(read_records(path)) == [{"timestamp": 12.5, "event": "step", "step_num": 1} | fields]


def test_the_last_step_of_an_episode_is_a_key_moment(tmp_path: Path) -> None:
    handler(tmp_path).log_step({"step_num": 9, "done": jnp.bool_(True), "reward": 1.0})
    (record,) = read_records(tmp_path / "steps.jsonl")
    assert record == {"timestamp": 12.5, "event": "step", "step_num": 9, "done": True}
    handler(tmp_path / "b", log_key_moments=False).log_step({"step_num": 9, "done": True})
    assert not (tmp_path / "b" / "steps.jsonl").exists()


def test_objects_are_written_by_field_or_as_repr(tmp_path: Path) -> None:
    task = generate_task("gravity", 3)
    handler(tmp_path).log_task_start({"task": task, "notes": ["fine", Path]})
    (record,) = read_records(tmp_path / "tasks.jsonl")
    assert record["task"]["id"] == task.id
    assert record["task"]["demos"][0]["input"] == task.demos[0].input.tolist()
    assert record["notes"] == ["fine", repr(Path)]


def test_full_arc_states_are_written_as_grids(tmp_path: Path) -> None:
    task = generate_task("gravity", 3)
    state, _ = arc_reset(jax.random.key(0), ArcConfig(), task)
    handler(tmp_path, include_full_states=True).log_episode_summary({"final_state": state})
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert record["final_state"]["target_grid"] == np.asarray(state.target_grid).tolist()
    assert record["final_state"]["similarity"] == float(state.similarity)
    assert not {"boards", "registers"} & set(record["final_state"])


def test_evaluations_are_always_json(tmp_path: Path) -> None:
    record = {"step": 5, "split": "held-out", "mode": "greedy", "success_rate": np.float32(0.5)}
    handler(tmp_path, log_format="text").log_evaluation(record)
    assert list(read_records(tmp_path / "evaluations.jsonl")) == [{"timestamp": 12.5, **record}]


def test_configs_are_never_overwritten(tmp_path: Path) -> None:
    first, second = LoggingConfig(num_samples=5), LoggingConfig(num_samples=6)
    for config in (first, first, second, second):
        FileHandler(tmp_path, ExperimentConfig(logging=config))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.2.yaml", "config.yaml"]
    assert load_config(ExperimentConfig, tmp_path / "config.yaml").logging == first
    assert load_config(ExperimentConfig, tmp_path / "config.2.yaml").logging == second


def test_a_killed_run_leaves_only_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "batch_metrics.jsonl"
    program = (
        "import itertools, sys\n"
        "from phalanx.logging import FileHandler\n"
        "files = FileHandler(sys.argv[1])\n"
        "for step in itertools.count():\n"
        "    files.log_aggregated_metrics({'reward_mean': 0.5, 'padding_' + 'x' * 5000: 1.0}, step)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    with contextlib.suppress(FileNotFoundError):
        while writer.poll() is None and (not path.exists() or path.stat().st_size < 500_000):
            pass
    writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL, "it was still writing"
    AppendOnlyFile(path).close()
    steps = [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert steps == list(range(len(steps))) and len(steps) >= 90
    assert path.read_bytes().endswith(b"\n")


def test_files_are_rotated_and_compressed(tmp_path: Path) -> None:
    files = FileHandler(tmp_path, LoggingConfig(compression=True), rotate_bytes=100)
    for step in range(5):
        files.log_aggregated_metrics({"reward_mean": 0.5}, step)
    assert len(list(tmp_path.glob("*.jsonl.gz"))) == 4
    assert [r["step"] for r in read_records(tmp_path / "batch_metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_full_disk_is_reported_and_the_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = RecordingHandler()
    config = LoggingConfig(log_frequency=1, sample_frequency=0)
    with ExperimentLogger(config, {"memory": RecordingHandler()}) as logger:
        logger.log_batch_step({"update_step": 0, "policy_loss": 0.5})  # compiles before the limit
    handlers = {"file": FileHandler(tmp_path), "memory": other}
    with ExperimentLogger(config, handlers) as logger, limited_file_size(0):
        for step in range(3):
            logger.log_batch_step({"update_step": step, "policy_loss": 0.5})
    assert list(other.metrics) == [0, 1, 2]
    assert caplog.messages == [
        "handler 'file' failed in log_aggregated_metrics: OSError: [Errno 27] cannot write to "
        f"{tmp_path}/batch_metrics.jsonl: File too large; "
        "training continues, and further errors of this handler are only counted",
        "handler 'file' failed 3 times in this run",
    ]


def test_equal_runs_write_equal_lines(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with ExperimentLogger(LoggingConfig(), {"file": FileHandler(tmp_path / name)}) as logger:
            logger.log_batch_step({"episode_returns": jnp.arange(8.0), "policy_loss": jnp.float32(0.1)})
    for name in ("batch_metrics.jsonl", "episodes.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() != b""
