"""Guarantees of the run loop for every algorithm: resume, rejected resumes, seeds, warm start, loading."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from phalanx import load_policy
from phalanx.core.vector import without_key_type
from phalanx.data import Sample, save_samples
from phalanx.lm import LMPolicy
from phalanx.logging import read_records
from phalanx.training import (
    Algorithm,
    CheckpointRef,
    Progress,
    TrainResult,
    load_algorithm,
    load_metadata,
    train,
)
from phalanx.training.trained_policy import Policy, best_by_default
from phalanx.training.warm_start import load_params
from tests.helpers.small_training import SMALL as SMALL_PPO

pytestmark = pytest.mark.slow

ARC = tuple(setting for setting in SMALL_PPO if setting.startswith(("env.", "network.", "num_envs")))
MODEL = ("model.d_model=8", "model.num_heads=1", "model.num_layers=1", "model.d_ff=8")
COMMON = (
    "evaluation.every=0",
    "checkpoint.every=100",
    "logging.log_frequency=1",
    "logging.sample_frequency=0",
)
FEW_TASKS = ("evaluation.num_generated_tasks=2", "evaluation.num_sampled_attempts=0")
SETTINGS: dict[str, tuple[str, ...]] = {
    "ppo": (*ARC, *FEW_TASKS, "num_updates=3", "num_steps=4", "num_minibatches=2"),
    "bc": (*ARC, *FEW_TASKS, "num_updates=3", "num_steps=3", "env.dataset.tasks_per_update=8"),
    "sft": (*MODEL, "num_updates=3", "model.vocab_size=12", "data.token_budget=32", "data.max_length=16",
            "data.packs_per_buffer=4", "data.num_eval_samples=2"),
    "grpo": (*MODEL, "num_updates=3", "env.id=lights_out::multi", "legal_actions_only=true", "num_prompts=2",
             "num_generations=2", "max_length=64", "microbatch_size=4", "evaluation.num_episodes=1"),
    "kge": ("num_epochs=3", "model.embedding_dim=4", "num_negatives_per_batch=4", "evaluation.max_queries=4"),
}  # fmt: skip
PRESETS = {"ppo": "arc", "bc": "arc"}


class Case(NamedTuple):
    """An algorithm with small settings."""

    name: str
    settings: tuple[str, ...]

    def create(self, *overrides: str) -> Algorithm:
        """Create the algorithm. Algorithms cannot be used for two runs, because some have mutable state."""
        algorithm = load_algorithm(self.name)
        config = algorithm.config_type.load(PRESETS.get(self.name), (*self.settings, *overrides))
        return algorithm(config)


@pytest.fixture(scope="module", params=SETTINGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    common = tuple(setting for setting in COMMON if (request.param, setting) != ("kge", "evaluation.every=0"))
    settings = (*SETTINGS[request.param], *common)
    if request.param == "sft":
        path = tmp_path_factory.mktemp("data") / "samples.jsonl"
        rng = np.random.default_rng(0)
        save_samples(path, [Sample(f"s{i}", rng.integers(1, 12, 6), [0, 1, 1, 1, 1, 1]) for i in range(20)])
        settings = (*settings, f"data.samples={path}")
    return Case(request.param, settings)


@pytest.fixture(scope="module")
def complete_run(case: Case, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Train for three updates without interruption."""
    return train(case.create(), tmp_path_factory.mktemp("runs") / "complete")


def stop_after_first_update(progress: Progress) -> None:
    if progress.update == 1:
        os.kill(os.getpid(), signal.SIGINT)


def assert_equal(tree: Any, expected: Any) -> None:
    leaves, expected_leaves = jax.tree.leaves(tree), jax.tree.leaves(expected)
    for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
        np.testing.assert_array_equal(without_key_type(leaf), without_key_type(expected_leaf))


def losses(run: Path) -> list[float]:
    records = read_records(run / "batch_metrics.jsonl")
    return [record["metrics"].get("loss", record["metrics"].get("policy_loss")) for record in records]


