"""Functions that run episodes with a policy network or an agent, and that record episodes for a logger."""

import base64
import contextlib
import dataclasses
import functools
import math
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, Key, Keys, is_done
from phalanx.core.vector import batch_metrics, map_where, select_rows, zeros_like_shapes
from phalanx.nn.policy_network import PolicyNetwork, select_action

MAX_SHOWN_ENVS = 6
"""Maximum number of environments that the notebook view of a `BatchTrajectory` shows."""

AgentFunction = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Function `agent_fn(states, agent_state, key) -> (actions, new_agent_state)`.

It chooses the actions for an entire batch of environments, given their states. `agent_state` is a pytree that
the agent carries from step to step."""

Act = Callable[[PyTree, Key | None], PyTree]
"""Function `act(observation, key) -> action` for one environment. The key is None for greedy actions.

The function may be a pytree, such as an `equinox.Partial` with a network. Its arrays are then traced, so that
new weights do not cause recompilation."""

_CHUNK_SIZE = 64
"""On the CPU, `rollout_episodes` calls the policy for this many unfinished episodes at a time."""


class BatchTrajectory(eqx.Module):
    """Actions and step results of a batch of environments. Each leaf has shape `[steps, batch, ...]`."""

    actions: PyTree
    observations: PyTree
    """`observations[t]` is the observation after `actions[t]`."""
    rewards: Float[Array, "*steps batch"]
    """Reward of each step. Without auto-reset, it is 0 after an episode has ended."""
    dones: Bool[Array, "*steps batch"]
    """True from the last step of an episode onward. With auto-reset, True only at the last step of each
    episode."""
    infos: PyTree
    """Infos returned by the environment. With auto-reset, these are `AutoResetInfo`."""

    def _repr_html_(self) -> str:
        from phalanx import svg as drawing

        if self.rewards.ndim != 2:
            return f"<pre>{self!r}</pre>"
        rewards, dones = (np.asarray(array) for array in jax.device_get((self.rewards, self.dones)))
        totals, (steps, batch) = rewards.cumsum(0), rewards.shape
        ends = (float(min(totals.min(), 0)), float(max(totals.max(), 0)))
        rows = []
        for number in range(min(batch, MAX_SHOWN_ENVS)):
            ended = (
                f"ended at step {dones[:, number].argmax() + 1}" if dones[:, number].any() else "not ended"
            )
            caption = f"environment {number}: return {totals[-1, number]:.2f}, {ended}"
            chart = drawing.line_chart([0.0, *totals[:, number].tolist()], height=28, ends=ends)
            rows.append(drawing.hstack([drawing.text_block(caption, width=340), chart], align="bottom"))
        title = f"{steps} steps of {batch} environments, mean return {totals[-1].mean():.2f}"
        return drawing.to_html(
            drawing.to_drawing(drawing.vstack([drawing.text_block(title, bold=True), *rows]), title)
        )


def run_episode_batch(
    states: PyTree,
    agent_fn: AgentFunction,
    max_steps: int,
    environment: Environment,
    *,
    agent_state: PyTree = None,
    key: Key | None = None,
    auto_reset: bool = False,
) -> tuple[PyTree, Float[Array, " batch"], BatchTrajectory]:
    """Run an agent in a batch of environments for `max_steps` steps, as one compiled scan.

    A later call reuses the compiled program if `agent_fn` is the same function, or the same method of an
    equal, hashable agent. If the agent is an Equinox module, its arrays may change between the calls. If
    `agent_fn` is a new lambda in every call, every call compiles.

    Args:
        states: Batch of states, or the pair `(states, observations)` returned by `batch_reset`.
        agent_fn: Function `agent_fn(states, agent_state, key) -> (actions, new_agent_state)`.
        max_steps: Number of steps.
        environment: The environment.
        agent_state: Initial state of the agent.
        key: PRNG key. If None, `jax.random.PRNGKey(0)` is used.
        auto_reset: Start a new episode in the same step in which an episode ends. If False, finished
            environments stay finished, with reward 0.

    Returns:
        Final states, total reward of each environment, and the trajectory.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if type(states) is tuple:
        if len(states) != 2:
            raise TypeError(
                f"states must be a batch of states or batch_reset's (states, observations), "
                f"got a tuple of {len(states)}"
            )
        states = states[0]
    key = jax.random.PRNGKey(0) if key is None else key
    return _run(environment, states, _hash_by_value(agent_fn), max_steps, agent_state, key, auto_reset)


