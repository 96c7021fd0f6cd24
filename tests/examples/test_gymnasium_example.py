"""The training example runs as a script, and its return rises."""

import re
from collections.abc import Iterator

import pytest
from example_runs import run_example

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")


@pytest.fixture
def threads() -> Iterator[None]:
    """The script sets torch's threads for its own process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_return_rises(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("gymnasium_training.py", "--quick")
    told = re.search(r"first update (\S+), of the last (\S+)$", capsys.readouterr().out.strip())
    assert told is not None
    first, last = map(float, told.groups())
    assert first < 0.2 and last > first + 0.5
