"""Stacking, padding and splitting of batches."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    ArcTask,
    GridPair,
    PointAction,
    as_grid,
    batch_step,
)
from phalanx.arc.spec import make_arc
from phalanx.compat.jaxarc.batch_processing import (
    combine_batch_results,
    pad_actions,
    pad_states,
    process_dynamic_batch,
    stack_actions,
    stack_states,
    unpad_results,
)
from phalanx.core.vector import _step, select_rows

TASK = ArcTask("nines", (GridPair(as_grid([[0, 0]]), as_grid([[9, 9]])),), ())
CONFIG = ArcConfig(dataset={"max_grid_height": 2, "max_grid_width": 2})
ENVIRONMENT = ArcEnvironment.create(CONFIG, TASK)


@functools.cache
def painted(color: int) -> ArcState:
    """Return a state in which the first cell has a color."""
    return ENVIRONMENT.state_from_grid([[color, 0]])


def fill(color: int) -> PointAction:
    """Return the action that fills the first cell."""
    return PointAction(color, 0, 0)


def colors(states: ArcState) -> list[int]:
    """Return the color of the first cell of each state."""
    return states.working_grid[:, 0, 0].tolist()


def test_mask_selects_rows_in_all_leaves() -> None:
    mask = jnp.array([True, False])
    new = {"a": jnp.array([[1, 2], [3, 4]]), "b": jnp.array([5.0, 6.0]), "none": None}
    old = {"a": jnp.zeros((2, 2), jnp.int32), "b": jnp.zeros(2), "none": None}
    chosen = select_rows(mask, new, old)
    assert chosen["a"].tolist() == [[1, 2], [0, 0]] and chosen["b"].tolist() == [5.0, 0.0]
    grid = select_rows(jnp.array([[True, False]]), jnp.ones((1, 2, 3)), jnp.zeros((1, 2, 3)))
    assert grid.tolist() == [[[1.0] * 3, [0.0] * 3]]
    assert float(select_rows(jnp.array(True), jnp.float32(1), jnp.float32(2))) == 1.0


def test_stacking_adds_a_leading_batch_axis():
    states = stack_states([painted(1), painted(4)])
    assert colors(states) == [1, 4]
    assert states.similarity.shape == (2,) and states.tasks is painted(1).tasks
    assert stack_actions([fill(3), fill(5)]).operation.tolist() == [3, 5]


def test_padding_repeats_the_last_row():
    assert colors(pad_states([painted(1), painted(4)], 4)) == [1, 4, 4, 4]
    assert pad_actions([fill(2)], 3).operation.tolist() == [2, 2, 2]
    assert colors(pad_states([painted(1), painted(4)], 2)) == [1, 4]


def test_unpadding_keeps_the_first_rows_of_all_leaves():
    padded = {"a": jnp.arange(4), "b": (jnp.zeros((4, 2)),)}
    kept = unpad_results(padded, 3)
    assert kept["a"].tolist() == [0, 1, 2]
    assert kept["b"][0].shape == (3, 2)


def test_batch_results_are_concatenated_in_order():
    combined = combine_batch_results(
        [(jnp.array([1, 2]), jnp.zeros((2, 3))), (jnp.array([3]), jnp.ones((1, 3)))]
    )
    assert combined[0].tolist() == [1, 2, 3]
    assert combined[1].sum(1).tolist() == [0, 0, 3]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 9, 31, 34, 99])), min_size=1, max_size=9))
def test_dynamic_batch_equals_single_steps(cases):
    states = [painted(color) for color, _ in cases]
    actions = [fill(operation) for _, operation in cases]
    results = process_dynamic_batch(states, actions, ENVIRONMENT, max_batch_size=4)
    alone = [
        batch_step(stack_states([state] * 4), stack_actions([action] * 4), ENVIRONMENT)
        for state, action in zip(states, actions, strict=True)
    ]
    expected = jax.tree.map(lambda *leaves: np.stack([leaf[0] for leaf in leaves]), *alone)
    assert eqx.tree_equal(jax.tree.map(np.asarray, results), expected)


def test_all_batch_sizes_use_one_compiled_shape():
    environment = make_arc(CONFIG, task=TASK, max_episode_steps=77)
    process_dynamic_batch([painted(1)], [fill(2)], environment, max_batch_size=4)
    compiled = _step._cache_size()
    for count in (2, 4, 5, 9):
        states, *_ = process_dynamic_batch([painted(1)] * count, [fill(2)] * count, environment, 4)
        assert colors(states) == [2] * count
    assert _step._cache_size() == compiled


def test_incompatible_states_are_rejected():
    with pytest.raises(ValueError, match="need at least one state, got an empty list"):
        stack_states([])
    with pytest.raises(ValueError, match="need at least one action, got an empty list"):
        pad_actions([], 4)
    with pytest.raises(ValueError, match="cannot pad 3 states to 2; increase the size or split the list"):
        pad_states([painted(0)] * 3, 2)
    with pytest.raises(ValueError, match=r"actions with different structures .* action 1 is"):
        stack_actions([jnp.int32(0), {"action": jnp.int32(0)}])
    with pytest.raises(ValueError, match=r"state 1 has shapes \[\(3,\)\], state 0 has \[\(2,\)\]"):
        stack_states([jnp.zeros(2), jnp.zeros(3)])
    with pytest.raises(ValueError, match="every state needs one action: got 2 states and 1 actions"):
        process_dynamic_batch([painted(0)] * 2, [fill(0)], ENVIRONMENT)
    with pytest.raises(ValueError, match="need at least one state"):
        process_dynamic_batch([], [], ENVIRONMENT)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1, got 0"):
        process_dynamic_batch([painted(0)], [fill(0)], ENVIRONMENT, 0)
    with pytest.raises(ValueError, match=r"cannot take 3 results from a batch: result\[0\] has shape \(2,\)"):
        unpad_results((jnp.zeros(2),), 3)
    with pytest.raises(ValueError, match="need at least one batch result"):
        combine_batch_results([])
