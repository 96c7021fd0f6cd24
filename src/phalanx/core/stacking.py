"""From lists of states and actions to batches and back: stack, pad, unpad, combine.

Works on any pytree; stepping what was stacked is in `batching`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from phalanx.core.batching import batch_step
from phalanx.core.environment import Environment, EnvironmentConfigLike


def stack_states(states_list: Sequence[PyTree]) -> PyTree:
    """One batch of states from single ones."""
    return _stack(states_list, "state")


def stack_actions(actions_list: Sequence[PyTree]) -> PyTree:
    """One batch of actions from single ones; they must share a format."""
    return _stack(actions_list, "action")


def pad_states(states_list: Sequence[PyTree], size: int) -> PyTree:
    """A batch of exactly `size` states; copies of the last one fill it."""
    return _stack(_pad(states_list, size, "state"), "state")


def pad_actions(actions_list: Sequence[PyTree], size: int) -> PyTree:
    """A batch of exactly `size` actions; copies of the last one fill it."""
    return _stack(_pad(actions_list, size, "action"), "action")


def unpad_results(results: PyTree, size: int) -> PyTree:
    """The first `size` entries of every leaf: what `batch_step` returned, without the padding."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        if leaf.ndim == 0 or leaf.shape[0] < size:
            raise ValueError(
                f"cannot take {size} results from a batch: result{jax.tree_util.keystr(path)} "
                f"has shape {leaf.shape}"
            )
    return jax.tree.map(lambda leaf: leaf[:size], results)


def combine_batch_results(results: Sequence[PyTree]) -> PyTree:
    """One result from the results of several batches, in order."""
    _check_alike(results, "batch result")
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)


def process_dynamic_batch(
    states_list: Sequence[PyTree],
    actions_list: Sequence[PyTree],
    config: Environment | EnvironmentConfigLike,
    max_batch_size: int = 64,
) -> tuple[Any, ...]:
    """Step any number of single states in batches of exactly `max_batch_size`, so that one shape compiles.

    More states than that are stepped in chunks, and the last (or only) chunk is padded. The result is
    `batch_step`'s, with as many entries as there are states.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    if len(states_list) != len(actions_list):
        raise ValueError(
            f"every state needs one action: got {len(states_list)} states and {len(actions_list)} actions"
        )
    _check_alike(states_list, "state")
    _check_alike(actions_list, "action")
    results = []
    for start in range(0, len(states_list), max_batch_size):
        states = states_list[start : start + max_batch_size]
        actions = actions_list[start : start + max_batch_size]
        padded = batch_step(pad_states(states, max_batch_size), pad_actions(actions, max_batch_size), config)
        results.append(unpad_results(padded, len(states)))
    return combine_batch_results(results)


def _stack(items: Sequence[PyTree], what: str) -> PyTree:
    _check_alike(items, what)

    def stack(*leaves: Array) -> Array:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    return jax.tree.map(stack, *items)


def _pad(items: Sequence[PyTree], size: int, what: str) -> list[PyTree]:
    if not items:
        raise ValueError(f"cannot pad an empty list of {what}s: there is nothing to fill it with")
    if len(items) > size:
        raise ValueError(f"cannot pad {len(items)} {what}s to {size}; raise the size or split the list")
    return [*items, *[items[-1]] * (size - len(items))]


def _check_alike(items: Sequence[PyTree], what: str) -> None:
    """Refuse an empty list and items of different kinds, naming the first that differs."""
    if not items:
        raise ValueError(f"need at least one {what}, got an empty list")
    first: Any = jax.tree.structure(items[0])
    for index, item in enumerate(items):
        structure: Any = jax.tree.structure(item)
        if structure != first:
            raise ValueError(
                f"{what}s of different kinds cannot form one batch: {what} 0 is {first}, "
                f"{what} {index} is {structure}"
            )
    # Results of batches may differ in their first axis; single states and actions may not differ at all.
    skip = 1 if what == "batch result" else 0
    shapes = [[jnp.shape(leaf)[skip:] for leaf in jax.tree.leaves(item)] for item in items]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"{what} {index} has shapes {shape}, {what} 0 has {shapes[0]}")
