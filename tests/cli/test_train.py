"""`phalanx train`, `phalanx eval` and `phalanx demo`, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import small_training

pytestmark = pytest.mark.slow

# The same as the tests of the training have, so that what those compiled is found again.
SMALL = (*small_training.SMALL, "evaluation.num_samples=2", "logging.sample_frequency=1")
DESCENT = str(Path(__file__).parents[1] / "helpers" / "descent.py")
"""The smallest algorithm; it compiles at once."""


def in_a_process(*arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("train") / "run"
    done = in_a_process("train", "arc", *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out, done.stdout


def test_the_last_line_says_where_everything_is(run: tuple[Path, str]) -> None:
    out, said = run
    assert (
        said.strip().splitlines()[-1] == f"Run {out}, report {out}/report.html, checkpoint {out}/checkpoints"
    )
    assert (out / "report.html").exists()
    assert "Success rate on held-out tasks: " in said
    assert "Baselines: copy_input 0.0%, do_nothing 0.0%" in said
    assert "left" in said


def test_a_run_that_exists_is_left_alone(run: tuple[Path, str], phalanx: Callable[..., Any]) -> None:
    out, _ = run
    before = (out / "run.json").read_bytes()
    again = phalanx("train", "arc", *SMALL, "--out", out)
    assert again.code == 2
    assert "add --resume to continue the run in it, or choose another --out" in again.err
    assert (out / "run.json").read_bytes() == before


def test_an_evaluation_tells_greedy_and_sampled_scores(
    run: tuple[Path, str], phalanx: Callable[..., Any]
) -> None:
    out, _ = run
    done = phalanx("eval", out, "--json", "--attempts", "8")
    assert done.code == 0, done.err
    greedy, sampled = (json.loads(line) for line in done.out.splitlines())
    assert (greedy["mode"], greedy["num_episodes"], greedy["split"]) == ("greedy", 4, "evaluation")
    assert (sampled["mode"], sampled["num_samples"], list(sampled["pass_at_k"])) == ("sampled", 8, ["1", "8"])
    assert greedy["baselines"] == {"copy_input": 0.0, "do_nothing": 0.0}


def test_answers_to_a_file_are_handed_in_and_written_as_a_submission(
    run: tuple[Path, str], tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out, _ = run
    pairs = [{"input": [[0, side], [side, 0]], "output": [[side]]} for side in (1, 2)]
    file, large = tmp_path / "my tasks", {"train": [], "test": [{"input": [[1] * 9] * 9}]}
    file.mkdir()
    (file / "small.json").write_text(json.dumps({"train": pairs[:1], "test": pairs}))
    (file / "large.json").write_text(json.dumps(large))
    done = phalanx("eval", out, "--data", file, "--attempts", "2", "--tasks", "--json", "--untrained")
    assert done.code == 0, done.err
    told, *rows = (json.loads(line) for line in done.out.splitlines())
    assert (told["num_tasks"], told["num_fitting"], told["attempts"], told["untrained"]) == (2, 1, 2, True)
    assert {row["task"]: row["fits_canvas"] for row in rows} == {"small": True, "large": False}
    submission = json.loads((Path(told["folder"]) / "submission.json").read_text())
    assert [sorted(answer) for answer in submission["small"]] == [["attempt_1", "attempt_2"]] * 2
    assert Path(told["folder"]).name.endswith("my-tasks-untrained"), "what a trained policy hands in stays"
    assert "Submission: " in (out / "report.html").read_text()


def test_every_seed_is_reported_and_evaluated(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    done = phalanx("train", "arc", *SMALL, "ppo.num_updates=2", "--seeds", "2", "--out", out)
    assert done.code == 0, done.err
    assert "interquartile mean of 2 seeds" in done.out
    page = (out / "report.html").read_bytes()
    assert phalanx("report", out).code == 0
    assert (out / "report.html").read_bytes() == page
    told = phalanx("eval", out, "--json", "--attempts", "0")
    assert told.code == 0, told.err
    assert [json.loads(line)["seed"] for line in told.out.splitlines()] == [0, 1]
    one = phalanx("eval", out / "seed_1", "--attempts", "0")
    assert one.out.startswith("seed 1\n")
    assert one.out.splitlines()[-1] == "Baselines: submitting the input solves 0.0%, submitting nothing 0%"


@pytest.mark.parametrize(
    ("asked", "what", "long"),
    [
        (signal.SIGINT, ["arc"], [*SMALL, "ppo.num_updates=4000"]),
        (signal.SIGTERM, ["custom", DESCENT], ["num_updates=1000000"]),
    ],
)
def test_a_signal_saves_and_stops_with_its_exit_code(
    tmp_path: Path, asked: signal.Signals, what: list[str], long: list[str], phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "phalanx", "train", *what, *long, "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics, began = out / "batch_metrics.jsonl", time.monotonic()
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < began + 120:
        time.sleep(0.1)
    again = phalanx("train", *what, "--out", out, "--resume")
    assert again.code == 2
    assert f"{out} is in use by process {child.pid} on" in again.err
    child.send_signal(asked)
    said, complaint = child.communicate(timeout=120)
    assert child.returncode == 128 + asked, complaint
    assert "Interrupted after" in said
    assert f"--out {out} --resume" in said
    facts = json.loads((out / "run.json").read_text())
    assert facts["status"] == "interrupted"
    assert (out / "checkpoints" / str(facts["updates"])).is_dir()
    assert not (out / "run.lock").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "arc", "ppo.num_env=3"], "num_envs"),
        (
            ["train", "arc", *SMALL, "arc.action.selection_format=mask"],
            "set action.selection_format to point or bbox",
        ),
        (["train", "arc", *SMALL, "ppo.minibatches=7"], "minibatches must divide"),
        (["train", "arc", "--preset", "defualt"], "did you mean 'default'?"),
        (["train", "arc", "--resume"], "--resume needs --out"),
        (["train", "arc", "--process-id", "0"], "--coordinator, --process-id and --num-processes together"),
        (["eval", "/nowhere"], "is not a run"),
        (["eval", "{run}", "--out", "x"], "give --data, too"),
        (["eval", "{run}", "--data", "no-such-data"], "no such file or folder"),
        (["train", "sft", "--plan", "plan", "--env", "arc"], "--plan and --env cannot be combined"),
        (["train", "sft", "--dataset", "data.jsonl"], "--dataset requires --plan"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, phalanx: Callable[..., Any], run: tuple[Path, str]
) -> None:
    done = phalanx(*(argument.format(run=run[0]) for argument in arguments))
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_the_demo_trains_and_takes_a_new_folder_each_time(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    (tmp_path / "demo").mkdir()
    small = [setting for setting in SMALL if not setting.startswith("ppo.")]
    few = (
        "cloning.num_updates=2",
        "cloning.num_envs=4",
        "cloning.num_steps=4",
        "arc.dataset.tasks_per_update=4",
    )
    done = phalanx("demo", *small, *few, "--seed", "3", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    assert done.out.strip().endswith(f"checkpoint {tmp_path}/demo-2/checkpoints")
    assert list((tmp_path / "demo").iterdir()) == []
