"""The native engine: the C++ kernels of `src/native` as flat-batch JAX calls.

Its twin for accelerators is `xla_engine`; `transition` picks between them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from phalanx.arc.config import ArcConfig
from phalanx.arc.engines.interface import Fields, Outcome, Packed, TaskArrays, allowed_bits


def step(config: ArcConfig, tasks: TaskArrays, fields: Fields, packed: Packed) -> tuple[Packed, Outcome]:
    """One transition of a flat batch."""
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
    first_state = len(tasks) + len(fields)
    play, reward = config.environment, config.reward
    # In the order of `Rules` in arc_kernel.h; two arrays decode faster than a dozen attributes.
    limits = np.array(
        [
            columns,
            play.max_episode_steps,
            allowed_bits(config),
            reward.efficiency_bonus_threshold,
            play.mode == "evaluation",
            play.require_submit,
            reward.reward_on_submit_only,
        ],
        np.int64,
    )
    pay = np.array(
        [
            reward.similarity_weight,
            reward.step_penalty,
            reward.success_bonus,
            reward.efficiency_bonus,
            reward.unsolved_submission_penalty,
            reward.invalid_action_penalty,
        ],
        np.float32,
    )
    out = jax.ffi.ffi_call(
        "phalanx_arc_step",
        results,
        input_output_aliases={first_state + k: k for k in range(len(packed))},
    )(
        *tasks,
        *fields,
        *packed,
        limits=limits,
        pay=pay,
    )
    return Packed(*out[:3]), Outcome(*out[3:])


def reset(
    config: ArcConfig,
    tasks: TaskArrays,
    where: Bool[Array, " batch"],
    bits: UInt32[Array, "batch 2"],
    packed: Packed,
    observation: Array,
) -> tuple[Packed, Array]:
    """New episodes where asked, drawn by random bits."""
    first_state = len(tasks) + 2
    *fresh, seen = jax.ffi.ffi_call(
        "phalanx_arc_reset",
        (*_shapes(packed), jax.ShapeDtypeStruct(observation.shape, observation.dtype)),
        input_output_aliases={first_state + k: k for k in range(len(packed) + 1)},
    )(
        *tasks,
        where,
        bits,
        *packed,
        observation,
        columns=np.int64(config.dataset.max_grid_width),
        evaluation=np.bool_(config.environment.mode == "evaluation"),
    )
    return Packed(*fresh), seen


def _shapes(packed: Packed) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in packed)
