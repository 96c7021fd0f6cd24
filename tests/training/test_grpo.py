"""GRPO: advantages, packing, the loss, optimizer steps, resuming, and learning from reward."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.config import load_config
from phalanx.lm import LanguageModelConfig, SamplingConfig, generate_batch
from phalanx.lm.text_policy import allowed_token_ids
from phalanx.logging import read_records
from phalanx.puzzles import PuzzleEnvironment
from phalanx.text import TaskSeed, TextVectorEnvironment
from phalanx.training import (
    GRPO,
    Completion,
    GRPOConfig,
    OptimizerConfig,
    Progress,
    group_advantages,
    grpo_loss,
    train,
    turn_advantages,
)
from phalanx.training.checkpoints import open_checkpoint
from phalanx.training.grpo import GRPOState, merge_duplicates, pack_completions

pytestmark = pytest.mark.slow

MODEL = LanguageModelConfig(vocab_size=98, d_model=16, num_layers=1, num_heads=2, d_ff=16)
TINY = (
    "model.d_model=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.d_ff=16",
    "env.id='knights::multi,lights_out::multi'",
    "legal_actions_only=true",
    "num_updates=4",
    "max_completion_length=12",
    "num_prompts=2",
    "num_generations=4",
    "max_length=64",
    "microbatch_size=4",
    "checkpoint.every=2",
    "evaluation.every=0",
    "evaluation.num_episodes=2",
)
COMPLETIONS = [
    Completion([5, 6, 7], [8, 9, 1], [-4.0, -4.5, -4.2], 1.0),
    Completion([5, 6, 7], [4, 1], [-4.4, -4.1], -1.0),
]


def grpo(optimizer: OptimizerConfig = OptimizerConfig(b2=0.98), **settings: Any) -> GRPO:  # noqa: B008 - frozen
    settings = {"num_updates": 9, "max_length": 16, "microbatch_size": 2, "model": MODEL, **settings}
    return GRPO(GRPOConfig(optimizer=optimizer, **settings))


@functools.cache
def host_state() -> GRPOState:
    return jax.device_get(jax.jit(grpo().init)(jax.random.key(0)))


def initial_state() -> GRPOState:
    """Return a copy of the initial state, because a training step consumes it."""
    return jax.tree.map(jnp.array, host_state())


@jax.jit
def reference_logps(params: Any, row: jax.Array) -> jax.Array:
    model = grpo().model(params)
    return jax.nn.log_softmax(model(row, jnp.ones_like(row), jnp.arange(len(row))))


def test_group_advantages_are_relative_to_the_group() -> None:
    advantages = group_advantages(np.array([[1.0, 0.0, 0.0, 1.0], [3.0, 3.0, 3.0, 3.0]]))
    np.testing.assert_allclose(advantages, [[1, -1, -1, 1], [0, 0, 0, 0]], atol=1e-4)
    unscaled = group_advantages(np.array([[1.0, 0.0, 0.0, 1.0]]), scale_rewards=False)
    np.testing.assert_allclose(unscaled, [[0.5, -0.5, -0.5, 0.5]])


def test_group_with_equal_rewards_has_zero_advantages() -> None:
    assert not group_advantages(np.full((3, 7), -0.1)).any()


def test_turn_advantages_compare_turns_with_the_same_prompt() -> None:
    prompts = [["start", "near"], ["start", "far", "near"], ["start", "lost"]]
    rewards = [[0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0]]
    advantages = turn_advantages(prompts, rewards, gamma=0.5, scale_rewards=False)
    np.testing.assert_allclose(advantages[0], [1 / 3, 0.5])
    np.testing.assert_allclose(advantages[1], [-1 / 6, 0, -0.5])
    np.testing.assert_allclose(advantages[2], [-1 / 6, 0])


def test_seeds_share_the_environment_that_was_passed_and_only_the_original_closes_it() -> None:
    closed = []

    class Closing(PuzzleEnvironment):
        def close(self) -> None:
            closed.append(self)

    environment = TextVectorEnvironment({"lights": lambda: Closing("lights_out")})
    algorithm = GRPO(GRPOConfig(model=MODEL), environment)
    copy = algorithm._replace_config(GRPOConfig(model=MODEL, seed=1))
    assert copy.environment is environment
    environment.start([TaskSeed("lights", 0), TaskSeed("lights", 1)])
    copy.close()
    algorithm.close()
    assert len(closed) == 2


def test_completions_are_packed_into_rows() -> None:
    [batch] = pack_completions(COMPLETIONS, max_length=12, num_rows=2)
    assert batch["input_ids"][0].tolist() == [5, 6, 7, 8, 9, 1, 5, 6, 7, 4, 1, 0]
    assert batch["segment_ids"][0].tolist() == [1] * 6 + [2] * 5 + [0]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0]
    assert batch["loss_mask"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert batch["advantages"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, -1, -1, 0]
    assert not batch["segment_ids"][1].any()
    with pytest.raises(ValueError, match="has 6 tokens, more than max_length=5; set max_length=6"):
        pack_completions(COMPLETIONS, max_length=5, num_rows=2)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_grpo_loss_equals_a_direct_implementation(level: str) -> None:
    rng = np.random.default_rng(0)
    shape, epsilon, epsilon_high, beta = (2, 7), 0.2, 0.28, 0.3
    segment_ids = np.array([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
    mask = np.array([[0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0, 0]], np.float32)
    logps, old_logps, ref_logps = rng.uniform(-3, -0.1, (3, *shape)).astype(np.float32)
    advantage = {(0, 1): 1.5, (0, 2): -0.7, (1, 1): 0.4}
    weight = {(0, 1): 1.0, (0, 2): 3.0, (1, 1): 2.0}
    by_token = np.zeros((2, *shape), np.float32)
    loss = kl = 0.0
    num_items = 11.0 if level == "token" else 6.0
    for (row, segment), own_advantage in advantage.items():
        tokens = (segment_ids[row] == segment) & (mask[row] > 0)
        by_token[:, row, segment_ids[row] == segment] = np.array([[own_advantage], [weight[row, segment]]])
        difference = (logps - old_logps)[row, tokens].astype(float)
        ratio = np.exp(difference if level == "token" else np.full_like(difference, difference.mean()))
        objective = np.minimum(
            ratio * own_advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon_high) * own_advantage
        )
        ref_difference = (ref_logps - logps)[row, tokens].astype(float)
        k3 = np.exp(ref_difference) - ref_difference - 1
        scale = weight[row, segment] / num_items * (1 if level == "token" else 1 / tokens.sum())
        loss -= scale * objective.sum()
        kl += scale * k3.sum()
    total, metrics = grpo_loss(
        *map(jnp.asarray, (logps, old_logps, ref_logps, by_token[0], mask, by_token[1], segment_ids)),
        jnp.float32(num_items),
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        beta=beta,
        importance_sampling_level=level,
    )
    assert float(metrics["policy_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(metrics["kl"]) == pytest.approx(kl, rel=1e-5)
    assert float(total) == pytest.approx(loss + beta * kl, rel=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_loss_of_a_packed_microbatch_uses_the_logps_of_separate_rows(level: str) -> None:
    algorithm, state = grpo(importance_sampling_level=level, beta=0.5), initial_state()
    [batch] = pack_completions(COMPLETIONS, max_length=16, num_rows=2)
    num_items = 5 if level == "token" else 2
    loss, metrics = jax.jit(algorithm.loss)(state.params, state.ref_params, batch, np.float32(num_items))
    objectives = []
    for completion in COMPLETIONS:
        row = np.array([*completion.prompt_ids, *completion.completion_ids], np.int32)
        # Padded to one length; tokens do not attend to later ones.
        logps = np.asarray(reference_logps(state.params, np.pad(row, (0, 6 - len(row)))))
        positions = range(len(completion.prompt_ids) - 1, len(row) - 1)
        difference = np.array([logps[i, row[i + 1]] for i in positions]) - np.array(completion.old_logps)
        ratio = np.exp(difference if level == "token" else np.full_like(difference, difference.mean()))
        clipped = np.clip(ratio, 0.8, 1.28)
        objective = np.minimum(ratio * completion.advantage, clipped * completion.advantage)
        objectives.append(objective.sum() if level == "token" else objective.mean())
    expected = -sum(objectives) / num_items
    assert float(metrics["policy_loss"]) == pytest.approx(expected, abs=1e-5)
    # The reference parameters are still the current ones.
    assert float(metrics["kl"]) == pytest.approx(0, abs=1e-6)
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_training_lowers_the_loss_and_keeps_the_reference_parameters() -> None:
    algorithm = grpo(OptimizerConfig(learning_rate=2e-3, b2=0.98), beta=0.01)
    state = initial_state()
    state = GRPOState(state.params, state.opt_state, state.step, jax.tree.map(jnp.copy, state.params))
    ref_params = jax.tree.map(np.asarray, state.ref_params)
    loss = jax.jit(algorithm.loss)
    [batch] = pack_completions(COMPLETIONS, max_length=16, num_rows=2)
    before = float(loss(state.params, state.ref_params, batch, np.float32(5))[1]["policy_loss"])
    for _ in range(3):
        state, metrics = algorithm.train_step(state, COMPLETIONS)
    _, after = loss(state.params, state.ref_params, batch, np.float32(5))
    assert float(after["policy_loss"]) < before
    assert float(after["kl"]) > 0
    assert metrics["gradient_steps"] == 1
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state.ref_params), ref_params)


def test_step_does_not_depend_on_the_microbatch_size() -> None:
    # Four completions that fill a row each, and a fifth alone in the last microbatch.
    prompt_ids = [5, 6, 7, 8, 9, 10, 11]
    completions = [
        Completion([number, *prompt_ids], [8, 9, 1], [-4.0, -4.5, -4.2], 1.0) for number in range(2, 6)
    ]
    completions += [
        Completion(prompt_ids, [4, 1], [-4.4, -4.1], -1.0),
        Completion(prompt_ids, [3, 1], [-4.0, -4.0], 0.0),
    ]
    results = []
    for microbatch_size in (1, 4, 8):
        algorithm = grpo(OptimizerConfig(max_grad_norm=1e6), microbatch_size=microbatch_size)
        state, metrics = algorithm.train_step(initial_state(), completions)
        assert metrics["gradient_steps"] == 1
        results.append((metrics, jax.tree.leaves(state.opt_state)))
    for metrics, opt_state in results[1:]:
        assert metrics["policy_loss"] == pytest.approx(results[0][0]["policy_loss"], abs=1e-5)
        assert metrics["gradient_norm"] == pytest.approx(results[0][0]["gradient_norm"], rel=1e-4)
        for a, b in zip(opt_state, results[0][1], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_merged_duplicates_have_the_gradient_of_all_completions() -> None:
    [first, second] = COMPLETIONS
    completions = [first, first, first._replace(advantage=0.4), second]
    merged = merge_duplicates(completions)
    assert [(one.advantage, one.weight) for one in merged] == [(pytest.approx(0.8), 3), (-1.0, 1)]
    for level in ("token", "sequence"):
        algorithm, state = grpo(importance_sampling_level=level), initial_state()
        gradient = jax.jit(jax.grad(algorithm.loss, has_aux=True))
        gradients = []
        for packed in (completions, merged):
            [batch] = pack_completions(packed, max_length=32, num_rows=1)
            # Close to the current log-probabilities, so that nothing is clipped.
            batch["old_logps"] = np.full_like(batch["old_logps"], -4.6)
            gradients.append(gradient(state.params, state.ref_params, batch, np.float32(11))[0])
        for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_limited_completions_are_the_best_and_worst_with_the_weight_of_all() -> None:
    advantages = [2.0, 1.5, -0.5, -0.7, -0.6, -0.7]
    completions = [Completion([3], [4 + i], [-1.0], advantage) for i, advantage in enumerate(advantages)]
    kept = merge_duplicates([*completions, Completion([9], [4], [-1.0], 1.0)], max_per_prompt=3)
    assert [(one.advantage, one.weight) for one in kept] == [(2.0, 1), (1.5, 1), (-0.7, 4), (1.0, 1)]
    assert merge_duplicates(completions, max_per_prompt=6) == completions


def test_reward_teaches_which_token_to_generate() -> None:
    """A bandit with 16 arms and two states: the rewarded arm is in the prompt."""
    optimizer = OptimizerConfig(
        learning_rate=1e-2, warmup_steps=5, lr_schedule="constant", weight_decay=0.01, b2=0.98
    )
    algorithm = grpo(optimizer, num_updates=200, max_length=32, microbatch_size=4)
    state, mean_rewards = jax.jit(algorithm.init)(jax.random.key(0)), []
    arms, stop = [arm for arm in (3, 12) for _ in range(32)], 1
    choices = [[arm, stop] for arm in range(2, 18)]
    for number in range(80):
        output = generate_batch(
            algorithm.model(state.params),
            [[20, arm] for arm in arms],
            2,
            sampling=SamplingConfig(),
            key=jax.random.key(number),
            stop_token_id=stop,
            choices=[choices] * len(arms),
        )
        rewards = np.array(
            [float(ids[0] == arm) for ids, arm in zip(output.completion_ids, arms, strict=True)]
        )
        advantages = group_advantages(rewards.reshape(2, 32)).reshape(-1)
        completions = [
            Completion([20, arm], ids, logps, float(advantage), allowed_token_ids(choices, ids))
            for arm, ids, logps, advantage in zip(
                arms, output.completion_ids, output.logps, advantages, strict=True
            )
        ]
        state, metrics = algorithm.train_step(state, completions)
        assert metrics["sampling_logp_diff_max"] < 1e-4
        mean_rewards.append(rewards.mean())
    assert np.mean(mean_rewards[:3]) < 0.25
    assert np.mean(mean_rewards[-5:]) > 0.9


@pytest.mark.parametrize("async_rollouts", [False, True])
def test_resumed_run_is_identical_to_an_uninterrupted_one(async_rollouts: bool, tmp_path: Path) -> None:
    settings: tuple[str, ...] = ()
    if async_rollouts:
        settings = ("async_rollouts=true", "curriculum.retry_fraction=0.5", "curriculum.retry_capacity=8")
        settings = (*settings, "num_prompts=4")
    config = load_config(GRPOConfig, None, (*TINY, *settings))

    def stop(progress: Progress) -> None:
        if progress.update == 2:
            os.kill(os.getpid(), signal.SIGINT)

    complete = train(GRPO(config), tmp_path / "complete")
    interrupted = train(GRPO(config), tmp_path / "resumed", show=stop)
    assert (interrupted.interrupted, interrupted.update) == (True, 2)
    resumed = train(GRPO(config), tmp_path / "resumed", resume=True)
    assert resumed.counts == complete.counts
    for a, b in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(complete.state), strict=True):
        np.testing.assert_array_equal(a, b)
    metrics = [line["metrics"] for line in read_records(tmp_path / "complete" / "batch_metrics.jsonl")]
    tokens = [line["completion_tokens"] for line in metrics]
    assert tokens == sorted(tokens)
    differences = [line["sampling_logp_diff_max"] for line in metrics if line["gradient_steps"]]
    assert differences
    if async_rollouts:
        # All rollouts except the first are from parameters before the last step.
        assert differences[0] < 1e-4 < max(differences)
        with open_checkpoint(tmp_path / "resumed", 2) as (checkpoints, step, _):
            assert checkpoints.load_state_dict(step)["pending_rollouts"]
        folders = {path.name for path in (tmp_path / "resumed").iterdir() if path.is_dir()}
        assert folders <= {"checkpoints", "episodes"}, "a checkpoint contains everything"
    else:
        # Generation with a cache and training on packed rows compute the same log-probabilities.
        assert max(differences) < 1e-4
    assert {line["mode"] for line in complete.evaluations} == {"greedy"}


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"set sampling\.temperature above 0"):
        GRPO(load_config(GRPOConfig, None, (*TINY, "sampling.temperature=0")))
    with pytest.raises(ValueError, match=r"set model\.vocab_size=98"):
        GRPO(load_config(GRPOConfig, None, (*TINY, "model.vocab_size=50")))
    with pytest.raises(ValueError, match="without gradient accumulation"):
        load_config(GRPOConfig, None, (*TINY, "optimizer.grad_accum_steps=2"))
