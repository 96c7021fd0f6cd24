"""The example of TorchRL's PPO on proofs: the return rises."""

import re
from collections.abc import Iterator

import pytest
from example_runs import run_example

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")


@pytest.fixture
def threads() -> Iterator[None]:
    """The script sets torch's threads for its own process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
# TorchRL warns of its own class when it makes a collector.
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_the_return_rises(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("torchrl_training.py", "--updates", 10, "--num-envs", 32)
    told = re.search(r"first update (\S+), of the last (\S+)$", capsys.readouterr().out.strip())
    assert told is not None
    first, last = map(float, told.groups())
    assert first < 0.45 and last > first + 0.15