def modification_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def trained_arrays(policy: Any) -> Any:
    if isinstance(policy, Policy):
        return [leaf for leaf in jax.tree.leaves(policy.network) if isinstance(leaf, jax.Array)]
    return policy.model if isinstance(policy, LMPolicy) else policy


def test_resumed_run_is_bit_identical(case: Case, complete_run: TrainResult, tmp_path: Path) -> None:
    first = train(case.create(), tmp_path / "run", show=stop_after_first_update)
    assert (first.interrupted, first.update) == (True, 1)
    assert load_metadata(tmp_path / "run")["status"] == "interrupted"
    second = train(case.create(), tmp_path / "run", resume=True)
    assert (second.interrupted, second.update, second.counts) == (False, 3, complete_run.counts)
    assert_equal(second.state, complete_run.state)
    assert losses(second.run_dir) == losses(complete_run.run_dir)


def other_data(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
    monkeypatch.setattr(algorithm, "fingerprint", lambda: "of other data")
    return algorithm


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda case, monkeypatch: case.create("seed=7"), r"another config: seed: 0 \(now seed: 7\)"),
        (
            lambda case, monkeypatch: other_data(case.create(), monkeypatch),
            "the data has changed since checkpoint 3",
        ),
    ],
    ids=["config", "data"],
)
def test_resume_requires_the_same_config_and_data(
    case: Case,
    complete_run: TrainResult,
    create: Callable[[Case, pytest.MonkeyPatch], Algorithm],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = modification_times(complete_run.run_dir / "checkpoints")
    with pytest.raises(ValueError, match=message):
        train(create(case, monkeypatch), complete_run.run_dir, resume=True)
    assert modification_times(complete_run.run_dir / "checkpoints") == checkpoints


def test_existing_folder_is_not_changed(case: Case, complete_run: TrainResult, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    for folder in (tmp_path, complete_run.run_dir):
        before = modification_times(folder)
        with pytest.raises(ValueError, match=r"--resume .* or choose another --out"):
            train(case.create(), folder)
        assert modification_times(folder) == before


def test_each_seed_is_a_separate_run(case: Case, complete_run: TrainResult, tmp_path: Path) -> None:
    result = train(case.create("num_seeds=2"), tmp_path / "run")
    first, second = result.seeds
    assert_equal(first.state, complete_run.state)
    assert (first.run_dir / "config.yaml").read_text() == (complete_run.run_dir / "config.yaml").read_text()
    assert losses(first.run_dir) == losses(complete_run.run_dir)
    with pytest.raises(AssertionError):
        assert_equal(second.state.params, first.state.params)
    unit = case.create().unit
    assert result.counts[unit] == first.counts[unit] + second.counts[unit]


def test_warm_start_uses_the_parameters_of_another_run(
    case: Case, complete_run: TrainResult, tmp_path: Path
) -> None:
    algorithm = case.create("seed=7")
    state = algorithm.init(jax.random.key(7))
    params, origin = load_params(CheckpointRef(complete_run.run_dir), state.params)
    assert origin == {"run": str(complete_run.run_dir), "step": 3, "algorithm": case.name}
    state = algorithm.init(jax.random.key(7), params)
    assert int(state.step) == 0
    assert_equal(state.params, complete_run.state.params)
    if case.name == "grpo":
        assert_equal(state.ref_params, complete_run.state.params)
    result = train(case.create("seed=7"), tmp_path / "run", init_from=str(complete_run.run_dir))
    assert load_metadata(result.run_dir)["init_from"] == origin


def test_policy_of_a_run_can_be_loaded(case: Case, complete_run: TrainResult) -> None:
    algorithm = case.create()
    ref = best_by_default(CheckpointRef(complete_run.run_dir), algorithm.config)
    assert (ref.which == "best") == (case.name == "kge")
    expected, _ = load_params(ref, algorithm.init(jax.random.key(0)).params)
    if ref.which == "newest":
        assert_equal(expected, complete_run.state.params)
    assert_equal(trained_arrays(load_policy(complete_run.run_dir)), expected)
