"""Whole episodes of a policy, in any environment: to measure it, and to show it.

Scores over all tasks of an ARC environment are in `arc_evaluation`; episodes to learn from in `rollouts`.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.vector import map_where
from phalanx.nn.policy_network import PolicyNetwork, select_action

Act = Callable[[PyTree, Key | None], PyTree]
"""Selects an action for one observation; the key is None for greedy actions. If it is a pytree, such as an
`equinox.Partial`, its arrays (the weights of a network) are traced."""

_CHUNK = 64
"""Running episodes that the network sees together, once others of a large batch have ended."""


class EpisodeResults(eqx.Module):
    """What became of a batch of episodes."""

    returns: Float[Array, " batch"]
    """Sums of rewards."""
    lengths: Int32[Array, " batch"]
    """Steps taken; 0 for an episode that had ended before."""
    done: Bool[Array, " batch"]
    """False where `max_steps` was too few."""
    measures: dict[str, Array]
    """The environment's measures at the last step of each episode."""
    final_states: PyTree
    step_states: PyTree | None = None
    """The states after each step, [time, batch], where they were asked for; the last is repeated."""


@eqx.filter_jit
def rollout_episodes(
    environment: Environment,
    act: Act,
    states: PyTree,
    observations: PyTree,
    keys: Keys | None,
    max_steps: int,
    record: bool = False,
) -> EpisodeResults:
    """Play a batch of episodes from where they are to their ends, or for `max_steps` steps.

    An episode depends on its own state and key alone, not on its neighbors; without keys the policy is
    greedy. The compiled run is kept: arrays of the network may change without a new compilation.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    over = environment.is_done(states)

    def step(carry: tuple[Array, PyTree, EpisodeResults]) -> tuple[Array, PyTree, EpisodeResults]:
        time, observations, played = carry
        now = None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        running = ~played.done
        actions = map_where(lambda seen: act(*seen), running, (observations, now), idle, _CHUNK)
        states, observations, rewards, done, info = environment.batch_step(played.final_states, actions)
        measures = jax.tree.map(
            lambda new, old: jnp.where(running, new, old), environment.measures(info), played.measures
        )
        after = EpisodeResults(
            played.returns + jnp.where(running, rewards, 0.0),
            played.lengths + running,
            done,
            measures,
            states,
        )
        return time + 1, observations, after

    def zeros(shapes: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    # What finished episodes are stepped with: whatever it is, it changes nothing.
    idle = zeros(jax.eval_shape(jax.vmap(act), observations, keys))
    info = jax.eval_shape(environment.batch_step, states, idle)[4]
    start = EpisodeResults(
        jnp.zeros(over.shape, jnp.float32),
        jnp.zeros(over.shape, jnp.int32),
        over,
        zeros(jax.eval_shape(environment.measures, info)),
        states,
    )
    carry = (jnp.int32(0), observations, start)
    if not record:
        return jax.lax.while_loop(lambda at: (at[0] < max_steps) & ~jnp.all(at[2].done), step, carry)[2]

    def recorded(
        carry: tuple[Array, PyTree, EpisodeResults], _: None
    ) -> tuple[tuple[Array, PyTree, EpisodeResults], PyTree]:
        after = step(carry)
        return after, after[2].final_states

    (_, _, played), step_states = jax.lax.scan(recorded, carry, None, length=max_steps)
    return eqx.tree_at(lambda p: p.step_states, played, step_states, is_leaf=lambda leaf: leaf is None)


def map_batches(
    attempt: Callable[[Int[np.ndarray, " batch"]], tuple[Array, ...]], count: int, most: int
) -> list[np.ndarray]:
    """What `attempt` gives for each of `count` rows, in as few batches as may be, all of one shape.

    The last batch is filled up with rows that are dropped.
    """
    size = math.ceil(count / math.ceil(count / most))
    found = [attempt(np.arange(start, start + size) % count) for start in range(0, count, size)]
    return [np.concatenate(parts)[:count] for parts in zip(*jax.device_get(found), strict=True)]


def record_episodes(
    environment: Environment,
    network: PolicyNetwork,
    key: Key,
    count: int,
    max_steps: int,
    *,
    greedy: bool = False,
    episode_num: int = 0,
) -> list[dict[str, Any]]:
    """A few whole episodes with all their states, as `ExperimentLogger.log_episode_summary` takes them.

    The key draws the episodes and the actions: the same key and network give the same list. `step_states`
    are the states after each step, so the last of them is `final_state`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    initial, played = _recorded(environment, network, key, count, max_steps, greedy)
    # One transfer for all that the loop below reads number by number and state by state.
    numbers = jax.device_get((played.returns, played.lengths, played.measures))
    states = _on_host((initial, played.final_states, played.step_states))
    return [_episode(environment, states, numbers, row, episode_num) for row in range(count)]


@eqx.filter_jit
def _recorded(
    environment: Environment,
    network: PolicyNetwork,
    key: Key,
    count: int,
    max_steps: int,
    greedy: bool,
) -> tuple[PyTree, EpisodeResults]:
    reset_key, play_key = jax.random.split(key)
    states, observations = environment.batch_reset(jax.random.split(reset_key, count))
    keys = None if greedy else jax.random.split(play_key, count)
    act = eqx.Partial(select_action, network)
    return states, rollout_episodes(environment, act, states, observations, keys, max_steps, record=True)


def _episode(
    environment: Environment,
    states: tuple[PyTree, PyTree, PyTree],
    numbers: Any,
    row: int,
    episode_num: int,
) -> dict[str, Any]:
    initial, final, steps = states
    returns, lengths, measures = numbers
    state = environment.bind(_row(initial, row))
    length = int(lengths[row])
    similarity = measures["similarity_scores"][row] if "similarity_scores" in measures else 0.0
    return {
        "episode_num": episode_num,
        "environment_id": row,
        "task_id": environment.task_name(state),
        "total_reward": float(returns[row]),
        "total_steps": length,
        "final_similarity": float(similarity),
        "success": bool(measures["success_mask"][row]) if "success_mask" in measures else False,
        "initial_state": state,
        "final_state": environment.bind(_row(final, row)),
        "step_states": [environment.bind(_row(steps, (step, row))) for step in range(length)],
    }


def _on_host(states: PyTree) -> PyTree:
    """Their arrays on the host, where a row is no program for each shape; keys stay where they are."""
    return jax.tree.map(
        lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf), states
    )


def _row(states: PyTree, place: int | tuple[int, int]) -> PyTree:
    return jax.tree.map(lambda leaf: jax.device_put(leaf[place], may_alias=False), states)
