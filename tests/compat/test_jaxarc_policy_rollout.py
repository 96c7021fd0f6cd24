"""Rollouts of policies, and features for value functions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    ArcTask,
    GridPair,
    PointAction,
    batch_reset,
    batch_step,
)
from phalanx.arc.config import DatasetConfig, EpisodeConfig
from phalanx.compat.jaxarc.batch_processing import (
    NetworkPolicy,
    batch_policy_rollout,
    compute_batch_values,
    extract_state_features,
)
from tests.helpers.policies import CELL, EVERY_COLOR, cell_task, only

SMALL = ArcConfig(
    episode=EpisodeConfig(max_episode_steps=3),
    dataset=DatasetConfig(max_grid_height=2, max_grid_width=2),
)
TASK = ArcTask("blue", (GridPair(np.zeros((2, 2), int), np.array([[1, 1], [0, 0]])),), ())


def started(config: ArcConfig, task: ArcTask, batch: int) -> ArcState:
    keys = np.random.default_rng(42).integers(0, 2**32, (batch, 2), np.uint32)
    return batch_reset(jax.device_put(keys), config, task)[0]


def on_host(tree: Any) -> Any:
    """Convert all leaves to NumPy arrays, which can be compared without compiling."""
    return jax.tree.map(
        lambda leaf: np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ),
        tree,
    )


def paints_along_the_top(states: ArcState) -> dict[str, Any]:
    """Cell (0, 0), then (0, 1): solved in two steps."""
    ones = jnp.ones_like(states.step_count)
    return {"actions": PointAction(ones, 0 * ones, states.step_count % 2), "log_probs": -1.0 * ones}


def paints_at_random(states: ArcState) -> dict[str, Any]:
    """Paint a random cell in a random color. The keys depend on the step."""
    count = len(states.step_count)
    key = jax.random.fold_in(jax.random.PRNGKey(6), states.step_count[0])
    color, row, column = jax.random.randint(key, (3, count), 0, jnp.array([[10], [2], [2]]))
    return {"actions": PointAction(color, row, column), "log_probs": jnp.full(count, -jnp.log(40.0))}


def test_rollout_has_ten_steps_by_default() -> None:
    states = started(SMALL, TASK, 5)
    trajectory = batch_policy_rollout(paints_at_random, states, SMALL)
    assert set(trajectory) == {"states", "actions", "rewards", "dones", "log_probs"}
    for name in ("rewards", "dones", "log_probs"):
        assert trajectory[name].shape == (10, 5)
    assert trajectory["states"].working_grid.shape == (10, 5, 2, 2)
    assert trajectory["actions"].col.shape == (10, 5)
    assert np.allclose(trajectory["log_probs"], -np.log(40))


def test_value_function_gets_the_features_of_the_states() -> None:
    states = started(SMALL, TASK, 5)
    steps_left = compute_batch_values(lambda features: 3 - features["step_count"], states)
    assert steps_left.tolist() == [3] * 5
    wrong = compute_batch_values(lambda f: (f["working_grid"] != f["target_grid"]).sum((1, 2)), states)
    assert wrong.tolist() == [2] * 5
    similarity = compute_batch_values(lambda features: features["similarity"], states)
    assert np.array_equal(similarity, states.similarity_score)


def test_rollout_equals_loop_of_single_steps() -> None:
    states, policy = started(SMALL, TASK, 2), jax.jit(paints_along_the_top)
    trajectory = on_host(batch_policy_rollout(paints_along_the_top, states, SMALL, num_steps=3))
    for step in range(3):
        actions = policy(states)["actions"]
        at = jax.tree.map(lambda leaf, step=step: leaf[step], trajectory)
        assert jax.tree.all(jax.tree.map(np.array_equal, at["states"], on_host(states)))
        assert jax.tree.all(jax.tree.map(np.array_equal, at["actions"], on_host(actions)))
        states, _, rewards, dones, _ = batch_step(states, actions, SMALL)
        assert np.array_equal(at["rewards"], rewards)
        assert np.array_equal(at["dones"], dones)


def test_finished_environments_get_no_further_reward() -> None:
    trajectory = batch_policy_rollout(paints_along_the_top, started(SMALL, TASK, 2), SMALL, num_steps=3)
    assert trajectory["dones"].tolist() == [[False, False], [True, True], [True, True]]
    assert np.asarray(trajectory["rewards"])[2].tolist() == [0.0, 0.0]
    assert trajectory["log_probs"].tolist() == [[-1.0, -1.0]] * 3
    assert trajectory["states"].step_count.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_environment_is_accepted_instead_of_its_config() -> None:
    environment = ArcEnvironment.create(SMALL, TASK)
    states = started(SMALL, TASK, 2)
    by_config = batch_policy_rollout(paints_along_the_top, states, SMALL, num_steps=3)
    by_environment = batch_policy_rollout(paints_along_the_top, states, environment, num_steps=3)
    assert jax.tree.all(jax.tree.map(np.array_equal, *map(on_host, (by_config, by_environment))))


def test_new_key_in_a_partial_does_not_compile_again() -> None:
    traces = []

    def draws(scale: float, states: ArcState, *, key: jax.Array) -> dict[str, Any]:
        traces.append(1)
        colors = jax.random.randint(key, states.step_count.shape, 0, 10)
        nothing = jnp.zeros_like(colors)
        return {"actions": PointAction(colors, nothing, nothing), "log_probs": jnp.full(8, jnp.log(scale))}

    states = started(SMALL, TASK, 8)
    first, second, again = (
        batch_policy_rollout(functools.partial(draws, 0.1, key=jax.random.key(n)), states, SMALL, num_steps=2)
        for n in (0, 1, 0)
    )
    assert len(traces) == 1
    assert not np.array_equal(first["actions"].operation, second["actions"].operation)
    assert np.array_equal(first["actions"].operation, again["actions"].operation)


def test_invalid_policy_output_is_reported() -> None:
    states = started(SMALL, TASK, 2)
    with pytest.raises(TypeError, match=r"a dict with 'actions' and 'log_probs', got \['actions'\]"):
        batch_policy_rollout(lambda states: {"actions": 1}, states, SMALL)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        batch_policy_rollout(paints_along_the_top, states, SMALL, num_steps=0)


def test_state_features_describe_each_state() -> None:
    features = extract_state_features(started(SMALL, TASK, 2))
    assert features["working_grid"].tolist() == [[[0, 0], [0, 0]]] * 2
    assert features["target_grid"].tolist() == [[[1, 1], [0, 0]]] * 2
    assert features["similarity"].tolist() == [0.5, 0.5]
    assert features["step_count"].tolist() == [0, 0]


def test_network_acts_greedily_without_a_key() -> None:
    environment = ArcEnvironment.create(CELL, cell_task("red", [2]))
    policy = NetworkPolicy(only(2), environment)
    states = started(CELL, cell_task("red", [2]), 3)
    trajectory = batch_policy_rollout(policy, states, environment, num_steps=1)
    assert trajectory["actions"].operation.tolist() == [[2, 2, 2]]
    assert trajectory["log_probs"].tolist() == [[0.0, 0.0, 0.0]]
    assert trajectory["dones"].tolist() == [[True, True, True]]
    assert jax.jit(lambda states: policy(states))(states)["values"].tolist() == [0.5, 0.5, 0.5]


def test_network_with_a_key_samples_for_each_environment_and_step() -> None:
    config = CELL.model_copy(update={"episode": EpisodeConfig(max_episode_steps=20, require_submit=True)})
    task = cell_task("red", [2])
    environment = ArcEnvironment.create(config, task)
    states = started(config, task, 20)

    def drawn(seed: int) -> np.ndarray:
        policy = NetworkPolicy(EVERY_COLOR, environment, jax.random.key(seed))
        trajectory = batch_policy_rollout(policy, states, environment, num_steps=20)
        assert np.allclose(trajectory["log_probs"], np.log(0.1))
        return np.asarray(trajectory["actions"].operation)

    colors = drawn(0)
    assert len({tuple(row) for row in colors}) == len({tuple(column) for column in colors.T}) == 20
    assert np.array_equal(colors, drawn(0))
    assert not np.array_equal(colors, drawn(1))
