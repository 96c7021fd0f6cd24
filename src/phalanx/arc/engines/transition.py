"""Transitions for any batch shape: picks the engine, and keeps the kernels whole under `vmap`.

The public functions with states and configs are in `environment`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Int8, UInt32

from phalanx.arc.config import ArcConfig
from phalanx.arc.engines import native as native_engine, xla as xla_engine
from phalanx.arc.engines.interface import Fields, Outcome, Packed, TaskArrays
from phalanx.core import engine as native
from phalanx.core.batching import spread_over_batch


def resolve_engine(config: ArcConfig, why_not: str) -> ArcConfig:
    """The config with its engine decided; `why_not` says why the native one cannot serve, if it cannot.

    `auto` stays only where several kinds of device are present.
    """
    if config.engine == "native" and why_not:
        raise RuntimeError(f"engine 'native' was asked for, but {why_not}")
    if config.engine != "auto":
        return config
    if why_not:
        return config.model_copy(update={"engine": "xla"})
    return config.model_copy(update={"engine": "native"}) if native.only_cpu() else config


def step(config: ArcConfig, tasks: TaskArrays, fields: Fields, packed: Packed) -> tuple[Packed, Outcome]:
    """One transition of a single state or of any batch of them."""
    return _batched_step(config)(tasks, fields, packed)


def reset(
    config: ArcConfig,
    tasks: TaskArrays,
    where: Bool[Array, "*batch"],
    bits: UInt32[Array, "*batch 2"],
    packed: Packed,
    observation: Int8[Array, "*batch rows columns"],
) -> tuple[Packed, Int8[Array, "*batch rows columns"]]:
    """New episodes where asked; the rest stays as it is."""
    return _batched_reset(config)(tasks, where, bits, packed, observation)


@functools.cache
def _batched_step(config: ArcConfig) -> Callable[..., tuple[Packed, Outcome]]:
    def flat(tasks: TaskArrays, fields: Fields, packed: Packed) -> tuple[Packed, Outcome]:
        return _on_engine(config, "step", tasks, fields, packed)

    return _for_any_batch(flat, lambda fields, packed: packed.similarity.shape)


@functools.cache
def _batched_reset(config: ArcConfig) -> Callable[..., tuple[Packed, Array]]:
    def flat(
        tasks: TaskArrays, where: Array, bits: Array, packed: Packed, seen: Array
    ) -> tuple[Packed, Array]:
        return _on_engine(config, "reset", tasks, where, bits, packed, seen)

    return _for_any_batch(flat, lambda where, bits, packed, seen: where.shape)


def _on_engine(config: ArcConfig, name: str, *args: Any) -> Any:
    engines = {"native": native_engine, "xla": xla_engine}
    if config.engine in engines:
        return getattr(engines[config.engine], name)(config, *args)
    return jax.lax.platform_dependent(
        *args,
        cpu=functools.partial(getattr(native_engine, name), config),
        default=functools.partial(getattr(xla_engine, name), config),
    )


def _for_any_batch(
    flat: Callable[..., Any], batch_shape: Callable[..., tuple[int, ...]]
) -> Callable[..., Any]:
    """A flat-batch function made to take any batch shape, none included, and to stay one call under `vmap`.

    Its first argument (the tasks) is shared by the whole batch.
    """

    @custom_vmap
    def run(tasks: TaskArrays, *args: Any) -> Any:
        shape = batch_shape(*args)
        size = math.prod(shape)
        flattened = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(shape) :]), args)
        results = flat(tasks, *flattened)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)

    @run.def_vmap
    def _(axis_size: int, in_batched: Any, tasks: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        tasks_batched, *args_batched = in_batched
        # A buffer is a static part of a state, so copies of it (`vmap` of a `cond` makes them) are all equal.
        tasks = jax.tree.map(lambda x, batched: x[0] if batched else x, tuple(tasks), tuple(tasks_batched))

        results = run(tasks, *spread_over_batch(tuple(args), tuple(args_batched), axis_size))
        return results, jax.tree.map(lambda _: True, results)

    return run
