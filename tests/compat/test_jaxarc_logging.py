"""Batched logging of JaxARC: settings, aggregated metrics, sampled episodes and handlers."""

import dataclasses
import inspect
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from phalanx.compat.jaxarc import envs
from phalanx.compat.jaxarc.envs import JaxArcConfig, LoggingConfig, validate_batched_logging_config
from phalanx.compat.jaxarc.utils.logging import (
    ExperimentLogger,
    FileHandler,
    MinimalAsyncLogger,
    RichHandler,
    SVGHandler,
    WandbHandler,
)
from phalanx.config import load_config
from tests.helpers.recording_handler import BrokenHandler, RecordingHandler

BATCHED = LoggingConfig(batched_logging_enabled=True)
PRESET = Path(envs.__file__).parents[1] / "conf" / "logging" / "batched.yaml"
SCALARS = {
    "policy_loss": -0.125,
    "value_loss": 3.5,
    "gradient_norm": 0.75,
    "entropy": 1.25,
    "explained_variance": 0.5,
    "learning_rate": 3e-4,
}
PREFIXES = {
    "episode_returns": "reward",
    "similarity_scores": "similarity",
    "episode_lengths": "episode_length",
}


@dataclasses.dataclass(frozen=True)
class Sketch:
    """A state that can be drawn."""

    title: str

    def _repr_svg_(self) -> str:
        return f"<svg><title>{self.title}</title></svg>"


def make_batch(size: int, step: int = 0) -> dict[str, Any]:
    """Return a value for each key that `log_batch_step` knows."""
    rng = np.random.default_rng([size, step])
    return {
        "update_step": step,
        "episode_returns": jnp.asarray(rng.normal(size=size), jnp.float32),
        "episode_lengths": jnp.asarray(rng.integers(1, 40, size), jnp.int32),
        "similarity_scores": jnp.asarray(rng.uniform(size=size), jnp.float32),
        "success_mask": jnp.asarray(rng.uniform(size=size) < 0.4),
        "task_ids": [f"puzzle-{row}" for row in range(size)],
        "initial_states": [Sketch(f"{row} at first") for row in range(size)],
        "final_states": [Sketch(f"{row} at last") for row in range(size)],
        **SCALARS,
    }


def log(settings: LoggingConfig, *batches: dict[str, Any]) -> RecordingHandler:
    handler = RecordingHandler()
    with ExperimentLogger(settings, {"memory": handler}) as logger:
        for batch in batches:
            logger.log_batch_step(batch)
    return handler


def test_settings_have_the_defaults_of_jaxarc() -> None:
    switched_on = {"structured_logging", "compression", "log_episode_start", "log_episode_end"}
    switched_on |= {"log_key_moments", "sampling_enabled", "log_aggregated_rewards", "log_gradient_norms"}
    switched_on |= {"log_aggregated_similarity", "log_loss_metrics", "log_episode_lengths"}
    switched_on |= {"log_success_rates"}
    switched_off = {"include_full_states", "log_operations", "log_grid_changes", "log_rewards"}
    switched_off |= {"batched_logging_enabled"}
    values = {"log_format": "json", "log_level": "INFO"}
    values |= {"log_frequency": 10, "num_samples": 3, "sample_frequency": 50}
    expected = values | dict.fromkeys(switched_on, True) | dict.fromkeys(switched_off, False)
    assert JaxArcConfig().logging.model_dump() == LoggingConfig().model_dump() == expected


def test_preset_only_enables_batched_logging() -> None:
    assert load_config(LoggingConfig, PRESET) == BATCHED


@pytest.mark.parametrize(
    "name", ["queue_size", "worker_threads", "batch_size", "flush_interval", "enable_compression"]
)
def test_settings_of_the_asynchronous_logger_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"has no {name}: use nothing: logging is synchronous"):
        LoggingConfig(**{name: 1})
    assert MinimalAsyncLogger is ExperimentLogger


