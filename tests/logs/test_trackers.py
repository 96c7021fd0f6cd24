"""Weights & Biases in its offline mode and TensorBoard's event files, both read back."""

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx.logs import ExperimentLogger, LoggingConfig, TensorBoardHandler, WandbHandler
from phalanx.logs.handlers.trackers import _imported

EPISODES = [
    {"episode_num": 10, "total_reward": 2.0, "success": True, "task_id": "a", "final_state": None},
    {"episode_num": 10, "total_reward": 3.0, "success": False, "task_id": "b", "final_state": None},
]


def tell(handler: Any) -> None:
    handler.log_aggregated_metrics({"reward_mean": 1.5}, 10)
    for episode in EPISODES:
        handler.log_episode_summary(episode)
    handler.log_aggregated_metrics({"reward_mean": 2.5}, 20)
    handler.close()


def offline_history(folder: Path) -> list[dict[str, float]]:
    """The rows of a W&B run that never saw the network, from its own file."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    store, rows = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({name: float(value) for name, value in items.items() if name != "_timestamp"})
    store.close()
    return [{name: value for name, value in row.items() if name != "_runtime"} for row in rows]


def test_wandb_offline_has_batch_metrics_by_update_and_every_sampled_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    tell(WandbHandler(tmp_path, LoggingConfig(), mode="offline"))
    assert offline_history(tmp_path) == [
        {
            "_step": 10,
            "batch/reward_mean": 1.5,
            "episode_0/total_reward": 2.0,
            "episode_0/success": 1.0,
            "episode_1/total_reward": 3.0,
            "episode_1/success": 0.0,
        },
        {"_step": 20, "batch/reward_mean": 2.5},
    ]


class OpenRun:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log(self, values: dict[str, float], **options: Any) -> None:
        self.rows.append((values, options))


def test_a_run_of_the_callers_is_used_and_left_open() -> None:
    run = OpenRun()
    handler = WandbHandler(run=run)
    handler.log_aggregated_metrics({"success_rate": 0.5}, 30)
    handler.log_step({"step_num": 4, "reward": 0.25, "action": "x"})
    handler.close()
    handler.log_aggregated_metrics({"success_rate": 0.5}, 40)
    assert run.rows == [
        ({"batch/success_rate": 0.5}, {"step": 30}),
        ({"step/step_num": 4.0, "step/reward": 0.25}, {"commit": False}),
    ]


def events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every scalar; a frame of the file is length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event()
        event.ParseFromString(data[12 : 12 + length])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_tensorboard_has_the_same_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    handler = TensorBoardHandler(tmp_path)
    handler.log_step({"step_num": 4, "reward": 0.25})
    tell(handler)
    assert events(tmp_path) == [
        (4, "step/reward", 0.25),
        (10, "batch/reward_mean", 1.5),
        (10, "episode_0/total_reward", 2.0),
        (10, "episode_0/success", 1.0),
        (10, "episode_1/total_reward", 3.0),
        (10, "episode_1/success", 0.0),
        (20, "batch/reward_mean", 2.5),
    ]


def test_trackers_are_imported_only_when_one_is_made() -> None:
    program = "import sys, phalanx.logs; print({'wandb', 'tensorboardX', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_a_missing_tracker_says_how_to_get_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"`pip install 'phalanx\[wandb\]'` brings it"):
        _imported("no_such_tracker", "wandb")


def test_a_tracker_that_loses_its_connection_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(OpenRun):
        def log(self, values: dict[str, float], **options: Any) -> None:
            raise ConnectionError("no route to host")

    logger = ExperimentLogger(
        LoggingConfig(batched_logging_enabled=True), {"wandb": WandbHandler(run=Unreachable())}
    )
    logger.log_batch_step({"update_step": 10, "policy_loss": 0.5})
    assert logger.failures == {"wandb": 1} and "no route to host" in caplog.text
