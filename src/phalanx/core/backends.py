"""Two engines, one meaning: whether the compiled kernels serve, and how a flat kernel serves any batch.

What the kernels compute belongs to the domains that call them. JAX is imported only where it is used.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

Backend = Literal["auto", "native", "xla"]
"""`native` is C++ on the CPU, `xla` any device; `auto` is native where it can be used."""

_SWITCH = "PHALANX_NATIVE"


@functools.cache
def _load() -> ModuleType | str:
    """The extension module, or why there is none."""
    try:
        import phalanx._native as _native
    except ModuleNotFoundError:
        return "the compiled extension is not installed; `pip install -v` with a C++ compiler builds it"
    except ImportError as error:
        return f"the compiled extension does not load: {error}"
    return _native


@functools.cache
def _register() -> None:
    import jax

    loaded = _load()
    assert not isinstance(loaded, str)
    for name, target in loaded.targets().items():
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    # Devices that work side by side would only take each other's threads.
    loaded.share_threads(len(jax.local_devices(backend="cpu")))


def native_unavailable_reason() -> str:
    """Why the native engine is not in use; empty when it is."""
    if os.environ.get(_SWITCH, "1") == "0":
        return f"switched off by {_SWITCH}=0"
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def native_module() -> ModuleType | None:
    """The compiled extension, for calls without JAX; None where the native engine is not in use."""
    loaded = _load()
    return None if native_unavailable_reason() or isinstance(loaded, str) else loaded


def require_native(feature: str) -> ModuleType:
    """Return the compiled extension for a feature that has no other implementation.

    `PHALANX_NATIVE=0` selects the XLA backends and does not disable such features.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise RuntimeError(f"{feature} needs the compiled extension: {loaded}")
    return loaded


def is_native_available() -> bool:
    """Whether the native kernels can be used on the CPU; if so, JAX knows them from now on."""
    if native_unavailable_reason():
        return False
    _register()
    return True


def instruction_set() -> str:
    """The instruction set that the kernels picked on this processor; empty without them."""
    loaded = _load()
    return "" if isinstance(loaded, str) else str(loaded.isa())


def is_cpu_only() -> bool:
    """Whether the CPU is the only kind of device, so that no other engine need be compiled beside."""
    import jax

    return all(device.platform == "cpu" for device in jax.devices())


def resolve_backend(engine: Backend) -> Backend:
    """The engine that serves where this one is asked for.

    `auto` stays only where several kinds of device are present.
    """
    why_not = native_unavailable_reason()
    if engine == "native" and why_not:
        raise RuntimeError(f"engine 'native' was asked for, but {why_not}")
    if engine != "auto":
        return engine
    if why_not:
        return "xla"
    return "native" if is_cpu_only() else "auto"


def dispatch(engine: Backend, native: Callable[..., Any], xla: Callable[..., Any], *arguments: Any) -> Any:
    """Call the twin that serves; with `auto` the device on which the program runs decides."""
    import jax

    if engine != "xla":
        _register()
    if engine == "auto":
        return jax.lax.platform_dependent(*arguments, cpu=native, default=xla)
    return {"native": native, "xla": xla}[engine](*arguments)


def keep_batch_sharding(call: Callable[..., Any], shared: tuple[Any, ...], rows: tuple[Any, ...]) -> Any:
    """`call(*shared, *rows)`, where a batch that is spread over devices stays so: each does its own rows.

    The first axis of the arrays `rows` and of all results is the batch; the arrays `shared` serve all of it.
    XLA knows nothing of a foreign function: by itself it would gather the whole batch on every device.
    """
    import jax
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import NamedSharding, PartitionSpec

    if jax.device_count() == 1:
        return call(*shared, *rows)
    results = jax.eval_shape(call, *shared, *rows)
    others = (f"d{number}" for number in itertools.count())
    alone: list[str] = []

    def factors(leaf: Any, batched: bool) -> str:
        own = [next(others) for _ in leaf.shape[batched:]]
        alone.extend(own)
        return " ".join(["batch"] * batched + own)

    given = ", ".join([factors(leaf, False) for leaf in shared] + [factors(leaf, True) for leaf in rows])
    made = ", ".join(factors(leaf, True) for leaf in jax.tree.leaves(results))

    def partition(mesh: Any, arguments: Any, outcomes: Any) -> tuple[Any, ...]:
        spec = arguments[len(shared)].sharding.spec
        split = NamedSharding(mesh, PartitionSpec(*spec[:1]))
        whole = NamedSharding(mesh, PartitionSpec())
        out = jax.tree.map(lambda _: split, outcomes)
        return mesh, call, out, (whole,) * len(shared) + (split,) * len(rows)

    spread = custom_partitioning(call)
    spread.def_partition(partition, sharding_rule=f"{given} -> {made}", need_replication_factors=tuple(alone))
    return spread(*shared, *rows)


def vmappable_kernel(
    flat: Callable[..., Any], batch_shape: Callable[..., tuple[int, ...]], constant: tuple[bool, ...]
) -> Callable[..., Any]:
    """A flat-batch function made to take any batch shape, none included, and to stay one call under `vmap`.

    `flat(shared, *rows)` gets rows `[batch, ...]`; `batch_shape(*rows)` reads the shape that they had. Each
    item of the tuple `shared` serves the whole batch. Where `vmap` gives an item an axis of its own, `flat`
    gets it as `[groups, ...]`: equal parts of the batch, one after the other, have one member each. Items
    that are `constant` cannot differ, so that the copies which `vmap` of a `cond` makes of them are one.
    """
    import jax
    from jax.custom_batching import custom_vmap

    from phalanx.core.vector import broadcast_unbatched

    # Compiled as one also where the caller compiles nothing, and traced once for many calls.
    compiled = jax.jit(flat)

    def flattened(tree: Any, axes: int) -> Any:
        return jax.tree.map(lambda x: x.reshape(math.prod(x.shape[:axes]), *x.shape[axes:]), tree)

    @functools.cache
    def at(depths: tuple[int, ...]) -> Callable[..., Any]:
        """For shared items with so many axes of groups."""

        @custom_vmap
        def run(shared: tuple[Any, ...], *rows: Any) -> Any:
            shape = batch_shape(*rows)
            grouped = tuple(
                flattened(item, depth) if depth else item for item, depth in zip(shared, depths, strict=True)
            )
            results = compiled(grouped, *flattened(rows, len(shape)))
            return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)

        @run.def_vmap
        def _(axis_size: int, in_batched: Any, shared: tuple[Any, ...], *rows: Any) -> tuple[Any, Any]:
            shared_batched, *rows_batched = in_batched
            items, deeper = [], []
            for item, batched, depth, fixed in zip(shared, shared_batched, depths, constant, strict=True):
                if fixed:
                    items.append(jax.tree.map(lambda x, copies: x[0] if copies else x, item, batched))
                elif depth or any(jax.tree.leaves(batched)):
                    items.append(broadcast_unbatched(item, batched, axis_size))
                    depth += 1
                else:
                    items.append(item)
                deeper.append(depth)
            spread = broadcast_unbatched(tuple(rows), tuple(rows_batched), axis_size)
            results = at(tuple(deeper))(tuple(items), *spread)
            return results, jax.tree.map(lambda _: True, results)

        return run

    return at((0,) * len(constant))
