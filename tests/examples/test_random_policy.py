"""The example of random agents steps a batch and tells every family apart."""

import re

import pytest

from phalanx.arc import FAMILIES
from tests.helpers.example_runs import run_example


def test_the_families_share_out_all_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("arc/random_policy.py", "--batch-size", 128, "--steps", 12, "--tasks", 30)
    told = capsys.readouterr().out
    assert "128 environments, observations (128, 4, 4) of int8" in told
    rows = re.findall(r"^(\w+) +(\d+) +([\d.]+)% +([\d.]+)$", told, re.MULTILINE)
    *families, (last, total, _, similarity) = rows
    assert (last, total) == ("all", "128") and 0 < float(similarity) < 1
    assert sum(int(episodes) for _, episodes, _, _ in families) == 128
    assert {name for name, *_ in families} <= set(FAMILIES)
