"""A training as a whole: its folder, its logs, its end at any time, and going on with it."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.logging import Handler
from phalanx.logging.report import read_run
from phalanx.training import PPO, TrainResult, run_dir as runs, train
from tests.helpers.small_training import metrics_of, small_config, small_handlers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Six updates without a pause."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train(PPO(small_config()), folder, handlers=small_handlers)


def test_a_policy_that_the_page_can_run_is_exported_for_the_report(
    whole: TrainResult, tmp_path: Path
) -> None:
    assert not (whole.run_dir / "browser_policy.json").exists(), "the network of this run is another"
    training = PPO(small_config("network.kind=color_equivariant"))
    training.export(training.init(jax.random.key(0)), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished"}))
    agent = read_run(tmp_path).panels[0].data
    assert agent is not None
    assert agent["network"]["width"] == 8


def bits(tree) -> list[np.ndarray]:
    plain = jax.tree.map(
        lambda leaf: (
            jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ),
        tree,
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(plain)]


def test_a_run_has_the_files_that_the_documents_name(whole: TrainResult) -> None:
    facts = runs.read_metadata(whole.run_dir)
    assert facts["status"] == "finished"
    assert (facts["algorithm"], facts["updates"], facts["env_steps"]) == ("ppo", 6, 6 * 8 * 4)
    assert facts["families"] == ["fill_enclosed"]
    assert sorted(metrics_of(whole.run_dir)) == [1, 2, 3, 4, 5, 6]
    lines = (whole.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 6]
    assert json.loads(lines[1])["env_steps"] == 6 * 8 * 4
    assert runs.read_config(whole.run_dir, type(small_config())) == small_config()
    assert read_run(whole.run_dir).notes == []


def test_sampled_episodes_are_whole_and_drawn_step_by_step(whole: TrainResult) -> None:
    episodes = [json.loads(line) for line in (whole.run_dir / "episodes.jsonl").read_text().splitlines()]
    assert [episode["episode_num"] for episode in episodes] == [3, 3, 6, 6]
    for episode in episodes:
        folder = (
            whole.run_dir
            / "episodes"
            / f"episode_{episode['episode_num']:06d}_env_{episode['environment_id']:04d}"
        )
        steps = sorted(folder.glob("step_*.svg"))
        assert len(steps) == episode["total_steps"] >= 1
        assert (folder / "initial.svg").exists() and (folder / "final.svg").exists()


def test_the_fingerprint_of_the_data_depends_on_the_tasks() -> None:
    first, same, other = (
        PPO(small_config(f"env.dataset.seed={seed}")).data_fingerprint() for seed in (0, 0, 5)
    )
    assert first == same != other


def test_a_checkpoint_of_another_config_is_refused(whole: TrainResult, tmp_path: Path) -> None:
    other = small_config("gamma=0.5")
    run = runs.create_run(tmp_path / "other", other, {"algorithm": "ppo"})
    shutil.copytree(whole.run_dir / "checkpoints", run / "checkpoints")
    with pytest.raises(ValueError, match="saved with a config that differs"):
        train(PPO(other), run, resume=True, handlers=small_handlers)


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    run = runs.create_run(tmp_path / "run", small_config(), {"algorithm": "ppo"})
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        train(PPO(small_config()), run, resume=True, handlers=small_handlers)


class FullDisk(Handler):
    """Fails at everything, as a disk without room does."""

    def log_aggregated_metrics(self, metrics, step) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_reported_and_the_training_goes_on(
    whole: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.training.checkpoints.Checkpointer.save", no_room)
    outcome = train(
        PPO(small_config()), tmp_path / "run", handlers=lambda folder, config: {"disk": FullDisk()}
    )
    assert outcome.update == 6
    for ours, theirs in zip(bits(outcome.state), bits(whole.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    said = caplog.text
    assert "handler 'disk' failed in log_aggregated_metrics" in said
    assert said.count("a checkpoint could not be saved: OSError") == 1
    assert "a checkpoint could not be saved, 3 times in this run" in said


def test_the_next_free_name_is_numbered(tmp_path: Path) -> None:
    assert runs.next_free_dir(tmp_path / "arc") == tmp_path / "arc"
    (tmp_path / "arc").mkdir()
    (tmp_path / "arc-2").mkdir()
    assert runs.next_free_dir(tmp_path / "arc") == tmp_path / "arc-3"
