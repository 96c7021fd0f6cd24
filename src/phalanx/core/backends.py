"""Selection of the native or XLA backend, and native kernels under `vmap` and sharding."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.native import (
    Backend as Backend,
    is_native_available,
    native_unavailable_reason,
    require_native,
)


@functools.cache
def register_ffi_targets() -> None:
    """Register the extension's XLA custom calls with JAX."""
    native = require_native("the native backend")
    for name, target in native.targets().items():
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    # With several CPU devices, each gets its share of the threads, so that they do not compete.
    native.share_threads(len(jax.local_devices(backend="cpu")))


def is_cpu_only() -> bool:
    """Return whether all devices are CPUs, so that only one backend needs to be compiled."""
    return all(device.platform == "cpu" for device in jax.devices())


def resolve_backend(backend: Backend) -> Backend:
    """Replace `auto` with a backend, unless there are several kinds of devices.

    Raises:
        RuntimeError: If `native` is requested but unavailable.
    """
    if backend == "native" and (reason := native_unavailable_reason()):
        raise RuntimeError(f"backend 'native' is not available: {reason}")
    if backend != "auto":
        return backend
    if not is_native_available():
        return "xla"
    return "native" if is_cpu_only() else "auto"


def dispatch(backend: Backend, native: Callable[..., Any], xla: Callable[..., Any], *args: Any) -> Any:
    """Call the implementation of a backend; for `auto`, XLA chooses by the device that runs the program."""
    if backend != "xla":
        register_ffi_targets()
    if backend == "auto":
        return jax.lax.platform_dependent(*args, cpu=native, default=xla)
    return {"native": native, "xla": xla}[backend](*args)


def keep_batch_sharding(kernel: Callable[..., Any], shared: tuple[Any, ...], rows: tuple[Any, ...]) -> Any:
    """Call `kernel(*shared, *rows)` such that each device processes its own rows of a sharded batch.

    XLA knows nothing about a custom call and would otherwise gather the entire batch on every device.

    Args:
        kernel: Function whose results all have the batch as their first axis.
        shared: Arrays used by all rows.
        rows: Arrays whose first axis is the batch.
    """
    if jax.device_count() == 1:
        return kernel(*shared, *rows)
    results = jax.eval_shape(kernel, *shared, *rows)
    axis_names = (f"d{number}" for number in itertools.count())
    replicated_axes: list[str] = []

    def axes(leaf: Any, batched: bool) -> str:
        own = [next(axis_names) for _ in leaf.shape[batched:]]
        replicated_axes.extend(own)
        return " ".join(["batch"] * batched + own)

    operand_axes = ", ".join([axes(leaf, False) for leaf in shared] + [axes(leaf, True) for leaf in rows])
    result_axes = ", ".join(axes(leaf, True) for leaf in jax.tree.leaves(results))

    def partition(mesh: Any, arguments: Any, outputs: Any) -> tuple[Any, ...]:
        spec = arguments[len(shared)].sharding.spec
        split = NamedSharding(mesh, PartitionSpec(*spec[:1]))
        replicated = NamedSharding(mesh, PartitionSpec())
        out = jax.tree.map(lambda _: split, outputs)
        return mesh, kernel, out, (replicated,) * len(shared) + (split,) * len(rows)

    partitioned = custom_partitioning(kernel)
    partitioned.def_partition(
        partition,
        sharding_rule=f"{operand_axes} -> {result_axes}",
        need_replication_factors=tuple(replicated_axes),
    )
    return partitioned(*shared, *rows)


def vmappable_kernel(
    kernel: Callable[..., Any], batch_shape: Callable[..., tuple[int, ...]], constant: tuple[bool, ...]
) -> Callable[..., Any]:
    """Extend a kernel for a flat batch to any batch shape, such that `vmap` of it remains one call.

    Args:
        kernel: Function `kernel(shared, *rows)` of arrays `rows` with shape `[batch, ...]`. If `vmap` maps
            over an item of the tuple `shared`, the kernel receives it as `[groups, ...]`, and the batch
            consists of that number of equal consecutive parts.
        batch_shape: Function that returns the batch shape of `rows`, which may be `()`.
        constant: For each item of `shared`, whether it is the same for all mapped examples. `vmap` of a
            `cond` copies such items; only one copy is used.

    Returns:
        A function with the arguments of `kernel`.
    """
    from phalanx.core.vector import broadcast_unbatched

    # Compiled as a unit even if the caller is not compiled, and traced only once.
    compiled = jax.jit(kernel)

    def flatten(tree: Any, num_axes: int) -> Any:
        return jax.tree.map(lambda x: x.reshape(math.prod(x.shape[:num_axes]), *x.shape[num_axes:]), tree)

    @functools.cache
    def with_group_axes(num_group_axes: tuple[int, ...]) -> Callable[..., Any]:
        @custom_vmap
        def call(shared: tuple[Any, ...], *rows: Any) -> Any:
            shape = batch_shape(*rows)
            grouped = tuple(
                flatten(item, num_axes) if num_axes else item
                for item, num_axes in zip(shared, num_group_axes, strict=True)
            )
            results = compiled(grouped, *flatten(rows, len(shape)))
            return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)

        @call.def_vmap
        def _(axis_size: int, in_batched: Any, shared: tuple[Any, ...], *rows: Any) -> tuple[Any, Any]:
            shared_batched, *rows_batched = in_batched
            items, new_group_axes = [], []
            for item, batched, num_axes, is_constant in zip(
                shared, shared_batched, num_group_axes, constant, strict=True
            ):
                if is_constant:
                    items.append(jax.tree.map(lambda x, mapped: x[0] if mapped else x, item, batched))
                elif num_axes or any(jax.tree.leaves(batched)):
                    items.append(broadcast_unbatched(item, batched, axis_size))
                    num_axes += 1
                else:
                    items.append(item)
                new_group_axes.append(num_axes)
            broadcast_rows = broadcast_unbatched(tuple(rows), tuple(rows_batched), axis_size)
            results = with_group_axes(tuple(new_group_axes))(tuple(items), *broadcast_rows)
            return results, jax.tree.map(lambda _: True, results)

        return call

    return with_group_axes((0,) * len(constant))
