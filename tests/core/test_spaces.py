"""Helpers of spaces: ranges, bounds, masks and composites that are dictionaries or classes."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.spaces import (
    Box,
    Composite,
    Discrete,
    check_fields,
    clip_to_bounds,
    find_mismatch,
    get_field,
    is_in_range,
    masked_choice,
    masked_size,
    replace_choice,
    sample_legal,
)

KEY = jax.random.key(0)


class Press(eqx.Module):
    button: Any
    force: Any


FIELDS = {"button": Discrete(3), "force": Box(-1.0, 1.0, (2,))}
SPACES = {"class": Composite.of(Press, FIELDS), "dictionary": Composite.of(dict, FIELDS)}
both_kinds = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def press(space: Composite, button: Any = 1, force: Any = (0.0, 0.5)) -> Any:
    return space.constructor(button=jnp.asarray(button), force=jnp.asarray(force))


@pytest.mark.parametrize(("choice", "expected"), [(-1, False), (0, True), (2, True), (3, False)])
def test_discrete_actions_are_in_range(choice: int, expected: bool) -> None:
    assert bool(is_in_range(Discrete(3), choice)) is expected
    assert bool(jax.jit(lambda action: is_in_range(Discrete(3), action))(choice)) is expected
    for space in SPACES.values():
        assert bool(is_in_range(space, press(space, choice))) is expected


def test_boxes_are_always_in_range() -> None:
    assert bool(is_in_range(Box(0.0, 1.0, (2,)), jnp.array([-5.0, 5.0])))
    assert bool(is_in_range(Box(0, 1, (2,), np.int32), jnp.array([-5, 5])))


@both_kinds
def test_boxes_of_floats_are_clipped(space: Composite) -> None:
    clipped = clip_to_bounds(space, press(space, 7, (-3.0, 0.25)))
    assert isinstance(clipped, space.constructor)
    assert int(get_field(clipped, "button")) == 7
    assert get_field(clipped, "force").tolist() == [-1.0, 0.25]
    unbounded = Box(0.0, math.inf, (2,))
    assert clip_to_bounds(unbounded, jnp.array([-1.0, 9e9])).tolist() == [0.0, np.float32(9e9)]
    assert clip_to_bounds(Box(0, 1, (2,), np.int32), jnp.array([-5, 5])).tolist() == [-5, 5]


def test_legal_actions_are_sampled_uniformly() -> None:
    mask = jnp.array([True, False, True, True])
    draw = jax.jit(jax.vmap(lambda key: sample_legal(Discrete(4), key, mask)))
    sampled = draw(jax.random.split(KEY, 3000))
    assert sampled.dtype == jnp.int32
    counts = np.bincount(sampled, minlength=4)
    assert counts[1] == 0
    chi_square = np.sum((counts[[0, 2, 3]] - 1000) ** 2 / 1000)
    assert chi_square < 13.82  # what two degrees of freedom pass once in a thousand


@both_kinds
def test_mask_applies_to_the_first_field(space: Composite) -> None:
    sampled = sample_legal(space, KEY, jnp.array([False, False, True]))
    assert isinstance(sampled, space.constructor)
    assert int(masked_choice(space, sampled)) == 2
    assert space.contains(sampled)
    assert masked_size(space) == 3
    replaced = replace_choice(space, sampled, jnp.int32(0))
    assert int(get_field(replaced, "button")) == 0
    assert get_field(replaced, "force").tolist() == get_field(sampled, "force").tolist()


def test_without_a_mask_the_space_is_sampled() -> None:
    space = Box(2.0, 3.0, (4,))
    np.testing.assert_array_equal(sample_legal(space, KEY, None), space.sample(KEY))
    assert masked_size(space) is None
    assert masked_size(Composite.of(dict, {"force": space, "button": Discrete(3)})) is None


@both_kinds
def test_composites_contain_their_samples(space: Composite) -> None:
    assert space.contains(space.sample(KEY))
    assert not space.contains(press(space, 3))
    assert not space.contains(jnp.int32(1))
    assert hash(space) == hash(Composite.of(space.constructor, FIELDS))


def test_mismatches_of_dictionaries_are_named() -> None:
    space = SPACES["dictionary"]
    value = {"button": jnp.int32(1), "force": jnp.zeros(2)}
    assert find_mismatch(space, value, "action") is None
    assert find_mismatch(space, {"button": value["button"]}, "action") == (
        "action must have the keys button, force, got button"
    )
    assert find_mismatch(space, {**value, "force": jnp.zeros(3)}, "action") == (
        "action.force must have shape (2,), got (3,)"
    )
    with pytest.raises(TypeError, match="action must be a dictionary with the keys button, force, got list"):
        check_fields(space, [1, 2], "action")
