"""The example of an environment of one's own conforms to the protocol, and what it draws are its rules."""

import itertools
import re

import pytest

from tests.helpers.example_runs import run_example

# Pressing a lamp switches it and its neighbours; lamps in reading order.
CROSSES = {
    (0, 1, 3),
    (0, 1, 2, 4),
    (1, 2, 5),
    (0, 3, 4, 6),
    (1, 3, 4, 5, 7),
    (2, 4, 5, 8),
    (3, 6, 7),
    (4, 6, 7, 8),
    (5, 7, 8),
}


def test_it_conforms_is_trained_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("custom/environment.py", "--updates", 4, "--num-envs", 64)
    told = capsys.readouterr().out
    assert "LightsOut passes 16 checks" in told
    assert [int(number) for number in re.findall(r"^update +(\d+):", told, re.MULTILINE)] == [1, 2, 3, 4]
    rows = [re.findall(r"[.#] [.#] [.#]", line) for line in told.splitlines() if set(line) <= set(".# ")]
    boards = ["".join(parts).replace(" ", "") for parts in zip(*rows, strict=True)]
    assert len(boards) > 1 and all(len(board) == 9 for board in boards)
    for before, after in itertools.pairwise(boards):
        assert tuple(lamp for lamp in range(9) if before[lamp] != after[lamp]) in CROSSES
    presses, success = re.findall(r"^solved in (\d+) presses: (\w+)$", told, re.MULTILINE)[0]
    assert int(presses) == len(boards) - 1 and (success == "True") == ("#" not in boards[-1])
