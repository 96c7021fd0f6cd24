"""`phalanx demo`: it runs, says what happened, and leaves one whole drawing."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from phalanx.cli import app
from phalanx.cli.demo import Run
from phalanx.cli.errors import UserError

ARGUMENTS = ["demo", "--envs", "16", "--steps", "20"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*ARGUMENTS, *arguments])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    return run("--out", str(out)), out


def test_it_prints_speed_episodes_success_and_a_row_for_each_family_met(first: tuple[Result, Path]) -> None:
    result, _ = first
    assert result.exit_code == 0, result.output or result.exception
    steps, per_second, episodes, solved = re.search(
        r"([\d,]+) steps at ([\d,]+) steps/s; ([\d,]+) episodes, ([\d.]+)% solved", result.output
    ).groups()
    # Solved episodes stop early; the others take all of their 20 steps.
    assert 16 <= int(steps) <= 16 * 20
    assert int(per_second.replace(",", "")) > 0
    assert episodes == "16"
    assert 0 <= float(solved) <= 100
    rows = re.findall(r"│ (\w+) +│ +(\d+) │ +[\d.]+% │ +[\d.]+ │ +[\d.]+ │", result.output)
    assert sum(int(count) for _, count in rows) == 16


def test_it_draws_an_episode_with_its_target_and_leaves_nothing_else(first: tuple[Result, Path]) -> None:
    result, out = first
    assert [path.name for path in out.iterdir()] == ["episode.svg"]
    assert str(out / "episode.svg") in result.output
    drawing = (out / "episode.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "Target" in drawing
    assert "Random agent on" in drawing


def test_the_same_seed_draws_the_same_episode(first: tuple[Result, Path], tmp_path: Path) -> None:
    assert run("--out", str(tmp_path), "--seed", "0").exit_code == 0
    assert (tmp_path / "episode.svg").read_bytes() == (first[1] / "episode.svg").read_bytes()


def test_an_out_folder_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    blocked = tmp_path / "taken"
    blocked.write_text("here already")
    result = run("--out", str(blocked))
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"{blocked}: File exists"


def test_nonsense_sizes_are_refused_with_exit_code_2() -> None:
    result = CliRunner().invoke(app, ["demo", "--envs", "0"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("solved", "start", "end", "best"),
    [
        ([False, False, False], [0.5, 0.2, 0.9], [0.6, 0.7, 0.9], 1),  # the most similarity gained
        ([True, False, True], [0.9, 0.0, 0.8], [1.0, 0.9, 1.0], 2),  # a solved one goes first
    ],
)
def test_the_best_episode_is_a_solved_one_then_the_one_that_gained_most(
    solved: list[bool], start: list[float], end: list[float], best: int
) -> None:
    class States:
        def __init__(self, similarity: list[float]) -> None:
            self.solved = np.array(solved)
            self.similarity_score = np.array(similarity)

    run = Run(initial=States(start), final=States(end), actions=[], seconds=1.0)  # type: ignore[arg-type]
    assert run.best() == best
