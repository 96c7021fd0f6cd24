"""Runs `phalanx` commands in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from phalanx.cli import app as cli


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def phalanx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["phalanx", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        code = exit_.value.code
        out, err = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, out, err)

    return run
