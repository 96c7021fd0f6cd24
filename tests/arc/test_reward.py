"""Rewards: named weights, custom reward functions, and subclasses of the environment."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    PointAction,
    RewardConfig,
    RewardInput,
    as_grid,
    batch_reset,
)
from phalanx.arc.env import ArcKernel
from phalanx.arc.reward import REWARD_WEIGHTS, as_reward_function
from tests.helpers.arc_rollouts import BACKENDS, batch_action, skip_without
from tests.helpers.arc_scenarios import SCENARIOS, Scenario, keys_of, oracle_run, tasks_of

pytestmark = pytest.mark.slow

SUBMIT = 34
ROW = ArcTask("row", (GridPair(as_grid([[1, 1, 1, 1]]), as_grid([[2, 2, 2, 2]])),), ())
"""Four cells that must become 2; each cell contributes a quarter of the similarity."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


def row_config(backend: str = "auto", **sections: object) -> ArcConfig:
    return ArcConfig(backend=backend, dataset=DatasetConfig(max_grid_height=2, max_grid_width=4), **sections)


@pytest.mark.parametrize("scenario", [SCENARIOS[0], SCENARIOS[3]], ids=["submit_required", "submit_only"])
def test_reward_weights_as_arguments_match_reference(backend: str, scenario: Scenario) -> None:
    """The weights of the scenario replace those of the config, as traced arguments."""
    reward_config = scenario.config.reward
    default_reward = RewardConfig(reward_on_submit_only=reward_config.reward_on_submit_only)
    config = scenario.config.model_copy(update={"backend": backend, "reward": default_reward})
    environment = ArcEnvironment.create(config, tasks_of(scenario)).with_reward(
        **{name: getattr(reward_config, name) for name in REWARD_WEIGHTS}
    )
    states, _ = batch_reset(keys_of(scenario), environment)
    step = jax.jit(lambda e, s, a: e.batch_step(s, a))
    states = environment.detach_names(states)
    for turn in oracle_run(scenario).turns:
        action = batch_action(scenario.format, turn.operations, turn.selections)
        states, _, rewards, _, _ = step(environment, states, action)
        np.testing.assert_allclose(rewards, turn.rewards, rtol=1e-6, atol=1e-6)
    assert step._cache_size() == 1


def encode_inputs(inputs: RewardInput) -> jax.Array:
    """Encode all fields of a `RewardInput` as the digits of one number."""
    ends = (inputs.solved, inputs.terminated, inputs.truncated)
    flags = (inputs.is_invalid, inputs.is_submission, *ends)
    quarters = 4 * jnp.stack([inputs.similarity_before, inputs.similarity_after])
    return jnp.sum(jnp.stack([*quarters, inputs.step_count, *flags]) * 10.0 ** jnp.arange(8))


def decode_digits(reward: jax.Array) -> str:
    return f"{int(reward):08d}"[::-1]


def test_reward_function_receives_step(backend: str) -> None:
    config = row_config(backend, episode=EpisodeConfig(max_episode_steps=4, require_submit=True))
    environment = ArcEnvironment.create(config, ROW).with_reward(encode_inputs)
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    step = jax.jit(environment.step)
    digits = []
    for action in ((2, 0), (2, 1), (99, 0), (2, 2), (2, 3)):
        state, _, reward, _, _ = step(state, PointAction(action[0], 0, action[1]))
        digits.append(decode_digits(reward))
    # Similarity before and after in quarters, steps, invalid, submission, solved, terminated, truncated.
    assert digits == ["01100000", "12200000", "22310000", "23400001", "00000000"]
    state = environment.state_from_grid([[2, 2, 2, 2]])
    assert decode_digits(step(state, PointAction(SUBMIT, 0, 0))[2]) == "44101110"
    state = environment.state_from_grid([[2, 2, 2, 1]])
    assert decode_digits(step(state, PointAction(SUBMIT, 0, 0))[2]) == "33101010"


