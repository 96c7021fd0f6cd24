"""The example of TorchRL's PPO on proofs: the return rises."""

import pytest

from tests.helpers.example_runs import first_and_last_return, run_example

pytest.importorskip("torch")
pytest.importorskip("torchrl")


@pytest.mark.usefixtures("torch_threads")
# TorchRL warns of its own class when it makes a collector.
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_the_return_rises(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("integrations/torchrl_ppo.py", "--updates", 10, "--num-envs", 32, "--queries", 10)
    first, last = first_and_last_return(capsys.readouterr().out)
    assert first < 0.45 and last > first + 0.15