def _hash_by_value(agent_fn: AgentFunction) -> AgentFunction:
    """Convert a bound method to an `eqx.Partial`, so that methods of equal objects are equal.

    Python's bound methods are equal only if they are bound to the same object. Methods of unhashable objects,
    and functions that are not bound methods, are returned unchanged.
    """
    if isinstance(agent_fn, MethodType):
        with contextlib.suppress(TypeError):  # the owner is not hashable
            hash(agent_fn.__self__)
            return eqx.Partial(agent_fn.__func__, agent_fn.__self__)
    return agent_fn


@eqx.filter_jit
def _run(
    environment: Environment,
    states: PyTree,
    agent_fn: AgentFunction,
    max_steps: int,
    agent_state: PyTree,
    key: Key,
    auto_reset: bool,
) -> tuple[PyTree, Float[Array, " batch"], BatchTrajectory]:
    _check_agent(agent_fn, states, agent_state, key)
    layer = AutoReset(environment)
    batch = is_done(states).shape[0]
    start: Any = states
    if auto_reset:
        key, reset_key = jax.random.split(key)
        start = AutoResetState(states, jax.random.split(reset_key, batch))

    def advance(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], BatchTrajectory]:
        current, agent_state, returns, key = carry
        key, agent_key = jax.random.split(key)
        seen = current.states if auto_reset else current
        actions, agent_state = agent_fn(seen, agent_state, agent_key)
        step: Callable[..., tuple[Any, ...]] = layer.step if auto_reset else environment.batch_step
        current, observations, rewards, dones, infos = step(current, actions)
        record = BatchTrajectory(actions, observations, rewards, dones, infos)
        return (current, agent_state, returns + rewards, key), record

    carry = (start, agent_state, jnp.zeros(batch, jnp.float32), key)
    (final, _, returns, _), trajectory = jax.lax.scan(advance, carry, None, length=max_steps)
    return final.states if auto_reset else final, returns, trajectory


def _check_agent(agent_fn: AgentFunction, states: PyTree, agent_state: PyTree, key: Key) -> None:
    """Raise `TypeError` if an agent returns values with the wrong structure.

    The agent is only traced, not run.
    """
    returned = eqx.filter_eval_shape(agent_fn, states, agent_state, key)
    if type(returned) is not tuple or len(returned) != 2:
        raise TypeError(
            f"agent_fn must return (actions, new_agent_states), got {type(returned).__name__}: {returned!r}"
        )
    given: Any = jax.tree.structure(agent_state)
    got: Any = jax.tree.structure(returned[1])
    if given != got:
        raise TypeError(
            f"agent_fn returned an agent state with another structure than its argument; pass an initial "
            f"agent_state with the structure that agent_fn returns. Argument: {given}, returned: {got}"
        )


