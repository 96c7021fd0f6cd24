"""Learning from reward: advantages, ratios, rows, resuming, and that it learns something."""

import dataclasses
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
from phalanx.logging import read_records
from phalanx.training import GRPOConfig, GRPOTraining, GRPOTrainingConfig, OptimizerConfig, Progress, train
from phalanx.training.lm.grpo_update import (
    Completion,
    GRPOState,
    GRPOTrainer,
    copy_params,
    group_advantages,
    merge_duplicates,
    pack_completions,
    turn_advantages,
)

MODEL = LanguageModelConfig(vocab_size=98, d_model=16, num_layers=1, num_heads=2, d_ff=16)
TINY = (
    "model.d_model=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.d_ff=16",
    "environment='knights::multi,lights_out::multi'",
    "legal_only=true",
    "num_updates=4",
    "max_new_tokens=12",
    "grpo.groups=2",
    "grpo.group_size=4",
    "grpo.width=64",
    "grpo.rows=4",
    "checkpoint.every=2",
    "evaluation.every=0",
    "evaluation.puzzles=2",
)
ANSWERS = [
    Completion([5, 6, 7], [8, 9, 1], [-4.0, -4.5, -4.2], 1.0),
    Completion([5, 6, 7], [4, 1], [-4.4, -4.1], -1.0),
]


def trainer(**settings: object) -> GRPOTrainer:
    config = GRPOConfig(width=16, rows=2, **settings)
    return GRPOTrainer(MODEL, OptimizerConfig(num_updates=9, warmup=0), config, 1.0)


@functools.cache
def begun() -> GRPOState:
    """What every trainer of `MODEL` starts with, on the host, where nobody can use it up."""
    state = jax.device_get(jax.jit(trainer().start)(jax.random.key(0)))
    return dataclasses.replace(state, step=jnp.int32(0))


@jax.jit
def plain_log_probs(arrays: Any, row: jax.Array) -> jax.Array:
    model = trainer().model(arrays)
    return jax.nn.log_softmax(model(row, jnp.ones_like(row), jnp.arange(len(row))))


def test_advantages_are_relative_to_the_group() -> None:
    found = group_advantages(np.array([[1.0, 0.0, 0.0, 1.0], [3.0, 3.0, 3.0, 3.0]]))
    np.testing.assert_allclose(found, [[1, -1, -1, 1], [0, 0, 0, 0]], atol=1e-4)
    plain = group_advantages(np.array([[1.0, 0.0, 0.0, 1.0]]), scale=False)
    np.testing.assert_allclose(plain, [[0.5, -0.5, -0.5, 0.5]])


def test_answers_stand_in_rows_with_what_is_known_of_each_token() -> None:
    [rows] = pack_completions(ANSWERS, width=12, rows=2)
    assert rows.input_ids[0].tolist() == [5, 6, 7, 8, 9, 1, 5, 6, 7, 4, 1, 0]
    assert rows.segment_ids[0].tolist() == [1] * 6 + [2] * 5 + [0]
    assert rows.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0]
    assert rows.written[0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert rows.advantages[0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, -1, -1, 0]
    assert not rows.segment_ids[1].any()
    with pytest.raises(ValueError, match="an answer of 6 tokens does not fit"):
        pack_completions(ANSWERS, width=5, rows=2)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_loss_is_the_clipped_gain_written_out(level: str) -> None:
    found, learner = trainer(level=level, kl=0.5), begun()
    [batch] = pack_completions(ANSWERS, width=16, rows=2)
    count = 5 if level == "token" else 2
    total, metrics = jax.jit(found.loss)(learner.params, learner.reference, batch, np.float32(count))
    gains, tokens = [], []
    for answer in ANSWERS:
        row = np.array([*answer.read, *answer.written], np.int32)
        # As wide as the longest; what stands behind a text is not seen in it.
        logs = np.asarray(plain_log_probs(learner.params, np.pad(row, (0, 6 - len(row)))))
        at = range(len(answer.read) - 1, len(row) - 1)
        now = np.array([logs[place, row[place + 1]] for place in at])
        gap = now - np.array(answer.log_probs)
        ratio = np.exp(gap if level == "token" else np.full_like(gap, gap.mean()))
        gain = np.minimum(ratio * answer.advantage, np.clip(ratio, 0.8, 1.28) * answer.advantage)
        gains.append(gain.sum() if level == "token" else gain.mean())
        tokens.append(len(gap))
    assert sum(tokens) == 5
    expected = -sum(gains) / count
    assert float(metrics["policy_loss"]) == pytest.approx(expected, abs=1e-5)
    # The reference is the model itself so far.
    assert float(metrics["kl"]) == pytest.approx(0, abs=1e-6)
    assert float(total) == pytest.approx(expected, abs=1e-5)


def test_what_was_better_becomes_likelier_and_the_reference_stays() -> None:
    found = trainer(kl=0.01)
    loss, learner = (
        jax.jit(found.loss),
        dataclasses.replace(state := begun(), reference=copy_params(state.params)),
    )
    kept = jax.tree.map(np.asarray, learner.reference)
    [batch] = pack_completions(ANSWERS, width=16, rows=2)
    count = np.float32(5)
    before = float(loss(learner.params, learner.reference, batch, count)[1]["policy_loss"])
    for _ in range(3):
        learner, metrics = found.update(learner, ANSWERS)
    _, told = loss(learner.params, learner.reference, batch, count)
    assert float(told["policy_loss"]) < before
    assert float(told["kl"]) > 0
    assert metrics["gradient_steps"] == 1
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, learner.reference), kept)


