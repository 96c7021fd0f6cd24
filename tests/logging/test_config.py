"""Logging settings: defaults, limits, and errors for settings of earlier versions."""

import pytest
from pydantic import ValidationError

from phalanx.config import list_settings
from phalanx.logging import LoggingConfig


def test_defaults() -> None:
    assert LoggingConfig().model_dump() == {
        "log_frequency": 10,
        "sample_frequency": 50,
        "num_samples": 3,
        "log_format": "json",
        "log_level": "INFO",
        "compression": True,
        "include_full_states": False,
        "step_fields": (),
        "log_key_moments": True,
    }


def test_every_setting_has_a_description() -> None:
    assert all(row.text for row in list_settings(LoggingConfig))


@pytest.mark.parametrize(
    ("name", "value"), [("log_frequency", -1), ("sample_frequency", -1), ("num_samples", 0)]
)
def test_values_out_of_range_are_rejected(name: str, value: int) -> None:
    with pytest.raises(ValidationError, match=name):
        LoggingConfig(**{name: value})
