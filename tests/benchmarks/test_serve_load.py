"""The load on the server, in small: every session plays, and every episode is solved."""

import json
import sys

import pytest
import serve_load as benchmark


def test_sessions_play_side_by_side_and_their_latency_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--kind lights_out --difficulty easy --sessions 5 --seconds 1 --think 0"
    monkeypatch.setattr(sys, "argv", ["serve_load.py", *options.split()])
    assert benchmark.main() == 0
    [record] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (record["sessions"], record["kind"]) == (5, "lights_out") and record["episodes"] > 5
    assert 0 < record["latency_ms_p50"] <= record["latency_ms_p99"] <= record["latency_ms_worst"]


def test_the_load_is_bounded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_load.py", "--sessions", "10001"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "at most 10,000 sessions and 120 seconds" in capsys.readouterr().err
