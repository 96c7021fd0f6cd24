"""Text wrappers of JAX environments, single and batched."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest

import phalanx
from phalanx.core import Environment
from phalanx.text import JaxTextEnvironment, JaxTextVectorEnvironment, TextRewardValues
from tests.helpers.corridor import Corridor


@functools.cache
def compile_functions(environment: Environment) -> tuple[Callable, Callable, Callable]:
    """Compile `reset`, `sample_action` and `step` once per environment."""
    return jax.jit(environment.reset), jax.jit(environment.sample_action), jax.jit(environment.step)


def rollout(environment: Environment, seed: int, steps: int) -> list[tuple[str, float, bool]]:
    """Run a random episode without the wrapper and return its answers, rewards and dones."""
    key = jax.random.PRNGKey(seed)
    reset, sample_action, step = compile_functions(environment)
    state, _ = reset(key)
    episode = []
    for number in range(steps):
        action = sample_action(jax.random.fold_in(key, number), state)
        text = environment.action_text(action, environment.attach_names(state))
        state, _, reward, done, _ = step(state, action)
        episode.append((text, float(reward), bool(done)))
        if done:
            break
    return episode


def make(name: str) -> Environment:
    if name == "corridor":
        return Corridor()
    settings = {"config": "mini"} if name == "arc-v2" else {"max_actions": 16}
    return phalanx.make(name, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corridor", "arc-v2", "proofs-v1"])
def test_answers_give_the_same_episodes_as_actions(name: str) -> None:
    environment = make(name)
    text = JaxTextEnvironment(environment)
    for seed in range(2):
        episode = rollout(environment, seed, 4)
        state, _ = compile_functions(environment)[0](jax.random.PRNGKey(seed))
        assert (
            text.reset(seed) == environment.observation_text(environment.attach_names(state)) == text.prompt
        )
        for answer, reward, done in episode:
            step = text.step(answer)
            assert (step.info.error, step.done) == ("", done)
            assert step.reward == pytest.approx(reward)


def test_batch_rejects_invalid_answers_row_by_row() -> None:
    environment = Corridor()
    batch = JaxTextVectorEnvironment(
        environment, max_consecutive_invalid_answers=2, rewards=TextRewardValues(invalid=-0.5)
    )
    first = batch.reset([0, 1, 2])
    single = JaxTextEnvironment(environment)
    assert first == [single.reset(seed) for seed in range(3)]
    answer = rollout(environment, 1, 1)[0][0]
    step = batch.step(["nonsense", answer, ""])
    assert [bool(info.error) for info in step.infos] == [True, False, True]
    np.testing.assert_allclose(step.rewards[[0, 2]], -0.5)
    assert step.texts[0].startswith("Not possible: 'nonsense' is no legal move.")
    assert step.texts[0].endswith(first[0]) and not step.dones.any()
    single.reset(1)
    assert step.texts[1] == single.step(answer).text
    truncated = batch.step(["nonsense", "nonsense", "nonsense"])
    assert [info.truncated for info in truncated.infos] == [True, False, True]
    after = batch.step(["nonsense", answer, answer])
    assert after.rewards[0] == 0 and after.dones.tolist()[::2] == [True, True]
    assert batch.reset([0, 1, 2]) == first and not batch.step(["x", "x", "x"]).dones.any()


def test_invalid_calls_are_reported() -> None:
    batch = JaxTextVectorEnvironment(Corridor())
    for call in (lambda: batch.prompts, lambda: batch.step(["a", "b"])):
        with pytest.raises(ValueError, match="there are no episodes yet; call reset"):
            call()

    class WithoutText(Corridor):
        has_text = False

    with pytest.raises(ValueError, match="WithoutText has no text"):
        JaxTextEnvironment(WithoutText())


class WithoutExpert(Corridor):
    def expert(self):
        return None


def test_expert_answers_solve_every_row() -> None:
    env = JaxTextVectorEnvironment(Corridor())
    env.reset([0, 1, 2])
    rows = [0, 1, 2]
    while rows:
        answers = dict(zip(rows, env.expert_actions(rows), strict=True))
        assert set(answers.values()) == {"right"}
        step = env.step([answers.get(row, "") for row in range(3)])
        rows = [row for row in rows if not step.dones[row]]
    assert env.expert_actions([0, 1, 2]) == [None, None, None]
    assert [info.terminated for info in step.infos] == [True, True, True]


def test_expert_has_no_answer_after_a_step_that_it_did_not_follow() -> None:
    env = JaxTextVectorEnvironment(Corridor())
    env.reset([0, 1])
    env.step(["right", "nonsense"])
    assert env.expert_actions([0, 1]) == [None, "right"]
    env.step(["right", "nonsense"])
    assert env.expert_actions([0, 1]) == [None, None]
    env.reset([5, 5])
    assert env.expert_actions([0, 1]) == ["right", "right"]


def test_single_environment_returns_the_experts_next_answer() -> None:
    env = JaxTextEnvironment(Corridor())
    env.reset(0)
    assert env.expert_actions() == ["right"]
    without = JaxTextEnvironment(WithoutExpert())
    without.reset(0)
    assert without.expert_actions() is None
