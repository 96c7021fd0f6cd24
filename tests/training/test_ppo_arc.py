"""Runs of PPO on ARC: files, logs, rejected resumes, and a full disk."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.logging import Handler
from phalanx.logging.report import load_run
from phalanx.training import PPO, Checkpointer, TrainResult, run_dir as runs, train
from tests.helpers.small_training import metrics_of, small_config, small_handlers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Train for six updates without interruption."""
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    return train(PPO(small_config()), folder, handlers=small_handlers)


def bits(tree) -> list[np.ndarray]:
    arrays = jax.tree.map(
        lambda leaf: (
            jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ),
        tree,
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(arrays)]


def test_run_has_the_documented_files(complete_run: TrainResult) -> None:
    metadata = runs.load_metadata(complete_run.run_dir)
    assert metadata["status"] == "finished"
    assert (metadata["algorithm"], metadata["updates"], metadata["env_steps"]) == ("ppo", 6, 6 * 8 * 4)
    assert metadata["families"] == ["fill_enclosed"]
    assert sorted(metrics_of(complete_run.run_dir)) == [1, 2, 3, 4, 5, 6]
    lines = (complete_run.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 6]
    assert json.loads(lines[1])["env_steps"] == 6 * 8 * 4
    assert runs.load_run_config(complete_run.run_dir, type(small_config())) == small_config()
    assert load_run(complete_run.run_dir).notes == []


def test_sampled_episodes_are_complete_and_rendered_step_by_step(complete_run: TrainResult) -> None:
    episodes = [
        json.loads(line) for line in (complete_run.run_dir / "episodes.jsonl").read_text().splitlines()
    ]
    assert [episode["episode_num"] for episode in episodes] == [3, 3, 6, 6]
    for episode in episodes:
        folder = (
            complete_run.run_dir
            / "episodes"
            / f"episode_{episode['episode_num']:06d}_env_{episode['environment_id']:04d}"
        )
        steps = sorted(folder.glob("step_*.svg"))
        assert len(steps) == episode["total_steps"] >= 1
        assert (folder / "initial.svg").exists() and (folder / "final.svg").exists()


def test_data_fingerprint_depends_on_the_tasks() -> None:
    first, same, other = (PPO(small_config(f"env.dataset.seed={seed}")).fingerprint() for seed in (0, 0, 5))
    assert first == same != other


def test_checkpoint_of_another_config_is_rejected(complete_run: TrainResult, tmp_path: Path) -> None:
    other = small_config("gamma=0.5")
    run = runs.create_run(tmp_path / "other", other, {"algorithm": "ppo"})
    shutil.copytree(complete_run.run_dir / "checkpoints", run / "checkpoints")
    with pytest.raises(ValueError, match="saved with a config that differs"):
        train(PPO(other), run, resume=True, handlers=small_handlers)


def test_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    run = runs.create_run(tmp_path / "run", small_config(), {"algorithm": "ppo"})
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        train(PPO(small_config()), run, resume=True, handlers=small_handlers)


class FullDisk(Handler):
    """A handler that fails as on a full disk."""

    def log_aggregated_metrics(self, metrics, step) -> None:
        raise OSError(28, "No space left on device")


def test_full_disk_is_reported_and_training_continues(
    complete_run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    save = Checkpointer.save

    def save_last(self, step, *args) -> None:
        if step < 6:
            raise OSError(28, "No space left on device")
        save(self, step, *args)

    monkeypatch.setattr(Checkpointer, "save", save_last)
    outcome = train(
        PPO(small_config()), tmp_path / "run", handlers=lambda folder, config: {"disk": FullDisk()}
    )
    assert outcome.update == 6
    for ours, theirs in zip(bits(outcome.state), bits(complete_run.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    log = caplog.text
    assert "handler 'disk' failed in log_aggregated_metrics" in log
    assert log.count("a checkpoint could not be saved: OSError") == 1
    assert "a checkpoint could not be saved, 2 times in this run" in log


def test_next_free_name_is_numbered(tmp_path: Path) -> None:
    assert runs.next_free_dir(tmp_path / "arc") == tmp_path / "arc"
    (tmp_path / "arc").mkdir()
    (tmp_path / "arc-2").mkdir()
    assert runs.next_free_dir(tmp_path / "arc") == tmp_path / "arc-3"
