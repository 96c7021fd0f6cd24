"""`phalanx train`, `phalanx eval` and `phalanx demo`, as a user runs them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phalanx import load_policy
from phalanx.cli.app import app
from phalanx.training import PPOConfig
from tests.helpers import small_training
from tests.helpers.file_damage import limited_file_size

pytestmark = pytest.mark.slow

# The same settings as in tests/training, so that compiled programs are reused.
SMALL = (*small_training.SMALL, "evaluation.num_sampled_attempts=2", "logging.sample_frequency=1")
DESCENT = str(Path(__file__).parents[1] / "helpers" / "descent.py")
LARGE_DESCENT = str(Path(__file__).parents[1] / "helpers" / "large_descent.py")
"""The smallest algorithm; it compiles at once."""


@contextlib.contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    saved = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("train") / "run"
    arguments = ["train", "ppo", "--env", "arc", *SMALL, "--out", str(out)]
    # XLA writes to the file descriptor, not to `sys.stderr`.
    with (out.parent / "stderr").open("w+b") as file, redirected(2, file.fileno()):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert (done.stderr, (out.parent / "stderr").read_text()) == ("", "")
    return out, done.stdout


def test_last_line_contains_the_paths_of_the_outputs(run: tuple[Path, str]) -> None:
    out, printed = run
    assert (
        printed.strip().splitlines()[-1]
        == f"Run {out}, report {out}/report.html, checkpoint {out}/checkpoints"
    )
    assert (out / "report.html").exists()
    assert "Success rate (evaluation, 4 episodes): " in printed
    assert "Baselines: copy input 0.0%, do nothing 0.0%" in printed
    assert "left" in printed


def test_existing_run_is_not_changed(run: tuple[Path, str], phalanx: Callable[..., Any]) -> None:
    out, _ = run
    before = (out / "run.json").read_bytes()
    again = phalanx("train", "ppo", "--env", "arc", *SMALL, "--out", out)
    assert again.code == 2
    assert "add --resume to continue the run in it, or choose another --out" in again.err
    assert (out / "run.json").read_bytes() == before


def test_eval_prints_greedy_and_sampled_scores(run: tuple[Path, str], phalanx: Callable[..., Any]) -> None:
    out, _ = run
    done = phalanx("eval", out, "--json", "num_sampled_attempts=8")
    assert done.code == 0, done.err
    greedy, sampled = (json.loads(line) for line in done.out.splitlines())
    assert (greedy["mode"], greedy["num_episodes"], greedy["split"]) == ("greedy", 4, "evaluation")
    assert (sampled["mode"], sampled["num_samples"], list(sampled["pass_at_k"])) == ("sampled", 8, ["1", "8"])
    assert greedy["baselines"] == {"copy_input": 0.0, "do_nothing": 0.0}


def test_eval_of_a_dataset_writes_a_submission(
    run: tuple[Path, str], tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out, _ = run
    pairs = [{"input": [[0, side], [side, 0]], "output": [[side]]} for side in (1, 2)]
    file, large = tmp_path / "my tasks", {"train": [], "test": [{"input": [[1] * 9] * 9}]}
    file.mkdir()
    (file / "small.json").write_text(json.dumps({"train": pairs[:1], "test": pairs}))
    (file / "large.json").write_text(json.dumps(large))
    done = phalanx("eval", out, f"dataset={file}", "num_attempts=2", "--per-task", "--json", "--untrained")
    assert done.code == 0, done.err
    result, *rows = (json.loads(line) for line in done.out.splitlines())
    assert (result["num_tasks"], result["num_fitting"], result["attempts"], result["untrained"]) == (
        2,
        1,
        2,
        True,
    )
    assert {row["task"]: row["fits_canvas"] for row in rows} == {"small": True, "large": False}
    submission = json.loads((Path(result["folder"]) / "submission.json").read_text())
    assert [sorted(answer) for answer in submission["small"]] == [["attempt_1", "attempt_2"]] * 2
    assert Path(result["folder"]).name.endswith("my-tasks-untrained"), "what a trained policy hands in stays"
    assert "Submission: " in (out / "report.html").read_text()


def test_all_seeds_are_reported_and_evaluated(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    done = phalanx("train", "ppo", "--env=arc", *SMALL, "num_updates=2", "--seeds", "2", "--out", out)
    assert done.code == 0, done.err
    assert "interquartile mean of 2 seeds" in done.out
    page = (out / "report.html").read_bytes()
    assert phalanx("report", out).code == 0
    assert (out / "report.html").read_bytes() == page
    result = phalanx("eval", out, "--json", "num_sampled_attempts=0")
    assert result.code == 0, result.err
    assert [json.loads(line)["seed"] for line in result.out.splitlines()] == [0, 1]
    one = phalanx("eval", out / "seed_1", "num_sampled_attempts=0")
    assert one.out.startswith("seed 1\n")
    assert one.out.splitlines()[-1] == "Baselines: submitting the input solves 0.0%, submitting nothing 0%"


def test_print_config_and_list_settings_do_not_train(
    phalanx: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = phalanx(
        "train", "ppo", "--env=arc", "lr=0.5", "max_grad_norm=null", "--seed=7", "--print-config"
    )
    assert printed.code == 0, printed.err
    (tmp_path / "mine.yaml").write_text(printed.out)
    config = PPOConfig.load("mine.yaml")
    assert config == PPOConfig.load("arc", ["lr=0.5", "max_grad_norm=null", "seed=7"])
    assert (config.env.id, config.optimizer.learning_rate, config.seed) == ("arc-v2", 0.5, 7)
    listed = phalanx("train", "bc", "--env=arc", "--list-settings")
    assert listed.code == 0, listed.err
    assert "env.dataset.num_generated_tasks: int = " in listed.out
    assert "expert_prob_start: float = 1.0" in listed.out
    assert "clip_eps: float = 0.2" in phalanx("train", "ppo", "--list-settings").out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml"]


def test_environment_network_and_algorithm_files_can_be_trained_and_evaluated(
    tmp_path: Path, phalanx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walks.py").write_text(WALKS)
    small = ("num_envs=4", "num_steps=4", "num_updates=2", "num_minibatches=1", "evaluation.num_episodes=3")
    done = phalanx("train", "ppo", "--env=walks.py:Walk", "env.max_episode_steps=5", *small, "--out=run")
    assert done.code == 0, done.err
    result = phalanx("eval", "run", "--json", "num_episodes=4")
    assert result.code == 0, result.err
    assert json.loads(result.out)["num_episodes"] == 4
    assert phalanx("eval", "run", "--json", "--seed=0", "num_episodes=4").out == result.out
    assert phalanx("eval", "run", "--seed=1").out.startswith("train, greedy: ")
    rejected = phalanx("eval", "run", "every=5")
    assert (rejected.code, "every is a setting for training only" in rejected.err) == (2, True)
    other = phalanx("train", "ppo", "--env=walks.py:SPEC", "--out=run", "--extend=3")
    assert (other.code, "not in walks.py:SPEC: remove --env" in other.err) == (2, True)
    extended = phalanx("train", "ppo", "--env=walks.py:Walk", "--out=run", "--extend=3")
    assert extended.code == 0, extended.err
    network = ("--env=walks.py:SPEC", "--network=walks.py:WalkNetwork")
    done = phalanx("train", "walks.py", *network, *small, "--out=own")
    assert done.code == 0, done.err
    facts = json.loads((tmp_path / "own" / "run.json").read_text())
    assert (facts["algorithm"], facts["entry_point"]) == ("own_ppo", f"{tmp_path}/walks.py:OwnPPO")
    assert phalanx("eval", "own", "--untrained").code == 0
    policy = load_policy("own")
    assert type(policy.network).__name__ == "WalkNetwork"
    assert policy.config.network_path == f"{tmp_path}/walks.py:WalkNetwork"


WALKS = """
from phalanx.core import EnvSpec
from phalanx.training import PPO
from tests.helpers.short_walk import ShortWalk, WalkNetwork

