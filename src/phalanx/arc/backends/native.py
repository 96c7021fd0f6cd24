"""The native engine: the C++ kernels of `src/native` as flat-batch JAX calls.

Its twin for accelerators is `xla`; `transition` picks between them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from phalanx.arc.backends.interface import KernelAction, Outcome, Packed, allowed_bits
from phalanx.arc.config import INITIAL_GRIDS, ArcConfig
from phalanx.arc.reward import RewardNumbers
from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.backends import keep_batch_sharding


def step(
    config: ArcConfig, tasks: TaskArrays, numbers: RewardNumbers, fields: KernelAction, packed: Packed
) -> tuple[Packed, Outcome]:
    """One transition of a flat batch; several rows of numbers serve equal parts of it in turn."""
    rows, columns = config.grid_shape
    seen = (rows, columns) if config.observation.working_grid else (0, 0)
    episode = config.episode
    # In the order of `Rules` in arc_kernel.h; an array decodes faster than six attributes.
    limits = np.array(
        [
            columns,
            episode.max_episode_steps,
            allowed_bits(config),
            episode.mode == "evaluation",
            episode.require_submit,
            config.reward.reward_on_submit_only,
        ],
        np.int64,
    )
    shared = (tasks.pairs, tasks.sizes, tasks.table, jnp.atleast_2d(numbers))

    def call(*given: Array) -> Sequence[Array]:
        state = given[-3:]
        batch = state[-1].shape[0]
        flag, number, count = (
            jax.ShapeDtypeStruct((batch,), kind) for kind in (bool, jnp.float32, jnp.int32)
        )
        results = (
            *_shapes(state),
            jax.ShapeDtypeStruct((batch, *seen), jnp.int8),
            *(number, number, count, count, flag, flag, flag, flag),
        )
        aliases = {len(given) - 3 + k: k for k in range(3)}
        return jax.ffi.ffi_call("phalanx_arc_step", results, input_output_aliases=aliases)(
            *given, limits=limits
        )

    # Numbers by group belong to parts of the whole batch, which a shard does not know of.
    alone = shared[-1].shape[0] == 1
    out = keep_batch_sharding(call, shared, (*fields, *packed)) if alone else call(*shared, *fields, *packed)
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
    settings = {
        "columns": np.int64(config.dataset.max_grid_width),
        "evaluation": np.bool_(config.episode.mode == "evaluation"),
        "initial": np.int64(INITIAL_GRIDS.index(config.episode.initial_grid)),
    }

    def call(*given: Array) -> Sequence[Array]:
        aliases = {len(given) - 4 + k: k for k in range(4)}
        return jax.ffi.ffi_call("phalanx_arc_reset", _shapes(given[-4:]), input_output_aliases=aliases)(
            *given, **settings
        )

    shared = (tasks.pairs, tasks.sizes, tasks.table)
    *fresh, seen = keep_batch_sharding(call, shared, (where, words, *packed, observation))
    return Packed(*fresh), seen


def _shapes(leaves: Sequence[Array]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
