"""`--auto-resume`, `--extend`, `--init-from` and unusual folders on the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"


def facts(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def test_auto_resume_starts_a_run_and_reports_a_finished_one(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    command = ("train", DESCENT, "num_updates=3", "--out", out, "--auto-resume")
    first = phalanx(*command)
    assert first.code == 0
    assert "Finished after 3 updates" in first.out
    written = (out / "run.json").read_bytes()
    second = phalanx(*command)
    assert (second.code, second.err) == (0, "")
    assert second.out == (f"{out} is finished after 3 updates; use --extend N to continue up to update N.\n")
    assert (out / "run.json").read_bytes() == written
    other = phalanx(*command, "rate=0.25")
    assert other.code == 2
    assert "was started with another config: rate: 0.5 (now rate: 0.25)" in other.err


def test_extend_continues_a_finished_run_and_can_be_repeated(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    assert phalanx("train", DESCENT, "num_updates=2", "--out", out).code == 0
    for output in ("Finished after 4 updates", "is finished after 4 updates"):
        done = phalanx("train", DESCENT, "--out", out, "--extend", "4")
        assert done.code == 0, done.err
        assert output in done.out
    again = phalanx("train", DESCENT, "--out", out, "--extend", "5", "--auto-resume")
    assert "Finished after 5 updates" in again.out
    assert [one["update"] for one in facts(out)["extended"]] == [2, 4]
    shorter = phalanx("train", DESCENT, "--out", out, "--extend", "3")
    assert shorter.code == 2
    assert "num_updates is 5: a run can be extended, but not shortened to 3" in shorter.err


def test_resume_requires_an_existing_run(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    nothing = phalanx("train", DESCENT, "--out", out, "--resume")
    assert nothing.code == 2
    assert "is not a run" in nothing.err
    assert phalanx("train", DESCENT, "num_updates=2", "--out", out).code == 0
    # The argument after --resume is a setting, not a value of the flag.
    assert phalanx("train", DESCENT, "--out", out, "--resume", "num_updates=2").code == 0
    assert phalanx("train", DESCENT, "--out", out, "--resume", "num_updates=3").code == 2


@pytest.mark.parametrize("name", ["a[1]", "a\\b"])
def test_run_folder_with_special_characters_works(
    tmp_path: Path, phalanx: Callable[..., Any], name: str
) -> None:
    out = tmp_path / name / "run"
    train = ("train", "ppo", "--env", "tests.helpers.short_walk:ShortWalk", "--out", out)
    small = ("num_envs=4", "num_steps=4", "num_updates=2", "num_minibatches=1", "evaluation.num_episodes=3")
    assert phalanx(*train, *small, "checkpoint.best_metric=success_rate").code == 0
    extended = phalanx(*train, "--extend", "3")
    assert extended.code == 0, extended.err
    copy = tmp_path / name / "copy"
    shutil.copytree(out, copy)
    scores = [json.loads(phalanx("eval", run, "--json").out) for run in (out, copy, f"{copy}@best")]
    assert all("success_rate" in score for score in scores)
    assert scores[0]["success_rate"] == scores[1]["success_rate"]


def test_init_from_starts_with_the_parameters_of_another_run(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert phalanx("train", DESCENT, "checkpoint.best_metric=distance", "--out", first).code == 0
    done = phalanx("train", DESCENT, "seed=3", "--out", second, "--init-from", f"{first}@best")
    assert done.code == 0, done.err
    assert facts(second)["init_from"] == {"run": str(first), "step": 0, "algorithm": "descent"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--auto-resume"], "--auto-resume requires --out"),
        (["--extend", "9"], "--extend requires --out"),
        (
            ["--extend", "9", "--out", "x", "--config", "y.yaml"],
            "uses the config of the run: remove --config",
        ),
        (["--resume", "--out", "x", "--init-from", "y"], "--init-from starts one: remove one of them"),
        (["--init-from", "/nowhere"], "/nowhere is not a run"),
    ],
)
def test_conflicting_flags_are_rejected(
    arguments: list[str], message: str, phalanx: Callable[..., Any]
) -> None:
    done = phalanx("train", DESCENT, *arguments)
    assert done.code == 2
    assert message in done.err