def test_invalid_frequencies_and_sample_counts_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    assert validate_batched_logging_config(BATCHED) == []
    invalid = LoggingConfig(num_samples=0, sample_frequency=-2, log_frequency=0)
    assert validate_batched_logging_config(invalid) == [
        f"{name} must be positive" for name in ("num_samples", "sample_frequency", "log_frequency")
    ]
    with caplog.at_level(logging.WARNING, "phalanx.logging"):
        assert validate_batched_logging_config(LoggingConfig(num_samples=1000)) == []
        assert not caplog.records
        assert validate_batched_logging_config(LoggingConfig(num_samples=1001)) == []
    assert "num_samples is very large: 1001" in caplog.text


@pytest.mark.parametrize("size", [1, 5000])
def test_metrics_are_statistics_of_the_batch(size: int) -> None:
    batch = make_batch(size)
    expected = dict(SCALARS)
    for key, prefix in PREFIXES.items():
        values = np.asarray(batch[key], np.float64)
        statistics = {"mean": values.mean(), "std": values.std(), "max": values.max(), "min": values.min()}
        expected |= {f"{prefix}_{name}": value for name, value in statistics.items()}
    expected["success_rate"] = np.asarray(batch["success_mask"]).mean()
    assert log(BATCHED, batch).metrics == {0: pytest.approx(expected, rel=1e-5)}
    logger = ExperimentLogger(JaxArcConfig(logging=BATCHED), {})
    assert logger._aggregate_batch_metrics(batch) == pytest.approx(expected, rel=1e-5)


def test_switched_off_and_missing_metrics_are_left_out() -> None:
    settings = LoggingConfig(log_loss_metrics=False, log_gradient_norms=False, log_aggregated_rewards=False)
    batch = {name: make_batch(4)[name] for name in ("episode_returns", "success_mask", *SCALARS)}
    metrics = ExperimentLogger(settings, {})._aggregate_batch_metrics(batch)
    assert set(metrics) == {"success_rate", "entropy", "explained_variance", "learning_rate"}


def test_metrics_and_episodes_are_logged_at_their_frequencies() -> None:
    settings = BATCHED.model_copy(update={"log_frequency": 4, "sample_frequency": 6, "num_samples": 2})
    handler = log(settings, *(make_batch(5, step) for step in range(13)))
    assert list(handler.metrics) == [0, 4, 8, 12]
    assert [episode["episode_num"] for episode in handler.episodes] == [0, 0, 6, 6, 12, 12]
    only_samples = log(LoggingConfig(), make_batch(5))
    assert (len(only_samples.metrics), len(only_samples.episodes)) == (0, 3)
    only_metrics = log(BATCHED.model_copy(update={"sampling_enabled": False}), make_batch(5))
    assert (len(only_metrics.metrics), len(only_metrics.episodes)) == (1, 0)


@pytest.mark.parametrize("step", [0, 350])
def test_sampled_episodes_depend_only_on_the_update(step: int) -> None:
    batch = make_batch(90, step)
    episodes = ExperimentLogger(BATCHED, {})._sample_episodes_from_batch(batch)
    rows = jax.random.choice(jax.random.PRNGKey(step), 90, shape=(3,), replace=False).tolist()
    assert [episode["environment_id"] for episode in episodes] == rows
    for row, episode in zip(rows, episodes, strict=True):
        assert episode == {
            "episode_num": step,
            "environment_id": row,
            "task_id": f"puzzle-{row}",
            "total_reward": float(batch["episode_returns"][row]),
            "total_steps": int(batch["episode_lengths"][row]),
            "final_similarity": float(batch["similarity_scores"][row]),
            "success": bool(batch["success_mask"][row]),
            "initial_state": Sketch(f"{row} at first"),
            "final_state": Sketch(f"{row} at last"),
        }
    assert log(BATCHED, batch).episodes == episodes


def test_small_batches_are_sampled_completely() -> None:
    episodes = ExperimentLogger(BATCHED, {})._sample_episodes_from_batch(make_batch(2))
    assert [episode["environment_id"] for episode in episodes] == [0, 1]


def test_missing_values_of_sampled_episodes_have_defaults() -> None:
    batch = {"episode_returns": jnp.array([0.5, 1.5])}
    first, second = ExperimentLogger(BATCHED, {})._sample_episodes_from_batch(batch)
    assert (first["total_reward"], second["total_reward"]) == (0.5, 1.5)
    assert (second["episode_num"], second["task_id"]) == (0, "batch_task_1")
    assert (second["total_steps"], second["success"]) == (0, False)
    assert second["initial_state"] is second["final_state"] is None


