"""The default network follows from the spaces of an environment."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core import Box, Composite, DefaultNetworkConfig, Discrete, Space, policy_from_spaces
from phalanx.core.policy_from_spaces import scale_to_bounds
from phalanx.nn.distributions import DiagonalGaussian, Factored, MaskedCategorical

pytestmark = pytest.mark.slow

CONFIG = DefaultNetworkConfig(hidden_dim=8, num_layers=2, embedding_dim=4)
KEY = jax.random.key(0)
THREE = Discrete(3)


class Seen(eqx.Module):
    position: Any
    color: Any
    action_mask: Any


class Press(eqx.Module):
    button: Any
    force: Any


MASK = Box(0, 1, (3,), np.bool_)
FIELDS = {"position": Box(-2.0, 2.0, (2,)), "color": Discrete(5), "action_mask": MASK}
PRESS = Composite.of(Press, {"button": THREE, "force": Box(-1.0, 1.0, (2, 2))})
OBSERVATIONS = {
    "vector": Box(-2.0, 2.0, (4,)),
    "scalar": Box(0.0, 1.0, ()),
    "infinite bounds": Box(-math.inf, math.inf, (4,)),
    "image": Box(0, 255, (20, 30, 3), np.uint8),
    "grayscale image": Box(0.0, 1.0, (6, 5)),
    "integer grid": Box(-1, 9, (5, 7), np.int8),
    "integer": Discrete(6),
    "class": Composite.of(Seen, FIELDS),
    "dictionary": Composite.of(dict, FIELDS),
}
ACTIONS = {
    "choice": THREE,
    "number": Box(-1.0, 1.0, ()),
    "numbers": Box(-1.0, 1.0, (2, 2)),
    "factored": PRESS,
    "factored dictionary": Composite.of(dict, dict(PRESS.fields)),
}
CASES = [(name, "choice") for name in OBSERVATIONS] + [
    ("class", name) for name in ACTIONS if name != "choice"
]


def network_for(observation: Space, action: Space) -> Any:
    return policy_from_spaces(observation, action, CONFIG, KEY)


def sample(space: Space, number: int = 1) -> Any:
    if isinstance(space, Box) and math.isinf(space.high):
        return jax.random.normal(jax.random.key(number), space.shape)
    return space.sample(jax.random.key(number))


@pytest.mark.parametrize(("observation", "action"), CASES)
def test_actions_are_in_the_space_and_every_parameter_gets_a_gradient(observation: str, action: str) -> None:
    spaces = OBSERVATIONS[observation], ACTIONS[action]
    network, seen = network_for(*spaces), sample(spaces[0])
    if isinstance(spaces[0], Composite):
        fields = seen if isinstance(seen, dict) else vars(seen)
        seen = spaces[0].constructor(**{**fields, "action_mask": jnp.array([True, False, True])})

    def outputs(network: Any) -> tuple[Any, Any]:
        policy, value = network(seen)
        chosen = jax.lax.stop_gradient(policy.sample(KEY))
        return policy.log_prob(chosen) + policy.entropy() + value, (chosen, policy.mode(), value)

    gradient, (chosen, mode, value) = eqx.filter_jit(eqx.filter_grad(outputs, has_aux=True))(network)
    assert value.shape == ()
    assert jax.tree.structure(chosen) == jax.tree.structure(sample(spaces[1]))
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(chosen)]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(mode)]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(sample(spaces[1]))]
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    assert len(leaves) == len(jax.tree.leaves(eqx.filter(network, eqx.is_array)))
    for path, leaf in leaves:
        assert np.isfinite(leaf).all() and np.any(leaf != 0), jax.tree_util.keystr(path)


@pytest.mark.parametrize("observation", ["integer grid", "dictionary"])
def test_eager_compiled_and_batched_results_are_equal(observation: str) -> None:
    space = OBSERVATIONS[observation]
    network, seen = network_for(space, PRESS), sample(space)
    policy, value = network(seen)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), seen)
    for actual, result in (
        (eqx.filter_jit(network)(seen), (policy, value)),
        (jax.vmap(network)(batch), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (policy, value))),
    ):
        for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(result), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("observation", ["class", "dictionary"])
def test_mask_excludes_choices_and_is_not_an_input(observation: str) -> None:
    space = OBSERVATIONS[observation]
    mask = jnp.array([False, True, False])
    fields = {"position": jnp.zeros(2), "color": jnp.int32(1), "action_mask": mask}
    seen = fields if observation == "dictionary" else Seen(**fields)
    network = network_for(space, THREE)
    policy, _ = network(seen)
    assert isinstance(policy, MaskedCategorical)
    assert policy.log_probs().tolist() == [-math.inf, 0.0, -math.inf]
    assert list(network.encoders) == ["color", "position"]
    factored, _ = network_for(space, PRESS)(seen)
    assert isinstance(factored, Factored)
    assert int(factored.mode().button) == 1


def test_kinds_of_distributions() -> None:
    space = OBSERVATIONS["vector"]
    choice, _ = network_for(space, THREE)(jnp.zeros(4))
    numbers, _ = network_for(space, ACTIONS["numbers"])(jnp.zeros(4))
    assert isinstance(choice, MaskedCategorical) and choice.mask is None
    assert isinstance(numbers, DiagonalGaussian)
    assert numbers.mean.shape == numbers.log_std.shape == (2, 2)
    assert numbers.log_std.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(np.exp(choice.log_probs()), [1 / 3] * 3, atol=0.01)


def test_fields_of_dictionaries_can_be_in_any_order() -> None:
    """JAX sorts the keys of dictionaries, for example when an environment is stepped under `jit`."""
    backward = Composite.of(dict, dict(reversed(FIELDS.items())))
    seen = sample(OBSERVATIONS["dictionary"])
    policy, value = network_for(backward, THREE)(dict(reversed(seen.items())))
    expected, expected_value = network_for(OBSERVATIONS["dictionary"], THREE)(seen)
    assert eqx.tree_equal((policy, value), (expected, expected_value))


def test_values_are_scaled_by_finite_bounds() -> None:
    assert scale_to_bounds(Box(0, 10, (3,), np.int32), jnp.array([0, 5, 10])).tolist() == [-1.0, 0.0, 1.0]
    assert scale_to_bounds(Box(0, 1, (2,), np.bool_), jnp.array([False, True])).tolist() == [-1.0, 1.0]
    assert scale_to_bounds(Box(0.0, math.inf, (1,)), jnp.array([7.0])).tolist() == [7.0]
    assert scale_to_bounds(Box(3.0, 3.0, (1,)), jnp.array([3.0])).tolist() == [3.0]


def test_grids_of_few_integers_are_embedded() -> None:
    def table(space: Space) -> Any:
        return network_for(space, THREE).encoders[""].table

    assert table(OBSERVATIONS["integer grid"]).shape == (11, 4)
    assert table(Box(0, 1, (3, 3), np.bool_)).shape == (2, 4)
    assert table(Box(0, 255, (3, 3), np.uint8)) is None
    assert table(OBSERVATIONS["image"]) is None


def test_large_images_are_pooled() -> None:
    def num_inputs(*shape: int) -> int:
        return network_for(Box(0.0, 1.0, shape), THREE).encoders[""].dense.weight.shape[0]

    assert num_inputs(16, 16, 3) == 16 * 16 * 4
    assert num_inputs(33, 16, 3) == 17 * 8 * 4
    assert num_inputs(64, 64) == 16 * 16 * 4


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            Box(0, 1, (2, 2, 2, 2)),
            THREE,
            "there is no default network for observation: Box(low=0, high=1, shape=(2,",
        ),
        (Composite.of(dict, {"a": OBSERVATIONS["class"]}), THREE, "for observation.a: Composite("),
        (Composite.of(dict, {"action_mask": MASK}), THREE, "has no inputs for a network"),
        (THREE, Box(0, 3, (2,), np.int32), "there is no default network for action: Box("),
        (
            THREE,
            Composite.of(dict, {"a": THREE, "b": PRESS}),
            "there is no default network for action.b: Composite(",
        ),
    ],
    ids=["four axes", "nested", "only a mask", "integers", "nested action"],
)
def test_unsupported_space_is_one_line_with_the_remedy(
    observation: Space, action: Space, message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        network_for(observation, action)
    text = str(caught.value)
    assert message in text and "\n" not in text
    assert text.endswith("pass a network, such as --network file.py:Name, or set EnvSpec.network")
