"""The soak, in small: the jobs run side by side, what they did is counted, and growth is told."""

import json

import pytest
import soak
from arcade_server import MISSING, installed_server


def test_serving_and_collecting_run_side_by_side_for_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    if installed_server() is None:
        pytest.skip(MISSING)
    code = soak.main(["--minutes", "0.02", "--every", "0.3", "--jobs", "serving", "collecting"])
    *processes, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (code, summary["errors"]) == (0, [])
    assert [one["process"] for one in processes] == ["collecting", "serving"]
    assert summary["served_episodes"] > 0 and summary["collected_episodes"] > 0
    assert not summary["growth_judged"]


def test_growth_is_told_and_noise_is_not() -> None:
    flat = {"process": "it", "memory_mb": [100.0, 101.0, 101.9], "descriptors": [9, 12, 9]}
    assert soak.grown(flat) == []
    grew = {"process": "it", "memory_mb": [1000.0, 1010.0, 1021.0], "descriptors": [9, 9, 10]}
    assert soak.grown(grew) == ["it grew from 1000.0 to 1021.0 MB", "it went from 9 to 10 descriptors"]


def test_the_soak_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--minutes", "241"])
    assert "at most 240" in capsys.readouterr().err
