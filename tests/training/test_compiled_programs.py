"""Algorithms compile few programs, and programs never use the arrays of another environment."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from phalanx.core import Discrete, Environment, EpisodeState, array_field
from phalanx.nn import Dense, MaskedCategorical
from phalanx.training import PPO, Algorithm, PPOConfig, RunConfig, TrainState, UpdateResult, jit_method
from phalanx.training.algorithm import load_algorithm
from tests.helpers.compilations import compiled_programs
from tests.helpers.example_runs import EXAMPLES

pytestmark = pytest.mark.slow

Reinforce = load_algorithm(str(EXAMPLES / "custom/algorithm.py"))


class Prize(EpisodeState):
    number: Array


class Prizes(Environment):
    """Every step pays one of the prizes, which are the tasks of the environment."""

    max_episode_steps: int = 2
    prizes: Array = array_field(default_factory=lambda: jnp.ones(3))
    observation_space = Discrete(3)
    action_space = Discrete(2)

    def initial_state(self, key: Any) -> Prize:
        return Prize(jax.random.randint(key, (), 0, 3))

    def transition(self, state: Prize, action: Any) -> tuple[Any, Any, Any]:
        return state, self.prizes[state.number], False

    def observe(self, state: Prize) -> Any:
        return state.number


TENS = Prizes(prizes=jnp.full(3, 10.0, jnp.float32))
TWICE = Prizes(prizes=jnp.full(6, 10.0, jnp.float32))


def reinforce(environment: Environment) -> Any:
    return Reinforce(Reinforce.config_type(num_envs=4, num_steps=2), environment)


def ppo(environment: Environment, network: Any = None) -> PPO:
    config = PPOConfig(num_envs=4, num_steps=4, num_updates=3, num_minibatches=2)
    return PPO(config, environment, network)


def paid(algorithm: Any, num_updates: int = 1) -> float:
    """Train and return the greatest reward of an episode of two steps in the last update."""
    state = algorithm.init(jax.random.key(0))
    for _ in range(num_updates):
        state, result = algorithm.update(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    ended = np.asarray(result.episodes["episode_lengths"]) == 2
    return float(np.max(np.asarray(result.episodes["episode_returns"])[ended]))


@pytest.mark.parametrize("create", [reinforce, ppo], ids=["reinforce", "ppo"])
def test_algorithm_trains_on_the_arrays_of_its_own_environment(
    create: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An equal algorithm, whose environment has other arrays of the same shapes, is compiled before."""
    first, second = create(Prizes()), create(TENS)
    assert first == second and hash(first) == hash(second)
    assert paid(first) == 2.0
    with compiled_programs(caplog) as names:
        assert paid(second) == 20.0
        assert paid(create(Prizes())) == 2.0
    assert names == [], "other arrays of the same shapes need no compilation"
    with compiled_programs(caplog) as names:
        assert paid(create(TWICE)) == 20.0
    assert names, "other shapes need a compilation"


class Total(Algorithm[TrainState]):
    """Adds the prizes of its environment in a compiled method that calls another one."""

    name = "total"
    config_type = RunConfig

    def init(self, key: Any, params: Any = None) -> TrainState:
        return TrainState(jnp.float32(0), (), jnp.int32(0))

    @jit_method
    def total(self) -> Array:
        return self.environment.prizes.sum()

    @jit_method(donate=("state",))
    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        return TrainState(state.params + self.total(), (), state.step + 1), UpdateResult({})

    def policy(self, state: TrainState) -> Any:
        return state.params


def test_nested_compiled_methods_use_the_traced_arrays() -> None:
    for environment, expected in ((Prizes(), 3.0), (TENS, 30.0), (TWICE, 60.0), (Prizes(), 3.0)):
        algorithm = Total(RunConfig(), environment)
        state, _ = algorithm.update(algorithm.init(jax.random.key(0)))
        assert (float(state.params), float(algorithm.total())) == (expected, expected)


def test_method_without_optimization_can_be_called_in_another_program() -> None:
    class Unoptimized(Total):
        @jit_method(optimize=False)
        def double(self, number: Array) -> Array:
            return 2 * number * self.environment.prizes[0]

    algorithm = Unoptimized(RunConfig(), TENS)
    assert float(algorithm.double(jnp.float32(1))) == 20.0
    assert float(jax.jit(algorithm.double)(jnp.float32(2))) == 40.0
    assert jax.eval_shape(algorithm.double, jnp.float32(1)).dtype == jnp.float32


class Layers(eqx.Module):
    """A network whose layers are in lists and dictionaries, which are not hashable."""

    hidden: list[Dense]
    heads: dict[str, Dense]
    activations: list[Any]

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.hidden = [Dense(3, 4, key=keys[0]), Dense(4, 4, key=keys[1])]
        self.heads = {"policy": Dense(4, 2, key=keys[2]), "value": Dense(4, 1, key=keys[3])}
        self.activations = [jnp.tanh, functools.partial(jnp.clip, min=-1.0)]

    def __call__(self, observation: Array) -> tuple[MaskedCategorical, Array]:
        features = jax.nn.one_hot(observation, 3)
        for layer, activation in zip(self.hidden, self.activations, strict=True):
            features = activation(layer(features))
        return MaskedCategorical(self.heads["policy"](features)), self.heads["value"](features)[0]


def test_networks_with_lists_and_dictionaries_of_layers_train() -> None:
    algorithm = ppo(Prizes(), Layers)
    assert paid(algorithm, 2) == 2.0
    before, after = algorithm.init(jax.random.key(0)).params, algorithm.init(jax.random.key(0))
    after, _ = algorithm.update(after)
    assert jax.tree.structure(before) == jax.tree.structure(after.params)
    changed = [
        bool((one != other).any())
        for one, other in zip(*map(jax.tree.leaves, (before, after.params)), strict=True)
    ]
    assert all(changed)


def test_three_updates_of_ppo_are_one_compiled_program(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = PPO(PPOConfig(num_envs=6, num_steps=5, num_updates=3, num_minibatches=2), Prizes())
    state = algorithm.init(jax.random.key(0))
    with compiled_programs(caplog) as names:
        for _ in range(3):
            state, _ = algorithm.update(state)
    assert len(names) == 1, names