class EpisodeResults(eqx.Module):
    """Returns, lengths, metrics and final states of a batch of episodes."""

    returns: Float[Array, " batch"]
    lengths: Int32[Array, " batch"]
    """Number of steps in each episode. It is 0 if the episode had already ended in the initial state."""
    done: Bool[Array, " batch"]
    """True for episodes that ended within `max_steps` steps."""
    episode_metrics: dict[str, Array]
    """Result of `batch_metrics` for the last state of each episode."""
    final_states: PyTree
    step_states: PyTree | None = None
    """States after each step, with shape `[max_steps, batch, ...]`, or None if they were not recorded. After
    the end of an episode, its final state is repeated."""


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
    """Run a policy from the given states until all episodes have ended or `max_steps` steps have been taken.

    An episode depends only on its own state and key, not on the rest of the batch.

    Args:
        environment: The environment.
        act: Policy for one observation. If it is a pytree, its arrays may change without recompilation.
        states: Batch of states.
        observations: Observations of `states`.
        keys: One key per episode, or None for greedy actions.
        max_steps: Maximum number of steps per episode.
        record: Whether to record the state after each step, in the `step_states` field of the result.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    already_done = is_done(states)

    def step(carry: tuple[Array, PyTree, EpisodeResults]) -> tuple[Array, PyTree, EpisodeResults]:
        time, observations, results = carry
        step_keys = None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        running = ~results.done
        actions = map_where(lambda args: act(*args), running, (observations, step_keys), idle, _CHUNK_SIZE)
        states, observations, rewards, done, _ = environment.batch_step(results.final_states, actions)
        metrics = select_rows(running, batch_metrics(environment, states), results.episode_metrics)
        after = EpisodeResults(
            results.returns + jnp.where(running, rewards, 0.0),
            results.lengths + running,
            done,
            metrics,
            states,
        )
        return time + 1, observations, after

    # Finished episodes are stepped with an arbitrary action, which has no effect.
    idle = zeros_like_shapes(jax.eval_shape(jax.vmap(act), observations, keys))
    start = EpisodeResults(
        jnp.zeros(already_done.shape, jnp.float32),
        jnp.zeros(already_done.shape, jnp.int32),
        already_done,
        zeros_like_shapes(jax.eval_shape(functools.partial(batch_metrics, environment), states)),
        states,
    )
    carry = (jnp.int32(0), observations, start)
    if not record:
        return jax.lax.while_loop(
            lambda carry: (carry[0] < max_steps) & ~jnp.all(carry[2].done), step, carry
        )[2]

    def step_and_record(
        carry: tuple[Array, PyTree, EpisodeResults], _: None
    ) -> tuple[tuple[Array, PyTree, EpisodeResults], PyTree]:
        after = step(carry)
        return after, after[2].final_states

    (_, _, results), step_states = jax.lax.scan(step_and_record, carry, None, length=max_steps)
    return eqx.tree_at(lambda r: r.step_states, results, step_states, is_leaf=lambda leaf: leaf is None)


def map_batches(
    function: Callable[[Int[np.ndarray, " batch"]], tuple[Array, ...]], count: int, max_batch_size: int
) -> list[np.ndarray]:
    """Call a function on `count` examples, in as few batches as possible, all of the same size.

    Args:
        function: Function that takes the indices of a batch of examples and returns arrays with a leading
            batch axis. The last batch is padded with indices whose results are dropped.
        count: Number of examples, at least 1.
        max_batch_size: Maximum size of a batch.

    Returns:
        The function's arrays for all examples, concatenated along the batch axis.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    size = math.ceil(count / math.ceil(count / max_batch_size))
    found = [function(np.arange(start, start + size) % count) for start in range(0, count, size)]
    return [np.concatenate(parts)[:count] for parts in zip(*jax.device_get(found), strict=True)]