def test_unfinished_episodes_are_not_sampled() -> None:
    finished = np.isin(np.arange(30), (4, 9))
    batch = {**make_batch(30), "episode_mask": jnp.asarray(finished)}
    episodes = log(BATCHED, batch).episodes
    assert sorted(episode["environment_id"] for episode in episodes) == [4, 9]


def test_failing_and_older_handlers_do_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class StepsOnly:
        def log_step(self, step_data: Any) -> None:
            raise AssertionError("a batch has no steps")

    memory = RecordingHandler()
    handlers = {"broken": BrokenHandler(), "old": StepsOnly(), "memory": memory}
    with caplog.at_level(logging.WARNING, "phalanx.logging"):
        ExperimentLogger(BATCHED, handlers).log_batch_step(make_batch(4))
    assert list(memory.metrics) == [0] and len(memory.episodes) == 3
    assert "handler 'broken' failed in log_aggregated_metrics" in caplog.text and "'old'" not in caplog.text


def test_wandb_metrics_have_the_prefix_batch() -> None:
    rows: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            rows.append((step, values))

    handler = WandbHandler(run=Run())
    handler.log_aggregated_metrics({"similarity_max": 0.875, "value_loss": 2.0}, 40)
    assert rows == [(40, {"batch/similarity_max": 0.875, "batch/value_loss": 2.0})]


@pytest.mark.parametrize("config", [None, BATCHED, JaxArcConfig(logging=BATCHED)])
def test_file_handler_appends_one_line_per_update(tmp_path: Path, config: Any) -> None:
    handler = FileHandler(tmp_path / "log", config)
    for step in (20, 30):
        handler.log_aggregated_metrics({"success_rate": step / 100}, step)
    handler.close()
    lines = (tmp_path / "log" / "batch_metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [["timestamp", "step", "metrics"]] * 2
    assert [(row["step"], row["metrics"]) for row in rows] == [
        (20, {"success_rate": 0.2}),
        (30, {"success_rate": 0.3}),
    ]
    assert 0 < rows[0]["timestamp"] <= rows[1]["timestamp"]


def test_console_shows_metrics_in_groups() -> None:
    screen = io.StringIO()
    handler = RichHandler(BATCHED, console=Console(file=screen, width=70))
    metrics = {"gradient_norm": 0.5, "reward_min": -1.0, "similarity_std": 0.25, "episode_length_max": 9.0}
    handler.log_aggregated_metrics(metrics, 120)
    table = screen.getvalue()
    assert "120" in table.splitlines()[0]
    cells = [line.split("│")[1:3] for line in table.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["Rewards", ""],
        ["Reward Min", "-1.0000"],
        ["Similarity", ""],
        ["Similarity Std", "0.2500"],
        ["Episodes", ""],
        ["Episode Length Max", "9.0000"],
        ["Training", ""],
        ["Gradient Norm", "0.5000"],
    ]


def test_states_of_sampled_episodes_are_drawn_if_given(tmp_path: Path) -> None:
    logger = ExperimentLogger(BATCHED, {"svg": SVGHandler(tmp_path)})
    batch = make_batch(1, 50)
    logger.log_batch_step(batch)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*/*.svg")}
    assert drawn == {
        "initial.svg": "<svg><title>0 at first</title></svg>",
        "final.svg": "<svg><title>0 at last</title></svg>",
    }
    del batch["initial_states"], batch["final_states"]
    logger.log_batch_step(batch | {"update_step": 100})
    assert len(list(tmp_path.glob("*/*.svg"))) == 2 and not logger.failures


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (ExperimentLogger.log_batch_step, ["self", "batch_data"]),
        (ExperimentLogger._aggregate_batch_metrics, ["self", "batch_data"]),
        (ExperimentLogger._sample_episodes_from_batch, ["self", "batch_data"]),
        *((h.log_aggregated_metrics, ["self", "metrics", "step"]) for h in (FileHandler, RichHandler)),
        (WandbHandler.log_aggregated_metrics, ["self", "metrics", "step"]),
    ],
)
def test_methods_take_the_arguments_of_jaxarc(method: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters)[: len(parameters)] == parameters
