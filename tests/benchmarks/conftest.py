"""`program`: runs a benchmark's `main` in this process, as a shell would run the file."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    """What a shell would see."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table that was printed."""
        return [
            [cell.strip() for cell in line.split("│")[1:-1]] for line in self.out.splitlines() if "│" in line
        ]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("PHALANX_KG", raising=False)

    def run(module: ModuleType, *arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            code = module.main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run
