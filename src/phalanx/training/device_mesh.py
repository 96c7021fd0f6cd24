"""`DeviceMesh`: runs the compiled programs of an algorithm on several devices and processes.

It decides which part of the arrays each device holds, and combines the results of all devices. A
`ProcessGroup` exchanges data between processes.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, PyTree

from phalanx.training.process_group import ProcessGroup

AXIS = "shards"
AnyState = TypeVar("AnyState", bound=Any)

_process_group = ProcessGroup(0, 1)
"""Processes that `initialize` connected. Only this process if `initialize` was not called."""


def initialize(coordinator: str, num_processes: int, process_id: int) -> None:
    """Connect this process to the other processes of a training run.

    Call this function before any use of JAX.

    Args:
        coordinator: Address `HOST:PORT` at which the first process listens.
        num_processes: Number of processes.
        process_id: Index of this process, counted from 0.
    """
    global _process_group
    if _process_group.size > 1:
        raise ValueError("this process is already connected to others")
    _process_group = ProcessGroup.join(coordinator, num_processes, process_id)


class DeviceMesh:
    """The devices of this process, and connections to the other processes of a training run.

    Programs are written for a single device. `map` runs a program on all devices, each with its own part of
    the data, without communication. Other methods, such as `all_gather`, exchange data between devices and
    processes.

    Args:
        devices: Devices of this process to use. None means all of them.
        processes: Processes of the training run. None means those that `initialize` connected, or only this
            process if `initialize` was not called.
    """

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, processes: ProcessGroup | None = None
    ) -> None:
        self.devices = tuple(jax.local_devices() if devices is None else devices)
        """The devices of this process that the mesh uses."""
        self.processes = _process_group if processes is None else processes
        self._mesh = None if len(self.devices) == 1 else Mesh(np.asarray(self.devices), (AXIS,))
        """JAX mesh of the devices. None for a single device, whose arrays need no sharding."""

    @property
    def is_first_process(self) -> bool:
        """True in the first process, which writes the run's files."""
        return self.processes.rank == 0

    def check_num_shards(self, num_shards: int) -> None:
        """Raise ValueError if the shards cannot be divided evenly among all devices of all processes."""
        count = len(self.devices) * self.processes.size
        if num_shards % count:
            raise ValueError(
                f"the number of devices, {count}, must divide the {num_shards} shards of environments; "
                "change num_env_shards or num_envs, or the number of devices or processes"
            )

    def local_slice(self, size: int) -> slice:
        """Divide an axis with `size` entries evenly among the processes, and return this process's slice."""
        part = size // self.processes.size
        return slice(self.processes.rank * part, (self.processes.rank + 1) * part)

    def shard(self, tree: PyTree) -> PyTree:
        """Shard all arrays along their first axis across the devices of this process."""
        return tree if self._mesh is None else jax.device_put(tree, NamedSharding(self._mesh, P(AXIS)))

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy all arrays to every device of this process."""
        return tree if self._mesh is None else jax.device_put(tree, NamedSharding(self._mesh, P()))

    def map(self, program: MethodType, *args: Any, out: Any) -> Any:
        """Run a single-device program on every device of this process.

        Args:
            program: A `jit_method` of an algorithm.
            args: Arguments of the program. Sharded arrays are divided among the devices, and other arrays are
                passed to every device.
            out: How to combine the results of the devices. `"shards"` concatenates them along the first axis.
                `"replicated"` means that the results are equal on all devices and are not concatenated. Any
                other value is a pytree prefix of the results, in which each leaf is the axis to concatenate
                along, or None if the results are equal on all devices.
        """
        if self._mesh is None:
            return program(*args)
        leaves, structure = jax.tree.flatten(args)
        in_specs = tuple(_partition_spec(leaf, self._mesh) for leaf in leaves)
        axes = {"shards": 0, "replicated": None}.get(out, out) if isinstance(out, str) else out
        axis_leaves, out_structure = jax.tree.flatten(axes, is_leaf=lambda leaf: leaf is None)
        out_specs = tuple(P() if axis is None else P(*[None] * axis, AXIS) for axis in axis_leaves)
        compiled = _sharded_program(
            program.__func__, program.__self__, self._mesh, structure, in_specs, out_structure, out_specs
        )
        return compiled(*args)

    def all_gather(self, tree: PyTree) -> PyTree:
        """Concatenate the arrays of all devices and processes along the first axis.

        Every device receives the result. All processes must call this method.
        """
        return self.replicate(self._gather_from_processes(tree))

    def sum_in_order(self, rows: Float[Array, "shards size"]) -> Float[Array, " size"]:
        """Sum the rows of all devices and processes in a fixed order. All processes must call this method.

        The sum of the same rows is bit-identical for any number of devices and processes.
        """
        return _sum_rows(self.all_gather(rows))

    def gather_state(self, state: AnyState) -> AnyState:
        """Return a `TrainState` for a checkpoint, with the complete arrays of the sharded fields.

        Each process holds only a part of these arrays, so the parts of all processes are concatenated. All
        processes must call this method.
        """
        parts = {name: self._gather_from_processes(getattr(state, name)) for name in state.sharded_fields}
        return dataclasses.replace(state, **parts)

    def shard_state(self, state: AnyState) -> AnyState:
        """Select this process's part of the sharded fields, and copy the state to the devices of the process.

        This is the inverse of `gather_state`.
        """
        if self._mesh is None and self.processes.size == 1:
            return state

        def part(leaf: Array) -> Array:
            return leaf[self.local_slice(leaf.shape[0])]

        parts = {name: self.shard(jax.tree.map(part, getattr(state, name))) for name in state.sharded_fields}
        names = [field.name for field in dataclasses.fields(state)]
        parts |= {name: self.replicate(getattr(state, name)) for name in names if name not in parts}
        return dataclasses.replace(state, **parts)

    def wait_for_all(self) -> None:
        """Wait until every process has called this method."""
        self.processes.exchange(b"")

    def any_process(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is true in at least one process.

        All processes must call this method with the same number of flags.
        """
        [gathered] = self.processes.gather([np.asarray(flags)[None]])
        return np.any(gathered, axis=0).tolist()

    def check_agreement(self, what: str, digest: str) -> None:
        """Raise ValueError if the processes have different digests. All processes must call this method.

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

    def _gather_from_processes(self, tree: PyTree) -> PyTree:
        """Concatenate the arrays of all processes along the first axis."""
        if self.processes.size == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        gathered = self.processes.gather([np.asarray(without_key_type(leaf)) for leaf in leaves])
        # The memory must not be shared with NumPy, because programs may reuse the memory of their arguments.
        arrays = jax.device_put(gathered, may_alias=False)
        return jax.tree.unflatten(structure, map(with_key_type_of, leaves, arrays))


def unreplicate(tree: PyTree) -> PyTree:
    """Replace arrays that are replicated on all devices with the copy on one device.

    Arrays that are distributed over the devices are not changed, because no device has all of their data.
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
    method: Any,
    instance: Any,
    mesh: Mesh,
    in_structure: Any,
    in_specs: tuple[P, ...],
    out_structure: Any,
    out_specs: tuple[P, ...],
) -> Callable[..., Any]:
    """Compile a single-device program for all devices of a mesh.

    XLA compiles this program separately from that for a single device, so the results can differ by rounding.
    """
    mapped = jax.shard_map(
        functools.partial(method.__wrapped__, instance),
        mesh=mesh,
        in_specs=jax.tree.unflatten(in_structure, in_specs),
        out_specs=jax.tree.unflatten(out_structure, out_specs),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=[number - 1 for number in method.donate_argnums])


@jax.jit
def _sum_rows(rows: Float[Array, "shards size"]) -> Float[Array, " size"]:
    return functools.reduce(jnp.add, rows)


def without_key_type(leaf: Any) -> Any:
    """Convert an array of PRNG keys to integers. Return other arrays unchanged.

    NumPy has no type for keys, and checkpoints store them as integers.
    """
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def with_key_type_of(like: Any, leaf: Any) -> Any:
    """Convert integers to PRNG keys if `like` is an array of keys. Inverse of `without_key_type`."""
    if not _is_key(like) or _is_key(leaf):
        return leaf
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