def test_a_step_is_the_same_however_answers_fall_into_rows() -> None:
    # Four answers of one row each, and a fifth that is alone in the last batch of rows.
    read = [5, 6, 7, 8, 9, 10, 11]
    answers = [Completion([number, *read], [8, 9, 1], [-4.0, -4.5, -4.2], 1.0) for number in range(2, 6)]
    answers += [Completion(read, [4, 1], [-4.4, -4.1], -1.0), Completion(read, [3, 1], [-4.0, -4.0], 0.0)]
    moved = []
    for rows in (1, 4, 8):
        config = GRPOConfig(width=16, rows=rows)
        found = GRPOTrainer(MODEL, OptimizerConfig(num_updates=9, warmup=0, clip=1e6), config, 1.0)
        learner, metrics = found.update(begun(), answers)
        assert metrics["gradient_steps"] == 1
        moved.append((metrics, jax.tree.leaves(learner.opt_state)))
    for metrics, state in moved[1:]:
        assert metrics["policy_loss"] == pytest.approx(moved[0][0]["policy_loss"], abs=1e-5)
        assert metrics["gradient_norm"] == pytest.approx(moved[0][0]["gradient_norm"], rel=1e-4)
        for a, b in zip(state, moved[0][1], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_equal_answers_are_computed_once_and_move_as_all_of_them() -> None:
    [first, second] = ANSWERS
    answers = [first, first, first._replace(advantage=0.4), second]
    merged = merge_duplicates(answers)
    assert [(one.advantage, one.times) for one in merged] == [(pytest.approx(0.8), 3), (-1.0, 1)]
    for level in ("token", "sequence"):
        found, learner = trainer(level=level), begun()
        # Probabilities as they are, so that nothing is clipped.
        [batch] = pack_completions(answers, width=32, rows=1)
        [alike] = pack_completions(merged, width=32, rows=1)
        gradient = jax.jit(jax.grad(found.loss, has_aux=True))
        both = []
        for rows in (batch, alike):
            found_rows = rows._replace(log_probs=np.full_like(rows.log_probs, -4.6))
            both.append(gradient(learner.params, learner.reference, found_rows, np.float32(11))[0])
        for a, b in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_best_and_the_worst_are_learned_from_and_weigh_as_much_as_all() -> None:
    advantages = [2.0, 1.5, -0.5, -0.7, -0.6, -0.7]
    answers = [Completion([3], [4 + at], [-1.0], each) for at, each in enumerate(advantages)]
    kept = merge_duplicates([*answers, Completion([9], [4], [-1.0], 1.0)], most=3)
    assert [(one.advantage, one.times) for one in kept] == [(2.0, 1), (1.5, 1), (-0.7, 4), (1.0, 1)]
    assert merge_duplicates(answers, most=6) == answers


def test_a_move_is_compared_with_others_on_the_same_board() -> None:
    prompts = [["start", "near"], ["start", "far", "near"], ["start", "lost"]]
    rewards = [[0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0]]
    found = turn_advantages(prompts, rewards, discount=0.5, scale=False)
    np.testing.assert_allclose(found[0], [1 / 3, 0.5])
    np.testing.assert_allclose(found[1], [-1 / 6, 0, -0.5])
    np.testing.assert_allclose(found[2], [-1 / 6, 0])


def test_reward_alone_teaches_which_token_to_write() -> None:
    """A bandit of 16 arms in two states: the arm that pays stands in the prompt."""
    model = LanguageModelConfig(vocab_size=16, d_model=16, num_layers=1, num_heads=2, d_ff=16)
    optimizer = OptimizerConfig(num_updates=200, learning_rate=1e-2, warmup=5, fall="constant")
    found = GRPOTrainer(model, optimizer, GRPOConfig(width=32, rows=4), 1.0)
    learner, paid = jax.jit(found.start)(jax.random.key(0)), []
    arms = [arm for arm in (3, 12) for _ in range(32)]
    for number in range(80):
        told = generate_batch(
            found.model(learner.params),
            [[1, arm] for arm in arms],
            1,
            sampling=SamplingConfig(),
            key=jax.random.key(number),
        )
        rewards = np.array(
            [float(said == [arm]) for said, arm in zip(told.completion_ids, arms, strict=True)]
        )
        advantages = group_advantages(rewards.reshape(2, 32)).reshape(-1)
        answers = [
            Completion([1, arm], said, logs, float(advantage))
            for arm, said, logs, advantage in zip(
                arms, told.completion_ids, told.logps, advantages, strict=True
            )
        ]
        learner, _ = found.update(learner, answers)
        paid.append(rewards.mean())
    assert np.mean(paid[:3]) < 0.25
    assert np.mean(paid[-5:]) > 0.9


def test_a_group_that_is_all_alike_teaches_nothing() -> None:
    assert not group_advantages(np.full((3, 7), -0.1)).any()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_goes_on_to_the_same_bits_and_writes_as_it_learns(ahead: bool, tmp_path: Path) -> None:
    settings: tuple[str, ...] = ()
    if ahead:
        settings = ("ahead=true", "curriculum.replay=0.5", "curriculum.replay_size=8", "grpo.groups=4")
    config = load_config(GRPOTrainingConfig, None, (*TINY, *settings))

    def stop(progress: Progress) -> None:
        if progress.update == 2:
            os.kill(os.getpid(), signal.SIGINT)

    whole = train(GRPOTraining(config), tmp_path / "whole")
    half = train(GRPOTraining(config), tmp_path / "half", show=stop)
    assert (half.interrupted, half.update) == (True, 2)
    rest = train(GRPOTraining(config), tmp_path / "half", resume=True)
    assert rest.counts == whole.counts
    for a, b in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(a, b)
    metrics = [line["metrics"] for line in read_records(tmp_path / "whole" / "batch_metrics.jsonl")]
    assert [line["written_tokens"] for line in metrics] == sorted(line["written_tokens"] for line in metrics)
    learned = [line["first_gap"] for line in metrics if line["gradient_steps"]]
    assert learned
    if ahead:
        # What is learned from was written before the last step, but for the first.
        assert learned[0] < 1e-4 < max(learned)
        assert [path.name for path in sorted((tmp_path / "half" / "played_ahead").iterdir())] == [
            "2.json",
            "4.json",
        ]
    else:
        # Log-probabilities while writing, with a cache, and while learning, on packed rows.
        assert max(learned) < 1e-4
    assert {line["mode"] for line in whole.evaluations} == {"greedy"}


def test_what_cannot_be_learned_from_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        GRPOTraining(load_config(GRPOTrainingConfig, None, (*TINY, "sampling.temperature=0")))
    with pytest.raises(ValueError, match=r"set model\.vocab_size"):
        GRPOTraining(load_config(GRPOTrainingConfig, None, (*TINY, "model.vocab_size=50")))
