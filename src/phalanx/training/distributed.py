"""Devices and processes that train together, and the few operations that involve more than one of them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, PyTree

from phalanx.training.processes import Processes

AXIS = "shards"
AnyState = TypeVar("AnyState", bound=Any)

_processes = Processes(0, 1)


def initialize(coordinator: str, num_processes: int, process_id: int) -> None:
    """Connect this process to the others that train with it. Call it before anything else uses JAX.

    Args:
        coordinator: `HOST:PORT` at which the first process listens.
        num_processes: Number of processes.
        process_id: Index of this process.
    """
    global _processes
    if _processes.count > 1:
        raise ValueError("this process is already connected to others")
    _processes = Processes.join(coordinator, num_processes, process_id)


class DeviceMesh:
    """The devices of this process, and the other processes of the training.

    Programs are written for a single device and run by `map` on every device with its part of the data.
    Only `all_gather` and `sum_in_order` communicate.

    Args:
        devices: Devices to use instead of all devices of this process.
        processes: Connected processes. Default: those of `initialize`, or only this process.
    """

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, processes: Processes | None = None
    ) -> None:
        self._devices = devices
        self.processes = _processes if processes is None else processes

    @functools.cached_property
    def devices(self) -> tuple[jax.Device, ...]:
        """Devices of this process."""
        return tuple(jax.local_devices() if self._devices is None else self._devices)

    @property
    def is_first_process(self) -> bool:
        """True in the process that writes the files of the run."""
        return self.processes.rank == 0

    @functools.cached_property
    def _mesh(self) -> Mesh | None:
        """None for a single device, whose arrays need no sharding."""
        return None if len(self.devices) == 1 else Mesh(np.asarray(self.devices), (AXIS,))

    def check_num_shards(self, num_shards: int, settings: str) -> None:
        """Raise ValueError if the shards cannot be divided evenly among all devices of all processes."""
        count = len(self.devices) * self.processes.count
        if num_shards % count:
            what = f"{count} processes" if len(self.devices) == 1 else f"{count} devices"
            raise ValueError(
                f"{what} must divide the {num_shards} shards of environments ({settings}); change one of "
                "these settings"
            )

    def local_slice(self, size: int) -> slice:
        """Return the part of an axis of `size` entries that this process has."""
        part = size // self.processes.count
        return slice(self.processes.rank * part, (self.processes.rank + 1) * part)

    def shard(self, tree: PyTree) -> PyTree:
        """Distribute the first axis of all arrays over the devices of this process."""
        return tree if self._mesh is None else jax.device_put(tree, NamedSharding(self._mesh, P(AXIS)))

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy all arrays to every device of this process."""
        return tree if self._mesh is None else jax.device_put(tree, NamedSharding(self._mesh, P()))

    def map(self, program: Callable[..., Any], *args: Any, out: Any) -> Any:
        """Run a program for a single device on every device of this process.

        Args:
            program: A `jit_method` of an algorithm.
            args: Sharded arrays are divided among the devices; others are passed to every device.
            out: Placement of the results. `"shards"`: concatenated along the first axis; `"replicated"`:
                equal on all devices; or a tree (prefix) with the axes to concatenate along.
        """
        if self._mesh is None:
            return program(*args)
        leaves, structure = jax.tree.flatten(args)
        specs = tuple(_partition_spec(leaf, self._mesh) for leaf in leaves)
        axes = {"shards": 0, "replicated": None}.get(out, out) if isinstance(out, str) else out
        axis_leaves, axis_structure = jax.tree.flatten(axes, is_leaf=lambda leaf: leaf is None)
        compiled = _sharded_program(program, self._mesh, structure, specs, axis_structure, tuple(axis_leaves))
        return compiled(*args)

    def all_gather(self, tree: PyTree) -> PyTree:
        """Concatenate arrays of all devices and processes along the first axis, on every device."""
        if self.processes.count > 1:
            leaves, structure = jax.tree.flatten(tree)
            gathered = self.processes.gather_all([np.asarray(leaf) for leaf in leaves], [0] * len(leaves))
            tree = jax.tree.unflatten(structure, map(_to_device, gathered))
        return self.replicate(tree)

    def sum_in_order(self, rows: Float[Array, "shards size"]) -> Float[Array, " size"]:
        """Sum the rows of all devices and processes in their order.

        A fixed order makes the result independent of the number of devices and processes, bit by bit.
        """
        return _sum_rows(self.all_gather(rows))

    def gather_state(self, state: AnyState) -> AnyState:
        """Collect the sharded fields of a `TrainState` from all processes, for a checkpoint.

        All processes must call it at the same time.
        """
        if self.processes.count == 1 or not state.sharded_fields:
            return state
        parts = {name: jax.tree.map(self._gather_leaf, getattr(state, name)) for name in state.sharded_fields}
        return dataclasses.replace(state, **parts)

    def shard_state(self, state: AnyState) -> AnyState:
        """Keep this process's part of the sharded fields, and place all arrays on its devices."""
        if self._mesh is None and self.processes.count == 1:
            return state

        def part(leaf: Array) -> Array:
            return leaf[self.local_slice(leaf.shape[0])]

        parts = {name: self.shard(jax.tree.map(part, getattr(state, name))) for name in state.sharded_fields}
        names = [field.name for field in dataclasses.fields(state)]
        parts |= {name: self.replicate(getattr(state, name)) for name in names if name not in parts}
        return dataclasses.replace(state, **parts)

    def wait_for_all(self) -> None:
        """Wait until every process calls this method."""
        self.processes.exchange(b"")

    def any_process(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is set in at least one process. All processes must call it."""
        return np.any(self.processes.gather(np.asarray(flags)[None]), axis=0).tolist()

    def check_agreement(self, what: str, digest: str) -> None:
        """Raise ValueError if the processes differ. All processes must call it.

        Args:
            what: Description of the compared values, for the error message.
            digest: Digest of the values of this process, with the same length in all processes.
        """
        digests = self.processes.exchange(digest.encode())
        for rank, other in enumerate(digests):
            if other != digests[0]:
                raise ValueError(
                    f"process {rank} and process 0 differ in {what}; start all of them with the same command"
                )

    def _gather_leaf(self, leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _to_device(self.processes.gather(np.asarray(leaf)))
        data = self.processes.gather(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(_to_device(data), impl=jax.random.key_impl(leaf))


def unreplicate(tree: PyTree) -> PyTree:
    """Return arrays on a single device, where every device has a copy of them.

    Arrays that are distributed over the devices are left as they are: no device has all of their data.
    """

    def first_copy(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return leaf

    return jax.tree.map(first_copy, tree)


def _partition_spec(leaf: Any, mesh: Mesh) -> P:
    sharding = getattr(leaf, "sharding", None)
    return sharding.spec if isinstance(sharding, NamedSharding) and sharding.mesh == mesh else P()


@functools.lru_cache(maxsize=64)
def _sharded_program(
    program: Any,
    mesh: Mesh,
    structure: Any,
    specs: tuple[P, ...],
    out_structure: Any,
    out_axes: tuple[Any, ...],
) -> Callable[..., Any]:
    """Compile a program once for all devices; each runs the same instructions as a single device would."""
    out = [P() if axis is None else P(*[None] * axis, AXIS) for axis in out_axes]
    mapped = jax.shard_map(
        program.traced,
        mesh=mesh,
        in_specs=jax.tree.unflatten(structure, specs),
        out_specs=jax.tree.unflatten(out_structure, out),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=program.donate_argnums)


@jax.jit
def _sum_rows(rows: Float[Array, "shards size"]) -> Float[Array, " size"]:
    return functools.reduce(jnp.add, rows)


def _to_device(array: np.ndarray) -> Array:
    """Copy to memory of its own, because programs may reuse the memory of their arguments."""
    return jax.device_put(array, may_alias=False)
