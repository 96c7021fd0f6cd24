"""Text wrappers of JAX environments, single and batched."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest

import phalanx
from phalanx import registry
from phalanx.core import Environment
from phalanx.core.text import TextInterface
from phalanx.core.text_environment import JaxTextEnvironment, JaxTextVectorEnvironment
from phalanx.text import TextRewardValues, make_text_env
from tests.helpers.corridor import Corridor, CorridorText, RightExpert


@functools.cache
def compile_functions(environment: Environment) -> tuple[Callable, Callable, Callable]:
    """Compile `reset`, `sample_action` and `step` once per environment."""
    return jax.jit(environment.reset), jax.jit(environment.sample_action), jax.jit(environment.step)


def rollout(interface: TextInterface, seed: int, steps: int) -> list[tuple[str, float, bool]]:
    """Run a random episode without the wrapper and return its answers, rewards and dones."""
    environment = interface.environment
    key = jax.random.PRNGKey(seed)
    reset, sample_action, step = compile_functions(environment)
    state, _ = reset(key)
    episode = []
    for number in range(steps):
        action = sample_action(jax.random.fold_in(key, number), state)
        text = interface.format(action, state)
        state, _, reward, done, _ = step(state, action)
        episode.append((text, float(reward), bool(done)))
        if done:
            break
    return episode


def make(name: str) -> TextInterface:
    settings = {"arc-v2": {"config": "mini"}, "proofs-v1": {"max_actions": 16}}.get(name, {})
    _, spec = registry.find(name)
    assert spec.text is not None
    return spec.text(phalanx.make(name, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tests.helpers.corridor:SPEC", "arc-v2", "proofs-v1"])
def test_answers_give_the_same_episodes_as_actions(name: str) -> None:
    interface = make(name)
    text = JaxTextEnvironment(interface)
    for seed in range(2):
        episode = rollout(interface, seed, 4)
        state, _ = compile_functions(interface.environment)[0](jax.random.PRNGKey(seed))
        assert text.reset(seed) == interface.prompt(state) == text.prompt
        for answer, reward, done in episode:
            step = text.step(answer)
            assert (step.info.error, step.done) == ("", done)
            assert step.reward == pytest.approx(reward)


def test_batch_rejects_invalid_answers_row_by_row() -> None:
    interface = CorridorText(Corridor())
    batch = JaxTextVectorEnvironment(
        interface, max_consecutive_invalid_answers=2, rewards=TextRewardValues(invalid=-0.5)
    )
    first = batch.reset([0, 1, 2])
    single = JaxTextEnvironment(interface)
    assert first == [single.reset(seed) for seed in range(3)]
    answer = rollout(interface, 1, 1)[0][0]
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
    batch = JaxTextVectorEnvironment(CorridorText(Corridor()))
    for call in (lambda: batch.prompts, lambda: batch.step(["a", "b"])):
        with pytest.raises(ValueError, match="there are no episodes yet; call reset"):
            call()
    with pytest.raises(ValueError, match="corridor:Corridor has no text for its states"):
        make_text_env("tests.helpers.corridor:Corridor")


def corridor() -> JaxTextVectorEnvironment:
    return JaxTextVectorEnvironment(CorridorText(Corridor()), create_expert=RightExpert)


def test_expert_answers_solve_every_row() -> None:
    env = corridor()
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
    env = corridor()
    env.reset([0, 1])
    env.step(["right", "nonsense"])
    assert env.expert_actions([0, 1]) == [None, "right"]
    env.step(["right", "nonsense"])
    assert env.expert_actions([0, 1]) == [None, None]
    env.reset([5, 5])
    assert env.expert_actions([0, 1]) == ["right", "right"]


def test_single_environment_returns_the_experts_next_answer() -> None:
    env = JaxTextEnvironment(CorridorText(Corridor()), create_expert=RightExpert)
    env.reset(0)
    assert env.expert_actions() == ["right"]
    without = JaxTextEnvironment(CorridorText(Corridor()))
    without.reset(0)
    assert without.expert_actions() is None
