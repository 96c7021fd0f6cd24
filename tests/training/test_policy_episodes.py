"""Recorded episodes of trained policies: they agree with the evaluation of the run."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from phalanx.io.checksum import read_verified_json
from phalanx.logging.report import load_run
from phalanx.logging.report.policy_episodes import FILE_NAME
from phalanx.training import PPO, PPOConfig, train

pytestmark = pytest.mark.slow

TINY = (
    *("num_updates=1", "num_envs=8", "num_steps=4", "num_minibatches=2", "update_epochs=1"),
    *("network.hidden_dim=8", "evaluation.every=0", "logging.num_samples=1"),
)
ARC = (
    *("env.dataset.max_grid_height=3", "env.dataset.max_grid_width=3", "network.num_layers=1"),
    *("env.dataset.families=[fill_enclosed,denoise]", "env.dataset.num_generated_tasks=8"),
    *("env.episode.max_episode_steps=3", "evaluation.num_generated_tasks=6"),
    "evaluation.num_sampled_attempts=0",
)


def run(preset: str, folder: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train for one update, and return the recorded episodes and the record of the last evaluation."""
    train(PPO(PPOConfig.load(preset, (*TINY, *overrides))), folder)
    found = read_verified_json(folder / FILE_NAME)
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    data = load_run(folder)
    assert data.policy_episodes is not None and data.policy_episodes["episodes"] == found["episodes"]
    return data.policy_episodes, json.loads(lines[-1])


def test_arc_run_records_the_tasks_of_its_evaluation(tmp_path: Path) -> None:
    found, evaluation = run("arc", tmp_path / "arc", *ARC)
    episodes = found["episodes"]
    assert found["update"] == 1 and found["num_evaluated"] == len(episodes) == 6
    solved = sum(episode["solved"] for episode in episodes)
    assert found["evaluation"] == {"split": "evaluation", "num_episodes": 6, "num_solved": solved}
    assert solved == round(6 * evaluation["success_rate"])
    for group, score in evaluation["groups"].items():
        own = [episode["solved"] for episode in episodes if episode["group"] == group]
        assert len(own) == score["num_episodes"] and sum(own) == round(len(own) * score["success_rate"])
    first = episodes[0]
    assert first["task"].startswith("fill_enclosed")
    assert list(first["frames"][0]) == ["Input", "Working grid", "Expected output"]
    assert first["frames"][0]["Input"] == first["frames"][0]["Working grid"]
    decision = first["decisions"][0]
    assert len(decision["actions"]) >= 5 and decision["value"] is not None
    assert decision["probabilities"] == sorted(decision["probabilities"], reverse=True)
    assert "Submit" in decision["actions"] or ", row" in decision["actions"][0]


def test_proof_run_counts_unproved_false_queries_as_solved(tmp_path: Path) -> None:
    found, evaluation = run("proofs", tmp_path / "proofs", "evaluation.max_positives=8")
    episodes = found["episodes"]
    assert len(episodes) == evaluation["episodes"] == found["evaluation"]["num_episodes"]
    assert sum(episode["solved"] for episode in episodes) == found["evaluation"]["num_solved"]
    assert found["evaluation"]["num_solved"] == round(len(episodes) * evaluation["success_rate"])
    assert {episode["group"] for episode in episodes} == set(evaluation["groups"])
    assert all(
        episode["task"].startswith("not ") == (episode["group"] == "corrupted") for episode in episodes
    )
    assert all(frame.lstrip().startswith("<?xml") for frame in episodes[0]["frames"])
    assert not any(action.isdecimal() for action in episodes[0]["decisions"][0]["actions"])


def test_interrupted_run_and_run_without_samples_record_nothing(tmp_path: Path) -> None:
    config = PPOConfig.load("arc", (*TINY, *ARC, "num_updates=2"))
    algorithm = PPO(config)
    (tmp_path / "interrupted").mkdir()
    algorithm.export(algorithm.init(jax.random.key(0)), tmp_path / "interrupted")
    assert not list((tmp_path / "interrupted").iterdir())
    train(PPO(PPOConfig.load("arc", (*TINY, *ARC, "logging.sample_frequency=0"))), tmp_path / "quiet")
    assert not (tmp_path / "quiet" / FILE_NAME).exists()