def test_reward_function_receives_single_steps(backend: str) -> None:
    shapes = []

    def custom_reward(inputs: RewardInput) -> jax.Array:
        shapes.append(inputs.similarity_after.shape)
        return jnp.where(inputs.solved, inputs.max_steps - inputs.step_count, -0.5)

    environment = ArcEnvironment.create(row_config(backend), ROW).with_reward(custom_reward)
    states, _ = batch_reset(jax.random.split(jax.random.key(0), 3), environment)
    actions = PointAction([2, 99, 3], [0] * 3, [0] * 3)
    assert jax.jit(environment.batch_step)(states, actions)[2].tolist() == [-0.5] * 3
    assert jax.jit(jax.vmap(environment.step))(states, actions)[2].tolist() == [-0.5] * 3
    assert set(shapes) == {()}
    with pytest.raises(ValueError, match=r"must return a scalar, got shape \(2,\)"):
        environment.with_reward(lambda inputs: jnp.zeros(2)).batch_step(states, actions)
    with pytest.raises(TypeError, match="a reward must be a function of a RewardInput, got float"):
        as_reward_function.__wrapped__(1.0)  # without runtime type checking


class Bonus(eqx.Module):
    """A reward with an array as a parameter."""

    size: jax.Array

    def __call__(self, inputs: RewardInput) -> jax.Array:
        return self.size * (inputs.similarity_after - inputs.similarity_before)


def test_arrays_of_custom_reward_are_traced() -> None:
    environment = ArcEnvironment.create(row_config(), ROW).with_reward(Bonus(jnp.float32(1)))
    states, _ = batch_reset(jax.random.split(jax.random.key(0), 2), environment)
    states, actions = environment.detach_names(states), PointAction([2, 2], [0, 0], [0, 1])
    step = jax.jit(lambda e: e.batch_step(states, actions)[2])
    for size in (1.0, 8.0):
        assert step(environment.with_reward(Bonus(jnp.float32(size)))).tolist() == [size / 4] * 2
    assert step._cache_size() == 1
    sizes = np.array([1.0, 2.0, 4.0], np.float32)
    rewards = jax.vmap(lambda size: environment.with_reward(Bonus(size)).batch_step(states, actions)[2])
    rewards = jax.jit(rewards)(sizes)
    assert rewards.tolist() == [[0.25] * 2, [0.5] * 2, [1.0] * 2]


def test_reward_weights_are_set_by_name() -> None:
    environment = ArcEnvironment.create(row_config(reward=RewardConfig(step_penalty=-0.5)), ROW)
    changed = environment.with_reward(success_bonus=3)
    weights = dict(zip(REWARD_WEIGHTS, changed.reward_weights.tolist(), strict=True))
    assert weights["success_bonus"] == 3.0 and weights["step_penalty"] == -0.5
    with pytest.raises(ValueError, match="unknown reward weight 'bonus'; choose from similarity_weight, "):
        environment.with_reward(bonus=1.0)
    with pytest.raises(ValueError, match=r"step_penalty must be a scalar, got shape \(2,\); use vmap"):
        environment.with_reward(step_penalty=jnp.zeros(2))
    with pytest.raises(ValueError, match="either a reward function or weights"):
        environment.with_reward(encode_inputs, step_penalty=0.0)


class Generous(ArcEnvironment):
    """An environment that adds `gift` to every reward."""

    gift: float = 1.0

    def kernel(self) -> ArcKernel:
        return GenerousKernel(self)


class GenerousKernel(ArcKernel):
    environment: Generous

    def step(self, states: ArcState, actions: PointAction) -> tuple:
        states, observation, reward, done, info = super().step(states, actions)
        return states, observation, reward + self.environment.gift, done, info


def test_subclass_keeps_its_type_and_kernel() -> None:
    base, custom = (cls.create(row_config(), ROW) for cls in (ArcEnvironment, Generous))
    assert type(custom) is Generous and type(base) is ArcEnvironment and custom != base
    for changed in (
        custom.with_tasks(ROW),
        custom.with_reward(step_penalty=0.0),
        dataclasses.replace(custom, gift=1),
    ):
        assert type(changed) is Generous
    generous = dataclasses.replace(custom, gift=5.0)
    state, _ = jax.jit(generous.reset)(jax.random.key(0))
    action = PointAction(99, 0, 0)
    assert float(generous.step(state, action)[2]) == 4.0
    step = jax.jit(lambda environment, state: environment.step(state, action)[2])
    assert (
        float(step(generous, base.detach_names(state))) == 4.0
        and float(step(custom, base.detach_names(state))) == 0.0
    )
    assert repr(generous).startswith("Generous(canvas 2x4, ")
