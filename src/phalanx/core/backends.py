"""Selection of the native or XLA backend, and support for native kernels under `vmap` and sharding."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
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
    """Register the XLA custom calls of the compiled extension with JAX."""
    native = require_native("the native backend")
    for name, target in native.ffi_targets().items():
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    # With several CPU devices, each gets its share of the threads, so that they do not compete.
    native.set_num_devices(len(jax.local_devices(backend="cpu")))


def is_cpu_only() -> bool:
    """Return whether all JAX devices are CPUs.

    If not, a compiled program may need both the native and the XLA backend.
    """
    return all(device.platform == "cpu" for device in jax.devices())


def resolve_backend(backend: Backend) -> Backend:
    """Replace `auto` with `native` or `xla` if the choice is the same for all devices.

    Returns:
        The backend. It is still `auto` if the extension is available and not all devices are CPUs; `dispatch`
        then chooses by device.

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
    """Call `native(*args)` or `xla(*args)`, depending on the backend, and return the results.

    With `auto`, the compiled program calls `native` if it runs on a CPU, and `xla` on other devices.
    """
    if backend != "xla":
        register_ffi_targets()
    if backend == "auto":
        return jax.lax.platform_dependent(*args, cpu=native, default=xla)
    return {"native": native, "xla": xla}[backend](*args)


