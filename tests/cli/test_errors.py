"""Error messages for invalid input."""

import pathlib

import pydantic
import pytest

from phalanx.cli.errors import UserError, user_errors


def test_invalid_setting_is_reported_with_field_and_reason() -> None:
    class Settings(pydantic.BaseModel):
        steps: int = pydantic.Field(ge=1)

    with (
        pytest.raises(UserError, match=r"^steps must be at least 1, got 0$"),
        user_errors(),
    ):
        Settings(steps=0)


def test_missing_file_is_reported_by_name() -> None:
    with pytest.raises(UserError) as refusal, user_errors():
        pathlib.Path("/no/such/file").read_text()
    assert str(refusal.value) == "/no/such/file: No such file or directory"
