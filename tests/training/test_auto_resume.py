"""Automatic resumption, extended runs, warm starts and the best checkpoint."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.evaluation import DictEvaluationResult
from phalanx.logging import read_records
from phalanx.training import (
    CheckpointConfig,
    EvaluationConfig,
    TrainState,
    load_metadata,
    train,
)
from phalanx.training.run_dir import run_status
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.policies import restore_policy

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.helpers.descent import Descent, DescentConfig
from phalanx.training import train
train(Descent(DescentConfig()), sys.argv[2], auto_resume=True,
      show=lambda progress: os.kill(os.getpid(), signal.SIGKILL))
"""


def config(**settings: object) -> DescentConfig:
    return DescentConfig(**settings)


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["metrics"]["loss"] for line in read_records(run / "batch_metrics.jsonl")}


def test_run_stopped_after_every_update_has_the_same_result(tmp_path: Path) -> None:
    uninterrupted = train(Descent(config(num_updates=10)), tmp_path / "uninterrupted")
    stops = 0
    while True:
        outcome = train(
            Descent(config(num_updates=10)),
            tmp_path / "run",
            auto_resume=True,
            show=lambda progress: os.kill(os.getpid(), signal.SIGTERM),
        )
        if not outcome.interrupted:
            break
        stops += 1
    assert stops == 9
    np.testing.assert_array_equal(outcome.state.params, uninterrupted.state.params)
    assert outcome.counts == uninterrupted.counts
    assert losses(outcome.run_dir) == losses(uninterrupted.run_dir)
    steps = [line["step"] for line in read_records(outcome.run_dir / "evaluations.jsonl")]
    assert steps == [0, 10]


def test_run_killed_before_its_first_checkpoint_is_restarted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, Path(__file__).parents[2], run], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert run_status(run) == "no_checkpoint"
    with pytest.raises(ValueError, match="no checkpoint to resume from: start it again with --auto-resume"):
        train(Descent(config()), run, resume=True)
    with pytest.raises(ValueError, match=r"was started with another config: rate: 0.5"):
        train(Descent(config(rate=0.25)), run, auto_resume=True)
    assert not train(Descent(config()), run, auto_resume=True).interrupted
    assert (run_status(run), load_metadata(run)["status"]) == ("finished", "finished")


def test_run_can_be_started_in_a_folder_left_by_a_killed_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("rate: 0")
    (run / ".run.json.123-00c0ffee.tmp").write_text("{")
    assert not train(Descent(config()), run, auto_resume=True).interrupted
    (other := tmp_path / "other").mkdir()
    (other / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="already exists and is not overwritten"):
        train(Descent(config()), other, auto_resume=True)


