"""The native engine: the C++ kernels of `src/native` as flat-batch JAX calls.

Its twin for accelerators is `xla`; `transition` picks between them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from phalanx.arc.buffer import TaskArrays
from phalanx.arc.config import INITIAL_GRIDS, ArcConfig
from phalanx.arc.engines.interface import Fields, Outcome, Packed, allowed_bits
from phalanx.arc.rewards import RewardNumbers


def step(
    config: ArcConfig, tasks: TaskArrays, numbers: RewardNumbers, fields: Fields, packed: Packed
) -> tuple[Packed, Outcome]:
    """One transition of a flat batch; several rows of numbers serve equal parts of it in turn."""
    batch = packed.similarity.shape[0]
    rows, columns = config.grid_shape
    seen = (rows, columns) if config.observation.working_grid else (0, 0)
    flag = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    number = jax.ShapeDtypeStruct((batch,), jnp.float32)
    count = jax.ShapeDtypeStruct((batch,), jnp.int32)
    results = (
        *_shapes(packed),
        jax.ShapeDtypeStruct((batch, *seen), jnp.int8),
        *(number, number, count, count, flag, flag, flag, flag),
    )
    play = config.environment
    # In the order of `Rules` in arc_kernel.h; an array decodes faster than six attributes.
    limits = np.array(
        [
            columns,
            play.max_episode_steps,
            allowed_bits(config),
            play.mode == "evaluation",
            play.require_submit,
            config.reward.reward_on_submit_only,
        ],
        np.int64,
    )
    before = (tasks.pairs, tasks.sizes, tasks.table, jnp.atleast_2d(numbers), *fields)
    out = jax.ffi.ffi_call(
        "phalanx_arc_step",
        results,
        input_output_aliases={len(before) + k: k for k in range(len(packed))},
    )(*before, *packed, limits=limits)
    return Packed(*out[:3]), Outcome(*out[3:])


def reset(
    config: ArcConfig,
    tasks: TaskArrays,
    where: Bool[Array, " batch"],
    words: UInt32[Array, "batch 3"],
    packed: Packed,
    observation: Array,
) -> tuple[Packed, Array]:
    """New episodes where asked, on the starts that the words name (see `starts`)."""
    before = (tasks.pairs, tasks.sizes, tasks.table, where, words)
    *fresh, seen = jax.ffi.ffi_call(
        "phalanx_arc_reset",
        (*_shapes(packed), jax.ShapeDtypeStruct(observation.shape, observation.dtype)),
        input_output_aliases={len(before) + k: k for k in range(len(packed) + 1)},
    )(
        *before,
        *packed,
        observation,
        columns=np.int64(config.dataset.max_grid_width),
        evaluation=np.bool_(config.environment.mode == "evaluation"),
        initial=np.int64(INITIAL_GRIDS.index(config.environment.initial_grid)),
    )
    return Packed(*fresh), seen


def _shapes(packed: Packed) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in packed)