def keep_batch_sharding(kernel: Callable[..., Any], shared: tuple[Any, ...], rows: tuple[Any, ...]) -> Any:
    """Call `kernel(*shared, *rows)`. If the batch is sharded, each device processes its own part.

    XLA cannot partition a custom call and would otherwise gather the entire batch on every device.

    Args:
        kernel: Function whose results all have the batch as their first axis.
        shared: Arrays without a batch axis, which are replicated on all devices.
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
    kernel: Callable[..., Any], batch_shape: Callable[..., tuple[int, ...]]
) -> Callable[..., Any]:
    """Wrap a kernel that supports exactly one batch axis so that it accepts any number of batch axes.

    Under `vmap`, the kernel is still called once, with all batch axes flattened into one.

    Args:
        kernel: Function that takes arrays with shape `[batch, ...]` and returns a pytree of such arrays.
        batch_shape: Function that takes the arguments of the wrapped kernel and returns their batch shape:
            the sizes of the leading batch axes, which may be `()`.

    Returns:
        A function that takes the same arguments as `kernel`, but with any batch shape.
    """
    from phalanx.core.vector import broadcast_unbatched

    # Compiled as a unit even if the caller is not compiled, and traced only once.
    compiled = jax.jit(kernel)

    @custom_vmap
    def call(*rows: Any) -> Any:
        shape = batch_shape(*rows)
        results = compiled(*_flatten(rows, len(shape)))
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), results)

    @call.def_vmap
    def _(axis_size: int, in_batched: Any, *rows: Any) -> tuple[Any, Any]:
        results = call(*broadcast_unbatched(tuple(rows), tuple(in_batched), axis_size))
        return results, jax.tree.map(lambda _: True, results)

    return call


class BackendFunction:
    """A kernel that has a native and an XLA implementation and accepts any number of batch axes.

    Under `vmap`, the implementation is still called once, with all batch axes flattened into one. Both
    implementations are functions `(static, shared, *rows) -> results` with one batch axis: the leaves of
    `rows` and `results` have a leading batch axis, and `shared` is used by the entire batch. The first leaf
    of `rows` must have only batch axes, because its shape determines the batch shape.

    Args:
        native: The implementation in C++.
        xla: The implementation in JAX.
        merge_groups: Function `(shared, *rows) -> (shared, rows, restore)` for calls in which `vmap` maps
            over `shared`. The examples that use the same `shared` arrays are a group. The `shared` argument
            has a leading group axis. In `rows`, the examples of a group are consecutive, and all groups have
            the same size. The function must return one `shared` for the entire batch, the rows adapted to it
            (for example, with shifted indices), and a function `restore` that takes the results of the kernel
            and adapts them to the original `shared`. If `merge_groups` is None, such calls raise a
            `ValueError`.
    """

    def __init__(
        self,
        native: Callable[..., Any],
        xla: Callable[..., Any],
        *,
        merge_groups: Callable[..., Any] | None = None,
    ) -> None:
        self._native, self._xla, self._merge_groups = native, xla, merge_groups
        self._build = functools.cache(self._build_uncached)

    def __call__(self, backend: Backend, static: Any, shared: Any, *rows: Any) -> Any:
        """Run the kernel and return its results, with the batch axes of `rows`.

        Args:
            backend: The implementation to use.
            static: Hashable settings, passed to the implementation as its first argument.
            shared: Arrays that the entire batch uses.
            rows: Arrays that all have the same leading batch axes. There may be any number of batch axes.
        """
        from phalanx.core.vector import has_tracers

        # Arrays that are not traced cannot differ between examples, even if `vmap` of a `cond` copies them.
        is_constant = not has_tracers(shared)
        return self._build(backend, static, is_constant, 0)(shared, *rows)

    def _build_uncached(self, backend: Backend, static: Any, is_constant: bool, depth: int) -> Any:
        """Build a function `(shared, *rows) -> results` that runs the kernel.

        Args:
            backend: The implementation to use.
            static: Hashable settings, passed to the implementation as its first argument.
            is_constant: Whether `shared` contains no traced arrays. If so, it is the same for all examples:
                if `vmap` passes copies of it, only the first copy is used.
            depth: Number of leading group axes of `shared`, one for each `vmap` that maps over it.
        """
        from phalanx.core.vector import broadcast_unbatched

        native, xla = functools.partial(self._native, static), functools.partial(self._xla, static)

        # Compiled as one program even if the caller is not compiled, and traced once for many calls.
        @jax.jit
        def run_flat(shared: Any, *rows: Any) -> Any:
            if depth == 0:
                return dispatch(backend, native, xla, shared, *rows)
            if self._merge_groups is None:
                raise ValueError("this kernel does not support vmap over its shared arguments")
            merged, rows, restore = self._merge_groups(_flatten(shared, depth), *rows)
            return restore(dispatch(backend, native, xla, merged, *rows))

        @custom_vmap
        def run(shared: Any, *rows: Any) -> Any:
            shape = jax.tree.leaves(rows)[0].shape
            results = run_flat(shared, *_flatten(rows, len(shape)))
            return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), results)

        @run.def_vmap
        def _(axis_size: int, in_batched: Any, shared: Any, *rows: Any) -> tuple[Any, Any]:
            shared_batched, *rows_batched = in_batched
            new_depth = depth
            if is_constant:
                shared = jax.tree.map(
                    lambda leaf, is_copied: leaf[0] if is_copied else leaf, shared, shared_batched
                )
            elif depth or any(jax.tree.leaves(shared_batched)):
                shared = broadcast_unbatched(shared, shared_batched, axis_size)
                new_depth += 1
            rows = broadcast_unbatched(tuple(rows), tuple(rows_batched), axis_size)
            results = self._build(backend, static, is_constant, new_depth)(shared, *rows)
            return results, jax.tree.map(lambda _: True, results)

        return run


def _flatten(tree: Any, axes: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(math.prod(leaf.shape[:axes]), *leaf.shape[axes:]), tree)


def ffi_call(
    target: str,
    results: Sequence[Any],
    shared: Sequence[Any],
    rows: Sequence[Any],
    *,
    num_aliased: int = 0,
    **attributes: Any,
) -> Any:
    """Call a C++ kernel that has one batch axis. If the batch is sharded, each device processes its own part.

    Args:
        target: Name of the custom call.
        results: Shape and dtype of each result, without the batch axis.
        shared: Arrays that the entire batch uses. They are the first operands of the kernel.
        rows: Arrays with a leading batch axis. They are the remaining operands.
        num_aliased: The first `num_aliased` results reuse the memory of the last `num_aliased` operands.
        attributes: Static arguments of the kernel.

    Returns:
        The results, each with a leading batch axis.
    """

    def call(*operands: Any) -> Any:
        batch = operands[-1].shape[0]
        shapes = [jax.ShapeDtypeStruct((batch, *result.shape), result.dtype) for result in results]
        aliases = {len(operands) - num_aliased + k: k for k in range(num_aliased)}
        return jax.ffi.ffi_call(target, shapes, input_output_aliases=aliases)(*operands, **attributes)

    return keep_batch_sharding(call, tuple(shared), tuple(rows))
