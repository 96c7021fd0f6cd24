"""The benchmark of puzzles: every part gives a record for each kind and difficulty, in small."""

import json
import sys

import pytest

import puzzles as benchmark
from phalanx.puzzles import puzzle_kinds

CASES = {(kind.name, level) for kind in puzzle_kinds() for level in kind.difficulties}


def test_text_steps_are_measured_for_every_kind_and_held_against_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--json --parts steps --batch 2 --seconds 0.001 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["puzzles.py", *options.split()])
    # How fast it is under the tests' checks of types is not what is asked.
    assert benchmark.main() in (0, 1)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(record["kind"], record["difficulty"]) for record in records} == CASES
    assert all(record["batch"] == 2 and record["steps_per_cpu_second_median"] > 0 for record in records)


def test_environments_with_words_are_measured_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--json --parts environments --batch 2 --seconds 0.001 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["puzzles.py", *options.split()])
    assert benchmark.main() in (0, 1)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["kind"] for record in records] == ["arc-v2", "proofs-v1"]
    assert all(record["steps_per_cpu_second_median"] > 0 for record in records)


def test_every_comparison_names_a_kind_and_parameters_that_its_maker_takes() -> None:
    for work in benchmark.WORKS:
        [kind] = [kind for kind in puzzle_kinds() if kind.name == work.kind]
        if work.difficulty not in kind.difficulties:
            assert len(work.difficulty.split(",")) == len(kind.difficulties["hard"])
        assert isinstance(json.loads(work.settings), dict)