class Walk(ShortWalk):
    max_episode_steps: int = 8
    \"\"\"Number of steps
    until the walk ends.\"\"\"

SPEC = EnvSpec(make=Walk)

class OwnPPO(PPO):
    name = "own_ppo"
"""


def test_settings_of_an_environment_file_are_listed_with_their_docstrings(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    (tmp_path / "walks.py").write_text(WALKS)
    for name in ("Walk", "SPEC"):
        listed = phalanx("train", "ppo", f"--env={tmp_path}/walks.py:{name}", "--list-settings")
        assert listed.code == 0, listed.err
        lines = listed.out.splitlines()
        number = lines.index("env.max_episode_steps: int = 8")
        assert lines[number + 1 : number + 3] == [
            "    Number of steps until the walk ends.",
            "env.num_cells: int = 6",
        ]
        assert "network.hidden_dim: int = 64" in lines
        assert "evaluation.num_episodes: int = 20" in lines


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_a_checkpoint_and_sets_the_exit_code(
    tmp_path: Path, asked: signal.Signals, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    long = "num_updates=1000000"
    command = [sys.executable, "-m", "phalanx", "train", DESCENT, long, "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics, began = out / "batch_metrics.jsonl", time.monotonic()
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < began + 120:
        time.sleep(0.1)
    again = phalanx("train", DESCENT, "--out", out, "--resume")
    assert again.code == 2
    assert f"{out} is in use by process {child.pid} on" in again.err
    child.send_signal(asked)
    printed, complaint = child.communicate(timeout=120)
    assert (child.returncode, complaint) == (128 + asked, "")
    assert "Interrupted after" in printed
    assert f"--out {out} --resume" in printed
    facts = json.loads((out / "run.json").read_text())
    assert facts["status"] == "interrupted"
    assert (out / "checkpoints" / str(facts["updates"])).is_dir()
    assert not (out / "run.lock").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ppo", "--env=arc", "num_env=3"], "did you mean 'num_envs'?"),
        (["train", "ppo", "num_envs=3"], "no environment was chosen: set env.id (--env)"),
        (["train", "ppo", "--env=ark"], "unknown environment 'ark'; did you mean 'arc-v2'?"),
        (["train", "ppo", "--env=sudoku"], "'sudoku' is a text environment"),
        (["train", "ppo", "--env=arc", "env.id=proofs"], "contradict each other"),
        (["train", "pto"], "unknown algorithm 'pto'; did you mean 'ppo'?"),
        (["train", "ppo", "--env=arc", "ppo.clip=3"], "unknown key 'ppo.clip'; did you mean 'clip_eps'?"),
        (["train", "kge", "--env=arc"], "set dataset=PATH"),
        (["train", "ppo", "--env=arc", "--tracker=wb"], "unknown tracker 'wb'; choose from"),
        (["train", "ppo", "--env=arc", "--init-from=/nowhere"], "/nowhere"),
        (["train", "ppo", "--out={run}", "--resume", "--auto-resume"], "cannot be combined"),
        (["train", "ppo", "--out={run}", "--resume", "--config=arc"], "remove --config"),
        (["train", "ppo", "--out={run}", "--resume", "--init-from=x"], "remove one of them"),
        (["train", "ppo", "--out={run}", "--resume", "--env=proofs"], "trained in arc-v2, not in proofs"),
        (["train", "bc", "--out={run}", "--resume"], "is a run of 'ppo' and cannot be resumed with 'bc'"),
        (["train", "ppo", "--out={run}", "--extend=2"], "can be extended, but not shortened to 2"),
        (
            ["train", "ppo", "--env=arc", *SMALL, "env.action.selection_format=mask"],
            "set action.selection_format to point or bbox",
        ),
        (["train", "ppo", "--env=arc", *SMALL, "num_minibatches=7"], "num_minibatches must divide"),
        (["train", "ppo", "--config=arc_single"], "did you mean 'arc_single_family'?"),
        (["train", "ppo", "--resume"], "--resume requires --out"),
        (["eval", "/nowhere"], "is not a run"),
        (["eval", "{run}", "--out", "x"], "--out: this evaluation writes no files"),
        (["eval", "{run}", "dataset=no-such-data"], "no such file or folder"),
        (["eval", "{run}", "num_sampled_attempt=3"], "did you mean 'num_sampled_attempts'?"),
        (["eval", "{run}", "--env", "arc"], "can only be evaluated in its own environment"),
    ],
)
def test_invalid_arguments_exit_with_one_line_and_code_2(
    arguments: list[str], message: str, phalanx: Callable[..., Any], run: tuple[Path, str]
) -> None:
    done = phalanx(*(argument.format(run=run[0]) for argument in arguments))
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_run_that_does_not_fit_on_the_disk_exits_with_code_1_and_can_be_continued(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    command = ("train", LARGE_DESCENT, "--out", tmp_path / "run", "--auto-resume")
    with limited_file_size(100_000):
        done = phalanx(*command)
    assert done.code == 1
    assert done.err.count("\n") == 1 and "run could not be saved: [Errno 27] File too large" in done.err
    assert "large_descent, failed, 0 updates" in phalanx("doctor", tmp_path / "run").out
    assert phalanx(*command).code == 0
    assert "large_descent, finished, 6 updates" in phalanx("doctor", tmp_path / "run").out


def test_demo_trains_in_a_new_folder_each_time(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    (tmp_path / "demo").mkdir()
    small = [setting for setting in SMALL if not setting.startswith("num_minibatches")]
    few = (
        "num_updates=2",
        "num_envs=4",
        "num_steps=4",
        "env.dataset.tasks_per_update=4",
    )
    done = phalanx("demo", *small, *few, "--seed", "3", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    assert done.out.strip().endswith(f"checkpoint {tmp_path}/demo-2/checkpoints")
    assert list((tmp_path / "demo").iterdir()) == []
