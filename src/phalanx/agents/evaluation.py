"""Whole episodes of a policy, in any environment: to measure it, and to look at it.

Scores over all tasks of an ARC environment are in `arc_evaluation`; episodes to learn from in `rollouts`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.agents.ppo.rollouts import Game, Network
from phalanx.arc.state import ArcState, named_tasks
from phalanx.core.batching import map_where
from phalanx.core.environment import Key, Keys

_CHUNK = 64
"""Running episodes that the network looks at together, once others of a large batch have ended."""
_SUCCESS, _SIMILARITY = "success_mask", "similarity_scores"

TaskName = Callable[[Any], str]
"""From the state at the start of an episode to its task's id."""


class Played(eqx.Module):
    """What became of a batch of episodes."""

    returns: Float[Array, " batch"]
    """Sums of rewards."""
    lengths: Int32[Array, " batch"]
    """Steps taken; 0 for an episode that had ended before."""
    done: Bool[Array, " batch"]
    """False where `max_steps` was too few."""
    measures: dict[str, Array]
    """The game's measures at the last step of each episode."""
    final_states: PyTree
    step_states: PyTree | None = None
    """The states after each step, [time, batch], where they were asked for; the last is repeated."""


def play(
    game: Game,
    network: Network,
    states: PyTree,
    observations: PyTree,
    keys: Keys | None,
    max_steps: int,
    greedy: bool = False,
    record: bool = False,
) -> Played:
    """Play a batch of episodes from where they are to their ends, or for `max_steps` steps.

    An episode depends on its own state and key alone, not on its neighbours; a greedy policy needs no keys.
    The compiled run is kept: arrays of the network may change without a new compilation.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if keys is None and not greedy:
        raise ValueError("a sampled policy needs a key for each episode, got None")
    return _compiled_play(game, network, states, observations, None if greedy else keys, max_steps, record)


def play_traced(
    game: Game,
    network: Network,
    states: PyTree,
    observations: PyTree,
    keys: Keys | None,
    max_steps: int,
    record: bool,
) -> Played:
    """`play` inside a function that is compiled as a whole; greedy where there are no keys."""
    over = game.environment.is_done(states)

    def act(seen: tuple[PyTree, Key | None]) -> PyTree:
        observation, key = seen
        distribution = game.distribution(network(observation)[0], observation)
        return distribution.mode() if key is None else distribution.sample(key)

    def step(carry: tuple[Array, PyTree, Played]) -> tuple[Array, PyTree, Played]:
        time, observations, played = carry
        now = None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        running = ~played.done
        actions = map_where(act, running, (observations, now), idle, _CHUNK)
        states, observations, rewards, done, info = game.environment.batch_step(played.final_states, actions)
        measures = jax.tree.map(
            lambda new, old: jnp.where(running, new, old), game.measure(info), played.measures
        )
        after = Played(
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
    idle = zeros(jax.eval_shape(jax.vmap(act), (observations, keys)))
    info = jax.eval_shape(game.environment.batch_step, states, idle)[4]
    start = Played(
        jnp.zeros(over.shape, jnp.float32),
        jnp.zeros(over.shape, jnp.int32),
        over,
        zeros(jax.eval_shape(game.measure, info)),
        states,
    )
    carry = (jnp.int32(0), observations, start)
    if not record:
        return jax.lax.while_loop(lambda at: (at[0] < max_steps) & ~jnp.all(at[2].done), step, carry)[2]

    def recorded(carry: tuple[Array, PyTree, Played], _: None) -> tuple[tuple[Array, PyTree, Played], PyTree]:
        after = step(carry)
        return after, after[2].final_states

    (_, _, played), step_states = jax.lax.scan(recorded, carry, None, length=max_steps)
    return eqx.tree_at(lambda p: p.step_states, played, step_states, is_leaf=lambda leaf: leaf is None)


_compiled_play = eqx.filter_jit(play_traced)


def watch(
    game: Game,
    network: Network,
    key: Key,
    count: int,
    max_steps: int,
    *,
    greedy: bool = False,
    episode_num: int = 0,
    task_name: TaskName | None = None,
) -> list[dict[str, Any]]:
    """A few whole episodes with all their states, as `ExperimentLogger.log_episode_summary` takes them.

    The key draws the episodes and the actions: the same key and network give the same list. `step_states`
    are the states after each step, so the last of them is `final_state`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    initial, played = _compiled_watch(game, network, key, count, max_steps, greedy)
    # One transfer for all that the loop below reads number by number.
    numbers = jax.device_get((played.returns, played.lengths, played.measures))
    return [
        _episode(initial, played, numbers, row, episode_num, task_name or _task_name) for row in range(count)
    ]


@eqx.filter_jit
def _compiled_watch(
    game: Game, network: Network, key: Key, count: int, max_steps: int, greedy: bool
) -> tuple[PyTree, Played]:
    reset_key, play_key = jax.random.split(key)
    states, observations = game.environment.batch_reset(jax.random.split(reset_key, count))
    keys = None if greedy else jax.random.split(play_key, count)
    return states, play_traced(game, network, states, observations, keys, max_steps, record=True)


def _episode(
    initial: PyTree, played: Played, numbers: Any, row: int, episode_num: int, task_name: TaskName
) -> dict[str, Any]:
    returns, lengths, measures = numbers
    state = _row(initial, row)
    length = int(lengths[row])
    return {
        "episode_num": episode_num,
        "environment_id": row,
        "task_id": task_name(state),
        "total_reward": float(returns[row]),
        "total_steps": length,
        "final_similarity": float(measures[_SIMILARITY][row]) if "similarity_scores" in measures else 0.0,
        "success": bool(measures["success_mask"][row]) if "success_mask" in measures else False,
        "initial_state": state,
        "final_state": _row(played.final_states, row),
        "step_states": [_row(played.step_states, (step, row)) for step in range(length)],
    }


def _task_name(state: Any) -> str:
    """Of a state that refers to a buffer of tasks; other environments have no ids to give."""
    return named_tasks(state)[int(state.task_index)].id if isinstance(state, ArcState) else ""


def _row(states: PyTree, place: int | tuple[int, int]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[place], states)
