"""Trackers, checked by reading what W&B (offline), TensorBoard and MLflow have written."""

import io
import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.logging import ExperimentLogger, LoggingConfig, TensorBoardHandler, WandbHandler, make_tracker
from phalanx.logging.handlers.tracker import import_library

pytestmark = pytest.mark.slow

DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"
BATCHED = LoggingConfig()
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>solved</text></svg>'
PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
EVALUATION = {
    "step": 20,
    "split": "held-out",
    "mode": "greedy",
    "success_rate": 0.75,
    "families": {"recolor": {"success_rate": 0.5}},
    "tasks": {"recolor-000001": {"success_rate": 1.0}},
}


def render(state: str, mode: str) -> Any:
    """States here are names; their pictures are all alike."""
    return SVG if mode == "svg" else PIXELS


def tell(handler: Any) -> None:
    """A small run, through the logger as a training tells it."""
    with ExperimentLogger(BATCHED, {"tracker": handler}, render=render) as logger:
        logger.log_config({"seed": 3, "clip_eps": 0.2}, {"num_parameters": 48_000})
        logger.log_batch_step({"update_step": 10, "policy_loss": 1.5})
        for reward in (2.0, 3.0):
            logger.log_episode_summary(
                {"episode_num": 10, "total_reward": reward, "task_id": "a", "final_state": object()}
            )
        logger.log_batch_step({"update_step": 20, "policy_loss": 2.5})
        logger.log_evaluation(EVALUATION)
    assert logger.failures == {}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B as a machine without a network has it: by its own variable."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def wandb_records(path: Path) -> list[Any]:
    """What a W&B run that never saw the network wrote to its own file.

    A process of W&B's own writes it, and is not always done when the run is.
    """
    for _ in range(200):
        records = _scanned(path)
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def _scanned(path: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, records = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        records.append(record)
    store.close()
    return records


def wandb_history(records: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({name: json.loads(value) for name, value in items.items()})
    return [{name: row[name] for name in row if name not in ("_timestamp", "_runtime")} for row in rows]


def wandb_file(folder: Path) -> Path:
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path


@pytest.mark.usefixtures("offline")
def test_wandb_receives_metrics_episodes_evaluations_images_and_config(tmp_path: Path) -> None:
    tell(make_tracker("wandb", tmp_path / "demo"))
    records = wandb_records(wandb_file(tmp_path / "demo"))
    first, second = wandb_history(records)
    pictures = [first[f"episode_{place}/final/path"] for place in (0, 1)]
    files = wandb_file(tmp_path / "demo").parent / "files"
    assert [(files / path).read_text() for path in pictures] == [SVG, SVG]
    assert {name: value for name, value in first.items() if "/final/" not in name} == {
        "_step": 10,
        "batch/policy_loss": 1.5,
        "episode_0/total_reward": 2.0,
        "episode_1/total_reward": 3.0,
    }
    assert second == {
        "_step": 20,
        "batch/policy_loss": 2.5,
        "evaluation/held-out/greedy/success_rate": 0.75,
        "evaluation/held-out/greedy/families/recolor/success_rate": 0.5,
    }
    config: dict[str, Any] = {}
    for record in records:
        for item in record.config.update:
            config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    assert (config["seed"], config["clip_eps"]) == (3, 0.2)
    assert config["metadata"] == {"num_parameters": 48_000}
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name, run.run_group) == ("phalanx", "demo", "")


@pytest.mark.usefixtures("offline")
def test_seeds_are_independent_runs_of_one_group(tmp_path: Path) -> None:
    first, second = (make_tracker("wandb", tmp_path / "sweep" / f"seed_{seed}") for seed in (0, 1))
    first.close()
    second.log_aggregated_metrics({"policy_loss": 1.0}, 10)
    second.close()
    runs = []
    for seed in (0, 1):
        records = wandb_records(wandb_file(tmp_path / "sweep" / f"seed_{seed}"))
        runs += [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert [(run.display_name, run.run_group) for run in runs] == [
        ("sweep/seed_0", "sweep"),
        ("sweep/seed_1", "sweep"),
    ]
    assert wandb_history(records) == [{"_step": 10, "batch/policy_loss": 1.0}]


@pytest.mark.usefixtures("offline")
def test_a_resumed_run_continues_the_same_wandb_run(tmp_path: Path) -> None:
    for update in (10, 20):
        handler = make_tracker("wandb", tmp_path)
        handler.log_aggregated_metrics({"policy_loss": 1.0}, update)
        handler.close()
    known = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    paths = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{known}.wandb"))
    assert sorted(row["_step"] for path in paths for row in wandb_history(wandb_records(path))) == [10, 20]


@pytest.mark.usefixtures("offline")
def test_wandb_environment_variables_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROJECT", "puzzles"), ("NAME", "mine"), ("RUN_ID", "abcd1234")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    make_tracker("wandb", tmp_path).close()
    records = wandb_records(wandb_file(tmp_path))
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name, run.run_id) == ("puzzles", "mine", "abcd1234")


@pytest.mark.usefixtures("offline")
def test_the_folder_can_be_passed_as_dir(tmp_path: Path) -> None:
    WandbHandler(project="phalanx", name="run", dir=tmp_path).close()
    assert wandb_file(tmp_path).exists()


class OpenRun:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log(self, values: dict[str, float], **options: Any) -> None:
        self.rows.append((values, options))


def test_an_open_run_is_used_and_not_closed() -> None:
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


def board_values(folder: Path) -> list[tuple[int, Any]]:
    """(step, value) of everything in the event file; a frame of it is length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event()
        event.ParseFromString(data[12 : 12 + length])
        found += [(event.step, value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_tensorboard_receives_metrics_episodes_evaluations_images_and_hyperparameters(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboardX")
    handler = make_tracker("tensorboard", tmp_path)
    handler.log_step({"step_num": 4, "reward": 0.25})
    tell(handler)
    values = board_values(tmp_path / "tensorboard")
    scalars = [
        (step, value.tag, value.simple_value) for step, value in values if value.HasField("simple_value")
    ]
    assert scalars == [
        (4, "step/reward", 0.25),
        (10, "batch/policy_loss", 1.5),
        (10, "episode_0/total_reward", 2.0),
        (10, "episode_1/total_reward", 3.0),
        (20, "batch/policy_loss", 2.5),
        (20, "evaluation/held-out/greedy/success_rate", 0.75),
        (20, "evaluation/held-out/greedy/families/recolor/success_rate", 0.5),
    ]
    images = {value.tag: value.image for _, value in values if value.HasField("image")}
    assert sorted(images) == ["episode_0/final", "episode_1/final"]
    png = io.BytesIO(images["episode_0/final"].encoded_image_string)
    assert (np.asarray(Image.open(png)) == PIXELS).all()
    assert b"clip_eps" in b"".join(value.metadata.plugin_data.content for _, value in values)
    assert any("48000" in str(value.tensor.string_val) for _, value in values if value.HasField("tensor"))


def test_tensorboard_skips_images_without_pixels(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with ExperimentLogger(BATCHED, {"board": TensorBoardHandler(tmp_path)}) as logger:
        logger.log_picture("curve", SVG, 10)
    assert logger.failures == {} and board_values(tmp_path) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_receives_metrics_episodes_evaluations_images_and_parameters(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    tell(make_tracker("mlflow", tmp_path / "sweep" / "seed_0"))
    again = make_tracker("mlflow", tmp_path / "sweep" / "seed_0")
    with ExperimentLogger(BATCHED, {"mlflow": again}) as logger:
        logger.log_config({"seed": 3, "clip_eps": 0.2})
        logger.log_batch_step({"update_step": 30, "policy_loss": 3.5})
    assert logger.failures == {}
    client = again._client  # type: ignore[attr-defined]
    (experiment,) = [found for found in client.search_experiments() if found.name == "phalanx"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.data.tags["group"], run.info.status) == (
        "sweep/seed_0",
        "sweep",
        "FINISHED",
    )
    assert run.data.params == {"seed": "3", "clip_eps": "0.2"}
    history = client.get_metric_history(run.info.run_id, "batch/policy_loss")
    assert [(point.step, point.value) for point in history] == [(10, 1.5), (20, 2.5), (30, 3.5)]
    assert run.data.metrics["evaluation/held-out/greedy/success_rate"] == 0.75
    assert run.data.metrics["episode_1/total_reward"] == 3.0
    pictures = tmp_path.glob("sweep/mlflow/**/pictures/episode_0/final_000010.svg")
    assert [path.read_text() for path in pictures] == [SVG]


# MLflow's own use of its database warns.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("offline")
def test_all_requested_trackers_receive_the_run(tmp_path: Path) -> None:
    for library in ("tensorboardX", "mlflow"):
        pytest.importorskip(library)
    out = tmp_path / "run"
    trackers = [f"--tracker={name}" for name in ("wandb", "tensorboard", "mlflow", "wandb")]
    done = CliRunner().invoke(app, ["train", str(DESCENT), f"--out={out}", *trackers])
    assert done.exit_code == 0, done.output
    name = "evaluation/all/greedy/distance"
    assert any(name in row for row in wandb_history(wandb_records(wandb_file(out))))
    assert name in [value.tag for _, value in board_values(out / "tensorboard")]
    assert list(out.glob("**/mlflow*")) or list(out.parent.glob("mlflow*"))


def test_tracker_libraries_are_imported_on_use() -> None:
    program = (
        "import sys, phalanx.logging as logs; logs.WandbHandler, logs.TensorBoardHandler, logs.MLflowHandler;"
        "print({'wandb', 'tensorboardX', 'mlflow', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("mlflow", "mlflow.db"), ("wandb", "wandb")],
)
def test_trackers_do_not_write_through_symbolic_links(kind: str, name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links are not followed"):
        make_tracker(kind, tmp_path / "run")
    assert list(target.iterdir()) == []


def test_errors_for_missing_libraries_and_unknown_trackers(tmp_path: Path) -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"the tracker needs no_such_tracker: pip install 'phalanx\[wandb\]'"
    ):
        import_library("no_such_tracker", "wandb")
    with pytest.raises(ValueError, match="unknown tracker 'aim'; choose one of wandb, tensorboard, mlflow"):
        make_tracker("aim", tmp_path)


def test_connection_errors_of_trackers_do_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(OpenRun):
        def log(self, values: dict[str, float], **options: Any) -> None:
            raise ConnectionError("no route to host")

    logger = ExperimentLogger(BATCHED, {"wandb": WandbHandler(run=Unreachable())})
    logger.log_batch_step({"update_step": 10, "policy_loss": 0.5})
    assert logger.failures == {"wandb": 1} and "no route to host" in caplog.text
