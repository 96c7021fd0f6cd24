"""The training example runs as a script, and its return rises."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

SCRIPT = Path(__file__).parents[2] / "examples" / "gymnasium_training.py"


@pytest.fixture
def threads() -> Iterator[None]:
    """The script sets torch's threads for its own process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_return_rises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--quick"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    told = re.search(r"first update (\S+), of the last (\S+)$", capsys.readouterr().out.strip())
    assert told is not None
    first, last = map(float, told.groups())
    assert first < 0.2 and last > first + 0.5
