"""Long runs of several jobs, for a second."""

import json

import pytest

from benchmarks import soak
from tests.helpers.puzzle_server import MISSING, installed_server


def test_serving_and_collecting_run_together(capsys: pytest.CaptureFixture[str]) -> None:
    if installed_server() is None:
        pytest.skip(MISSING)
    code = soak.main(["--minutes", "0.02", "--every", "0.3", "--jobs", "serving", "collecting"])
    *processes, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (code, summary["errors"]) == (0, [])
    assert [one["process"] for one in processes] == ["collecting", "serving"]
    assert summary["served_episodes"] > 0 and summary["collected_episodes"] > 0
    assert not summary["growth_checked"]


def test_growth_is_reported_but_noise_is_not() -> None:
    flat = {"process": "job", "memory_mb": [100.0, 101.0, 101.9], "descriptors": [9, 12, 9]}
    assert soak.find_growth(flat) == []
    grown = {"process": "job", "memory_mb": [1000.0, 1010.0, 1021.0], "descriptors": [9, 9, 10]}
    assert soak.find_growth(grown) == [
        "job grew from 1000.0 to 1021.0 MB",
        "job went from 9 to 10 descriptors",
    ]


def test_the_duration_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--minutes", "241"])
    assert "at most 240" in capsys.readouterr().err
