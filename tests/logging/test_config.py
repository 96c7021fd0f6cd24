"""The settings of logging: their defaults, the preset, what was removed, what is refused."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from phalanx.config import PRESET_FOLDER, list_settings, load_config
from phalanx.logging import ExperimentLogger, LoggingConfig, validate_batched_logging_config


def test_the_defaults_are_those_of_the_design() -> None:
    assert LoggingConfig().model_dump() == {
        "structured_logging": True,
        "log_format": "json",
        "log_level": "INFO",
        "compression": True,
        "include_full_states": False,
        "log_operations": False,
        "log_grid_changes": False,
        "log_rewards": False,
        "log_episode_start": True,
        "log_episode_end": True,
        "log_key_moments": True,
        "log_frequency": 10,
        "batched_logging_enabled": False,
        "sampling_enabled": True,
        "num_samples": 3,
        "sample_frequency": 50,
        "log_aggregated_rewards": True,
        "log_aggregated_similarity": True,
        "log_loss_metrics": True,
        "log_gradient_norms": True,
        "log_episode_lengths": True,
        "log_success_rates": True,
    }


def test_every_setting_explains_itself() -> None:
    assert all(row.text for row in list_settings(LoggingConfig))


def test_the_batched_preset_differs_from_the_defaults_in_one_setting() -> None:
    preset = load_config(LoggingConfig, "batched")
    assert preset == LoggingConfig(batched_logging_enabled=True)
    text = (PRESET_FOLDER / "logging" / "batched.yaml").read_text(encoding="utf-8")
    assert text.startswith("# @package logging\n"), "Hydra users compose it by this line"


@pytest.mark.parametrize(
    "name", ["queue_size", "worker_threads", "batch_size", "flush_interval", "enable_compression"]
)
def test_a_yaml_with_an_async_setting_is_told_that_it_was_removed(name: str, tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(f"log_level: INFO\n{name}: 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"old.yaml: {name} was removed"):
        load_config(LoggingConfig, old)
    with pytest.raises(ValidationError, match=f"{name} was removed"):
        LoggingConfig(**{name: 1})


@pytest.mark.parametrize("name", ["num_samples", "sample_frequency", "log_frequency"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_and_frequencies_must_be_positive(name: str, value: int) -> None:
    config = LoggingConfig(**{name: value})
    assert validate_batched_logging_config(config) == [f"{name} must be positive"]
    with pytest.raises(ValueError, match=f"logging.{name} must be positive"):
        ExperimentLogger(config, {})


def test_a_thousand_samples_pass_and_more_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phalanx.logging"):
        assert validate_batched_logging_config(LoggingConfig(num_samples=1000)) == []
        assert caplog.messages == []
        assert validate_batched_logging_config(LoggingConfig(num_samples=1001)) == []
    assert caplog.messages == ["num_samples is very large: 1001"]
