"""What an agent sees of a state (the working grid alone, or a record), and which actions are legal in it.

In evaluation the score stays hidden until the last hand-in. What actions do is in the engines.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32

from phalanx.arc.actions import Action
from phalanx.arc.bitplanes import unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.arc.state import PAIR, TASK, ArcState, pair_grid
from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.spaces import Box, Composite, Space


class ArcObservation(eqx.Module):
    """What the config asks for; the rest is None."""

    working_grid: Int8[Array, "*batch rows columns"]
    """The grid as it stands."""
    input_grid: Int8[Array, "*batch rows columns"] | None = None
    """The pair's input."""
    target_grid: Int8[Array, "*batch rows columns"] | None = None
    """The pair's output; all -1 in evaluation."""
    selected: Bool[Array, "*batch rows columns"] | None = None
    """The last selection."""
    clipboard: Int8[Array, "*batch rows columns"] | None = None
    """The remembered object."""
    demonstrations: Int8[Array, "*batch shown 2 rows columns"] | None = None
    """Other demonstration pairs of the task (never the one being worked on); all -1 where there are fewer."""
    similarity: Float32[Array, "*batch"] | None = None
    """The score; 0 in evaluation until the end."""
    step_count: Int32[Array, "*batch"] | None = None
    """Steps taken."""
    legal_operations: Bool[Array, "*batch 42"] | None = None
    """Which operations are legal."""


Observation = Int8[Array, "*batch rows columns"] | ArcObservation


def is_plain(config: ArcConfig) -> bool:
    """Whether an observation is the working grid alone (or nothing), as one array."""
    see = config.observation
    extras = (
        see.input_grid,
        see.target_grid,
        see.selected,
        see.clipboard,
        see.num_demonstrations,
        see.scalars,
    )
    return not any(extras)


def observation_of(
    state: ArcState, config: ArcConfig, working: Int8[Array, "*batch rows columns"] | None
) -> Observation:
    """The observation of a state that knows its tasks; its unpacked working grid may be at hand already."""
    see = config.observation
    if working is None:
        nothing = jnp.zeros((*state.batch_shape, 0, 0), jnp.int8)
        working = state.working_grid if see.working_grid else nothing
    if is_plain(config):
        return working
    return ArcObservation(
        working_grid=working,
        input_grid=state.input_grid if see.input_grid else None,
        target_grid=state.target_grid if see.target_grid else None,
        selected=state.selected if see.selected else None,
        clipboard=state.clipboard if see.clipboard else None,
        demonstrations=_demonstrations(state, see.num_demonstrations) if see.num_demonstrations else None,
        similarity=state.similarity if see.scalars else None,
        step_count=state.step_count if see.scalars else None,
        legal_operations=legal_operations(state, config) if see.scalars else None,
    )


def _demonstrations(state: ArcState, count: int) -> Int8[Array, "*batch shown 2 rows columns"]:
    """The first `count` demonstrations but the current pair, which would give its answer away."""
    return _other_demonstrations(state.task_arrays, state.registers, count, state.grid_shape)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def _other_demonstrations(
    tasks: TaskArrays, registers: Int32[Array, "*batch 8"], count: int, grid_shape: tuple[int, int]
) -> Int8[Array, "*batch shown 2 rows columns"]:
    table = tasks.table[registers[..., TASK]]
    slot = jnp.arange(count)
    chosen = slot + (slot >= registers[..., PAIR, None])
    there = chosen < table[..., 1, None]
    place = table[..., 0, None] + jnp.where(there, chosen, 0)
    rows, columns = grid_shape
    grids = [unpack_cells(*pair_grid(tasks, place, output, rows), columns) for output in (False, True)]
    return jnp.where(there[..., None, None, None], jnp.stack(grids, axis=-3), jnp.int8(-1))


def working_of(observation: Observation) -> Array:
    """The working grid of an observation of either form."""
    return observation if isinstance(observation, jax.Array) else observation.working_grid


def observation_space(config: ArcConfig) -> Space:
    """The space that `observation_of` stays in."""
    see = config.observation
    rows, columns = config.grid_shape
    working = Box(-1, 9, (rows, columns) if see.working_grid else (0, 0), np.int8)
    if is_plain(config):
        return working
    grid = Box(-1, 9, (rows, columns), np.int8)
    fields: dict[str, Space] = {"working_grid": working}
    for name in ("input_grid", "target_grid", "clipboard"):
        if getattr(see, name):
            fields[name] = grid
    if see.selected:
        fields["selected"] = Box(0, 1, (rows, columns), np.bool_)
    if see.num_demonstrations:
        fields["demonstrations"] = Box(-1, 9, (see.num_demonstrations, 2, rows, columns), np.int8)
    if see.scalars:
        fields["similarity"] = Box(0.0, 1.0, (), np.float32)
        fields["step_count"] = Box(0, config.episode.max_episode_steps, (), np.int32)
        fields["legal_operations"] = Box(0, 1, (NUM_OPERATIONS,), np.bool_)
    return Composite.of(ArcObservation, fields)


def create_observation(state: ArcState, config: ArcConfig) -> Observation:
    """What an agent sees of a state."""
    return observation_of(state, config, None)


def legal_operation_ids(config: ArcConfig) -> tuple[int, ...]:
    """The operations that a config allows."""
    return config.action.allowed_operations or tuple(range(NUM_OPERATIONS))


def legal_operations(state: ArcState, config: ArcConfig) -> Bool[Array, "*batch 42"]:
    """Which operations are legal."""
    legal = np.isin(np.arange(NUM_OPERATIONS), legal_operation_ids(config))
    return jnp.broadcast_to(jnp.asarray(legal), (*state.batch_shape, NUM_OPERATIONS))


def validate_action_jax(action: Action, state: ArcState, config: ArcConfig) -> Bool[Array, "*batch"]:
    """Whether an action would be carried out: a known, allowed operation on cells of the canvas."""
    allowed = legal_operations(state, config)
    known = jnp.clip(action.operation, 0, NUM_OPERATIONS - 1)
    return action.validate(config.grid_shape) & jnp.take_along_axis(allowed, known[..., None], -1)[..., 0]
