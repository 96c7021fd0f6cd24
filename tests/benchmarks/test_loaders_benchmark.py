"""The comparison of loaders counts what came, what a kill lost and what came twice."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import compare_loaders
import loaders_runner
import token_facts


@pytest.fixture
def data(tmp_path: Path) -> loaders_runner.Stored:
    lengths = token_facts.draw_lengths("lognormal", 300)
    np.save(tmp_path / "lengths.npy", lengths)
    np.save(tmp_path / "tokens.npy", np.repeat(np.arange(1, 301, dtype=np.int32), lengths))
    return loaders_runner.Stored(tmp_path)


@pytest.mark.parametrize("name", ["phalanx", "phalanx streaming"])
def test_every_token_comes_once_over_a_kill(name: str, data: loaders_runner.Stored, tmp_path: Path) -> None:
    loader = loaders_runner.LOADERS[name]()
    loader.prepare(tmp_path, data)
    batches, state_of = loader.open(tmp_path, data, None)
    killed = loaders_runner.read(batches, len(data), 2)
    assert killed["batches"] == 2 and 0 < killed["tokens"] < data.lengths.sum()
    resumed = loaders_runner.read(loader.open(tmp_path, data, state_of())[0], len(data))
    assert (killed["counts"] + resumed["counts"])[1:].tolist() == data.lengths.tolist()
    again = loaders_runner.read(loader.open(tmp_path, data, None)[0], len(data))
    assert again["tokens"] == data.lengths.sum() <= again["slots"]


def test_a_loader_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_loaders.py", "--loaders", "nobody"])
    with pytest.raises(SystemExit):
        compare_loaders.main()
    assert "unknown loader 'nobody'; there are phalanx, phalanx streaming, trl" in capsys.readouterr().err
