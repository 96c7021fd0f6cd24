"""The training example runs as a script, and its return rises."""

import pytest

from tests.helpers.example_runs import first_and_last_return, run_example

pytest.importorskip("torch")
pytest.importorskip("gymnasium")


@pytest.mark.usefixtures("torch_threads")
def test_the_return_rises(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("integrations/gymnasium_ppo.py", "--quick")
    first, last = first_and_last_return(capsys.readouterr().out)
    assert first < 0.2 and last > first + 0.5