def test_finished_run_can_be_extended_repeatedly(tmp_path: Path) -> None:
    run = train(Descent(config(num_updates=2)), tmp_path / "run").run_dir
    longer = config(num_updates=4)
    with pytest.raises(ValueError, match="num_updates: 2"):
        train(Descent(longer), run, resume=True)
    outcome = train(Descent(longer), run, resume=True, extend=True)
    assert (outcome.update, outcome.interrupted) == (4, False)
    assert losses(run) == losses(train(Descent(longer), tmp_path / "at once").run_dir)
    assert restore_policy(Descent(longer), run) == outcome.state.params
    stopped = train(
        Descent(config(num_updates=6)),
        run,
        resume=True,
        extend=True,
        show=lambda progress: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert (stopped.update, stopped.interrupted) == (5, True)
    assert [one["update"] for one in load_metadata(run)["extended"]] == [2, 4]
    # The config of the run now has six updates, so resuming does not need `extend`.
    assert train(Descent(config(num_updates=6)), run, resume=True).update == 6
    with pytest.raises(ValueError, match="num_updates is 6: a run can be extended, but not shortened to 5"):
        train(Descent(config(num_updates=5)), run, resume=True, extend=True)


def test_run_killed_while_being_extended_can_be_resumed(tmp_path: Path) -> None:
    run = train(Descent(config(num_updates=2)), tmp_path / "run").run_dir
    text = (run / "config.yaml").read_text()
    train(Descent(config(num_updates=4)), run, resume=True, extend=True)
    # Simulate a kill after run.json was written, and before config.yaml and the next checkpoint were.
    (run / "config.yaml").write_text(text)
    (run / "checkpoints" / "4").rename(tmp_path / "gone")
    assert train(Descent(config(num_updates=3)), run, resume=True, extend=True).update == 3


def test_warm_start_uses_the_parameters_of_another_run_and_is_recorded(tmp_path: Path) -> None:
    first = train(Descent(config(checkpoint=CheckpointConfig(every=2, keep=9))), tmp_path / "first")
    outcome = train(Descent(config(seed=7)), tmp_path / "second", init_from=f"{first.run_dir}@4")
    start = float(first.evaluations[0]["distance"])
    assert outcome.evaluations[0]["distance"] == pytest.approx(start / 2**4)
    assert load_metadata(outcome.run_dir)["init_from"] == {
        "run": str(first.run_dir),
        "step": 4,
        "algorithm": "descent",
    }
    # The same command resumes the run instead of starting it again.
    again = train(Descent(config(seed=7)), outcome.run_dir, auto_resume=True, init_from=str(first.run_dir))
    np.testing.assert_array_equal(again.state.params, outcome.state.params)
    with pytest.raises(
        ValueError, match=r"was started from the parameters of .*/first, not from those of .*/third"
    ):
        train(Descent(config(seed=7)), outcome.run_dir, auto_resume=True, init_from=str(tmp_path / "third"))
    with pytest.raises(ValueError, match="has no checkpoint 3; available: 2, 4, 6"):
        train(Descent(config()), tmp_path / "third", init_from=f"{first.run_dir}@3")
    assert not (tmp_path / "third").exists()


def test_seeds_start_from_the_matching_seeds_or_from_a_single_run(tmp_path: Path) -> None:
    one = train(Descent(config()), tmp_path / "one").run_dir
    several = train(Descent(config(num_seeds=3)), tmp_path / "three")
    final_params = [float(seed.state.params) for seed in several.seeds]
    no_learning = {"num_updates": 1, "rate": 1.0}
    same = train(Descent(config(num_seeds=2, **no_learning)), tmp_path / "same", init_from=str(one))
    assert len({float(seed.state.params) for seed in same.seeds}) == 1
    own = train(Descent(config(num_seeds=3, **no_learning)), tmp_path / "own", init_from=str(several.run_dir))
    assert [float(seed.state.params) for seed in own.seeds] == final_params
    single = train(
        Descent(config(**no_learning)), tmp_path / "single", init_from=f"{several.run_dir}/seed_2@6"
    )
    assert float(single.state.params) == final_params[2]
    with pytest.raises(ValueError, match=r"has 3 seeds; choose one of them, such as .*seed_0"):
        train(Descent(config(**no_learning)), tmp_path / "rejected", init_from=str(several.run_dir))
    with pytest.raises(ValueError, match=r"has 3 seeds, but seed 3 is needed; choose one of them"):
        train(Descent(config(num_seeds=4)), tmp_path / "four", init_from=str(several.run_dir))


class Wide(Descent):
    """An algorithm with an array of four numbers as parameters."""

    def init(self, key, params=None):
        return TrainState(jnp.ones(4), (), jnp.int32(0))


class Deep(Descent):
    """An algorithm whose parameters have another structure."""

    def init(self, key, params=None):
        return TrainState({"head": jnp.float32(1), "trunk": jnp.zeros(2)}, (), jnp.int32(0))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Wide, r"has a different structure: .*float32\[\] there and float32\[4\] here"),
        (Deep, r"float32\[\] there and missing here; head is missing there and .* here; and 1 more"),
    ],
)
def test_parameters_of_another_architecture_are_rejected(
    tmp_path: Path, algorithm: type[Descent], message: str
) -> None:
    first = train(Descent(config(num_updates=1)), tmp_path / "first").run_dir
    with pytest.raises(ValueError, match=message):
        train(algorithm(config()), tmp_path / "second", init_from=str(first))


class BestAtThirdUpdate(Descent):
    """An algorithm whose evaluation is best after the third update."""

    def evaluate(self, state, settings, final):
        distance = abs(int(state.step) - 3.0)
        return [DictEvaluationResult({"split": "all", "mode": "greedy", "distance": distance, "name": "x"})]


def test_checkpoint_with_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    retention = CheckpointConfig(every=100, keep=1, best_metric="distance", best_mode="min")
    settings = config(evaluation=EvaluationConfig(every=1), checkpoint=retention)
    outcome = train(BestAtThirdUpdate(settings), tmp_path / "run")
    assert sorted(path.name for path in (outcome.run_dir / "checkpoints").iterdir()) == ["3", "6"]
    best, newest, default = (
        restore_policy(BestAtThirdUpdate(settings), outcome.run_dir, which) for which in ("best", 6, "newest")
    )
    assert best == newest * 8
    assert default == best, "the best checkpoint is the default"
    metadata = json.loads((outcome.run_dir / "checkpoints/3/metadata/metadata").read_text())
    assert metadata["metrics"] == {"distance": 0.0}
    # A resumed run keeps the best checkpoint.
    longer = settings.model_copy(update={"num_updates": 8})
    train(BestAtThirdUpdate(longer), outcome.run_dir, resume=True, extend=True)
    assert sorted(path.name for path in (outcome.run_dir / "checkpoints").iterdir()) == ["3", "8"]
    second = train(Descent(config(num_updates=1)), tmp_path / "second", init_from=f"{outcome.run_dir}@best")
    assert second.state.params == best / 2


def test_unknown_best_metric_is_rejected_with_the_available_metrics(tmp_path: Path) -> None:
    settings = config(checkpoint=CheckpointConfig(best_metric="succes_rate"))
    with pytest.raises(ValueError, match=r"not a metric of this run's evaluations; choose one of distance$"):
        train(BestAtThirdUpdate(settings), tmp_path / "run")
    run = train(BestAtThirdUpdate(config()), tmp_path / "without_best").run_dir
    with pytest.raises(
        ValueError, match=r"has no best checkpoint: it was trained without checkpoint.best_metric"
    ):
        restore_policy(BestAtThirdUpdate(config()), run, "best")
