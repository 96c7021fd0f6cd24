"""The example of a language model that learns while puzzles are played: its loss falls."""

import re

import pytest

from tests.helpers.example_runs import run_example


def test_the_loss_falls_as_puzzles_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("lm/online_language_model.py", "--updates", 12)
    told = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+),", told)]
    assert losses[0] > 4 and losses[-1] < losses[0] / 2
    assert "the model's answer: " in told
    numbers = re.search(r"of 16 unseen moves, (\d+) are well formed and (\d+) are the expert's", told)
    assert numbers is not None and int(numbers[1]) >= int(numbers[2])