def record_episodes(
    environment: Environment,
    network: PolicyNetwork,
    key: Key,
    count: int,
    max_steps: int | None = None,
    *,
    greedy: bool = False,
    episode_num: int = 0,
    task_name: Callable[[Environment, Any], str] | None = None,
) -> list[dict[str, Any]]:
    """Run new episodes and return them as records for `ExperimentLogger.log_episode_summary`.

    Args:
        environment: The environment.
        network: Policy network.
        key: PRNG key for the episodes and actions.
        count: Number of episodes.
        max_steps: Maximum number of steps per episode. Longer episodes are cut off. If None, it is the
            environment's `max_episode_steps`.
        greedy: Take the mode of the policy's distribution instead of sampling an action.
        episode_num: Number to store as `episode_num` in all records, such as the number of updates so far.
        task_name: Function that returns the name of a state's task, as in `EnvSpec`. If None, tasks have no
            names.

    Returns:
        One record per episode. Its `step_states` entry contains the state after each step, and `final_state`
        contains the last of these states. `final_similarity` is present only if the environment's `metrics`
        contain `similarity`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    max_steps = environment.max_episode_steps if max_steps is None else max_steps
    initial, results = _run_recorded(environment, network, key, count, max_steps, greedy)
    # One transfer instead of one per value in the loop below. Indexing on the host needs no compilation.
    initial, results = jax.device_get((initial, results))
    metrics, none = results.episode_metrics, np.zeros(count)

    def state_at(states: PyTree, index: int | tuple[int, int]) -> PyTree:
        return jax.tree.map(lambda leaf: jax.device_put(leaf[index], may_alias=False), states)

    records = []
    for row in range(count):
        state, length = state_at(initial, row), int(results.lengths[row])
        similarity = metrics.get("similarity_scores")
        records.append(
            {
                "episode_num": episode_num,
                "environment_id": row,
                "task_id": "" if task_name is None else task_name(environment, state),
                "total_reward": float(results.returns[row]),
                "total_steps": length,
                **({} if similarity is None else {"final_similarity": float(similarity[row])}),
                "success": bool(metrics.get("success_mask", none)[row]),
                "initial_state": state,
                "final_state": state_at(results.final_states, row),
                "step_states": [state_at(results.step_states, (step, row)) for step in range(length)],
            }
        )
    return records


@dataclasses.dataclass(frozen=True)
class StateSVG:
    """Image of a state, for the episode viewer and `SVGHandler`."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


def draw_episodes(environment: Environment, episodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the states in the records of `record_episodes` with images.

    Args:
        environment: Environment that renders the states. If it has no `render_modes`, the states are removed.
        episodes: The records. States that have a `_repr_svg_` or `_repr_html_` method are not changed.
    """
    convert: dict[str, Callable[[Any], str]] = {"svg": str, "ansi": _text_svg, "rgb_array": _pixels_svg}
    modes = [mode for mode in convert if mode in environment.render_modes]

    def draw(state: PyTree) -> StateSVG:
        return StateSVG(convert[modes[0]](environment.render(state, modes[0])))

    records = []
    for episode in episodes:
        states = {name: episode[name] for name in ("initial_state", "final_state", "step_states")}
        if hasattr(states["initial_state"], "_repr_svg_") or hasattr(states["initial_state"], "_repr_html_"):
            records.append(dict(episode))
        elif modes:
            drawn = {name: draw(states[name]) for name in ("initial_state", "final_state")}
            records.append(episode | drawn | {"step_states": list(map(draw, states["step_states"]))})
        else:
            records.append({name: value for name, value in episode.items() if name not in states})
    return records


ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _text_svg(text: str) -> str:
    """Draw lines of text in a monospaced font, without colors."""
    from phalanx import svg

    size = 14
    # SVG viewers collapse consecutive spaces.
    lines = ANSI_ESCAPE.sub("", text).replace(" ", "\u00a0").split("\n")
    parts = [
        svg.text_line(line, size, 0, size * (1 + 1.3 * row), mono=True) for row, line in enumerate(lines)
    ]
    width = max(svg.text_width(line, size, mono=True) for line in lines)
    block = svg.SvgBlock(width, size * 1.3 * len(lines), tuple(parts))
    return str(svg.to_drawing(block, "State").as_svg())


def _pixels_svg(pixels: np.ndarray) -> str:
    """Embed an image of uint8 pixels in an SVG, as a PNG."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    scale = max(1, 240 // max(height, width))
    size = f'width="{scale * width}" height="{scale * height}"'
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = f'<image href="{url}" {size} style="image-rendering: pixelated"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{image}</svg>'


@eqx.filter_jit
def _run_recorded(
    environment: Environment, network: PolicyNetwork, key: Key, count: int, max_steps: int, greedy: bool
) -> tuple[PyTree, EpisodeResults]:
    reset_key, action_key = jax.random.split(key)
    states, observations = environment.batch_reset(jax.random.split(reset_key, count))
    keys = None if greedy else jax.random.split(action_key, count)
    act = eqx.Partial(select_action, network)
    return states, rollout_episodes(environment, act, states, observations, keys, max_steps, record=True)
