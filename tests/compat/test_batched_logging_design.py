"""Every code block of the batched logging design runs on the library's own logger and handlers.

The blocks are in `batched_logging_blocks.py`; what they compute is what the library computes.
"""

import io
import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console

from phalanx.compat.jaxarc.utils.logging import ExperimentLogger
from phalanx.config import PRESET_FOLDER
from phalanx.logging import (
    FileHandler,
    Handler,
    LoggingConfig as OurLoggingConfig,
    RichHandler,
    WandbHandler,
    validate_batched_logging_config as our_validation,
)
from tests.compat.batched_logging_blocks import (
    BATCHED_YAML,
    FileBlock,
    LoggingConfig,
    RichBlock,
    WandbBlock,
    _aggregate_batch_metrics,
    _sample_episodes_from_batch,
    batch_data,
    log_batch_step,
    validate_batched_logging_config,
)

BATCHED = OurLoggingConfig(**OmegaConf.to_container(OmegaConf.create(BATCHED_YAML)))


def example(size: int, step: int) -> dict[str, Any]:
    """A value of the type that `batch_data` gives for every key."""
    rng = np.random.default_rng(7)
    return {
        "update_step": step,
        "episode_returns": jax.device_put(rng.standard_normal(size, np.float32)),
        "episode_lengths": jax.device_put(rng.integers(1, 100, size, np.int32)),
        "similarity_scores": jax.device_put(rng.random(size, np.float32)),
        "success_mask": jax.device_put(rng.random(size) < 0.3),
        "policy_loss": 0.5,
        "value_loss": 0.25,
        "gradient_norm": 2.0,
        "entropy": 1.5,
        "explained_variance": 0.75,
        "learning_rate": 0.001,
        "task_ids": [f"task {i}" for i in range(size)],
        "initial_states": [f"initial {i}" for i in range(size)],
        "final_states": [f"final {i}" for i in range(size)],
    }


class Memory(Handler):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def log_aggregated_metrics(self, metrics: Any, step: int) -> None:
        self.told.append((step, {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()}))

    def log_episode_summary(self, summary_data: Any) -> None:
        self.told.append(summary_data)


def our_logger(config: OurLoggingConfig = BATCHED, **handlers: Handler) -> ExperimentLogger:
    return ExperimentLogger(config, handlers)


def test_the_preset_is_the_designs_own() -> None:
    assert (PRESET_FOLDER / "logging" / "batched.yaml").read_text() == BATCHED_YAML.lstrip()


def test_the_fields_and_their_defaults_are_the_designs() -> None:
    assert OurLoggingConfig().model_dump() == vars(LoggingConfig())


def test_the_example_has_every_key_of_the_designs_batch_data() -> None:
    assert set(example(4, 0)) == set(batch_data)


@pytest.mark.parametrize("size", [2, 10_000])
def test_the_designs_aggregation_gives_the_same_metrics(size: int) -> None:
    ours, batch = our_logger(), example(size, 0)
    theirs = _aggregate_batch_metrics(ours, batch)
    extra = {"entropy": 1.5, "explained_variance": 0.75, "learning_rate": 0.001}
    assert ours._aggregate_batch_metrics(batch) == pytest.approx(theirs | extra, rel=1e-5)


@pytest.mark.parametrize("size", [2, 100])
@pytest.mark.parametrize(
    "left_out",
    [
        (),
        ("episode_lengths",),
        ("similarity_scores", "success_mask"),
        ("task_ids", "initial_states", "final_states"),
    ],
)
def test_the_designs_sampling_gives_the_same_episodes(size: int, left_out: tuple[str, ...]) -> None:
    ours = our_logger()
    for step in (0, 50):
        batch = {key: value for key, value in example(size, step).items() if key not in left_out}
        assert ours._sample_episodes_from_batch(batch) == _sample_episodes_from_batch(ours, batch)


def test_the_designs_log_batch_step_tells_a_handler_the_same() -> None:
    ours, theirs = Memory(), Memory()
    for step in (0, 7, 10, 50):
        our_logger(memory=ours).log_batch_step(example(8, step))
        log_batch_step(our_logger(memory=theirs), example(8, step))
    assert ours.told == theirs.told and len(ours.told) == 3 + 3 + 3


def test_the_designs_wandb_method_logs_the_same() -> None:
    class Run:
        def log(self, values: Any, step: int) -> None:
            rows.append((values, step))

    rows: list[Any] = []
    handler = WandbHandler(run=Run())
    handler.log_aggregated_metrics({"reward_mean": 0.5}, 10)
    WandbBlock.log_aggregated_metrics(handler, {"reward_mean": 0.5}, 10)
    assert rows == [({"batch/reward_mean": 0.5}, 10)] * 2


def test_the_designs_file_method_writes_the_same_lines(tmp_path: Path) -> None:
    handler = FileHandler(tmp_path)
    handler.log_aggregated_metrics({"reward_mean": 0.5, "policy_loss": 0.25}, 10)
    FileBlock.log_aggregated_metrics(handler, {"reward_mean": 0.5, "policy_loss": 0.25}, 10)
    ours, theirs = (json.loads(line) for line in (tmp_path / "batch_metrics.jsonl").read_text().splitlines())
    assert list(ours) == list(theirs)
    assert ours | {"timestamp": 0} == theirs | {"timestamp": 0}


def test_the_designs_table_has_the_rows_of_ours_that_it_knows() -> None:
    metrics = {"reward_mean": 0.5, "similarity_max": 1.0, "success_rate": 0.25, "policy_loss": 0.125}
    texts = []
    for method in (RichHandler.log_aggregated_metrics, RichBlock.log_aggregated_metrics):
        console = Console(file=io.StringIO(), width=60)
        method(RichHandler(console=console), metrics, 10)
        texts.append(
            [line.replace("│", " ").split() for line in console.file.getvalue().splitlines() if "│" in line]
        )
    ours, theirs = texts
    assert [row for row in ours if row in theirs] == theirs
    assert [row for row in ours if row not in theirs] == [["Episodes"], ["Success", "Rate", "0.2500"]]


@pytest.mark.parametrize(
    "change", [{}, {"num_samples": 0}, {"sample_frequency": -1, "log_frequency": 0}, {"num_samples": 1001}]
)
def test_the_designs_validation_finds_the_same(
    change: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "phalanx.logging"):
        assert our_validation(OurLoggingConfig(**change)) == validate_batched_logging_config(
            LoggingConfig(**change)
        )
    assert caplog.messages[::2] == caplog.messages[1::2]
