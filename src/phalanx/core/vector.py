"""Functions that reset and step a batch of environments, or only selected environments in a batch.

A row is the part of a batch that belongs to one environment: index `i` of the leading axis of every leaf.
"""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.core.backends import keep_batch_sharding
from phalanx.core.environment import Environment, Keys

_CHUNK_SIZE = 16
"""Default number of rows that `map_where` computes at a time. It is small, because in a typical step only
about 1% of the episodes end and have to be reset."""

RowFunction = Callable[..., Any]
"""Function that is applied to one row of a batch."""


def batch_reset(keys: Keys, environment: Environment) -> tuple[PyTree, PyTree]:
    """Start one episode per key.

    Args:
        keys: One PRNG key per environment.
        environment: The environment.

    Returns:
        States and observations with a leading batch axis.
    """
    if has_tracers(environment, keys):
        return environment.batch_reset(keys)
    return _reset(environment, keys)


def batch_step(
    states: PyTree, actions: PyTree, environment: Environment, *, donate: bool = False
) -> tuple[PyTree, PyTree, Float[Array, " batch"], Bool[Array, " batch"], Any]:
    """Step every environment in a batch.

    Args:
        states: States with a leading batch axis.
        actions: One action per environment.
        environment: The environment.
        donate: If True, the new states reuse the memory of `states`, which must not be used after the call.

    Returns:
        States, observations, rewards, dones and infos.
    """
    if has_tracers(environment, states, actions):
        return environment.batch_step(states, actions)
    return (_donating_step if donate else _step)(environment, states, actions)


def has_tracers(*trees: PyTree) -> bool:
    """Return whether any leaf is a tracer, that is, whether the caller is being traced by JAX."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


# The environment is an argument: one compilation serves all environments whose arrays have the same shapes.
@jax.jit
def _reset(environment: Environment, keys: Keys) -> tuple[PyTree, PyTree]:
    return environment.batch_reset(keys)


def _transition(environment: Environment, states: PyTree, actions: PyTree) -> tuple[Any, ...]:
    return environment.batch_step(states, actions)


_step = jax.jit(_transition)
_donating_step = jax.jit(_transition, donate_argnums=1)


def batch_metrics(environment: Environment, states: PyTree) -> dict[str, Array]:
    """Return the metrics of a batch of episodes, given their last states.

    The metrics `success` and `similarity` get the names that `ExperimentLogger.log_batch_step` expects.
    """
    names = {"success": "success_mask", "similarity": "similarity_scores"}
    metrics = jax.vmap(environment.metrics)(states)
    return {names.get(name, name): jnp.asarray(values) for name, values in metrics.items()}


class VectorEnvState(eqx.Module):
    """States of a batch of environments and the values that a vector environment returns after each step."""

    states: PyTree
    observations: PyTree
    legal_actions: Bool[Array, "batch actions"] | None
    """Mask of legal actions. None if all actions are always legal."""
    terminated: Bool[Array, " batch"]
    truncated: Bool[Array, " batch"]


def initial_vector_state(environment: Environment, num_envs: int) -> VectorEnvState:
    """Create a state that contains only zeros, to pass to the first call to `reset_where`.

    With this state, the first call uses the same compiled program as later calls.
    """
    keys = jax.ShapeDtypeStruct((num_envs, 2), jnp.uint32)
    states, observations = jax.eval_shape(environment.batch_reset, keys)
    legal = jax.eval_shape(jax.vmap(environment.legal_actions), states)
    done = jax.ShapeDtypeStruct((num_envs,), bool)
    return VectorEnvState(*zeros_like_shapes((states, observations, legal, done, done)))


def zeros_like_shapes(shapes: PyTree) -> PyTree:
    """Create arrays of zeros with the shapes and dtypes that `jax.eval_shape` returns."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@jax.jit
def reset_where(
    environment: Environment, mask: Bool[Array, " batch"], keys: Keys, state: VectorEnvState
) -> VectorEnvState:
    """Start a new episode in each environment for which `mask` is True, and return the new state.

    `keys` contains one key per environment. Keys of environments that are not reset are ignored.
    """
    states, observations = environment.batch_reset_where(mask, keys, state.states, state.observations)
    legal = jax.vmap(environment.legal_actions)(states)
    return VectorEnvState(states, observations, legal, state.terminated & ~mask, state.truncated & ~mask)


@jax.jit
def step_where(
    environment: Environment,
    mask: Bool[Array, " batch"] | None,
    state: VectorEnvState,
    actions: PyTree,
) -> tuple[VectorEnvState, Float[Array, " batch"], Any]:
    """Step the environments for which `mask` is True, or all environments if `mask` is None.

    Returns:
        The new state, the rewards and the infos. Where the mask is False, the state is unchanged, the reward
        is 0, and the info must be ignored.
    """
    states, observations, rewards, _, info = environment.batch_step(state.states, actions)
    legal = jax.vmap(environment.legal_actions)(states)
    after = VectorEnvState(states, observations, legal, states.terminated, states.truncated)
    if mask is None:
        return after, rewards, info
    return select_rows(mask, after, state), jnp.where(mask, rewards, 0), info


def positive_integer(value: Any, name: str) -> int:
    """Return a value as an int. Raise `TypeError` or `ValueError` if it is not a positive integer."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def select_rows(mask: Bool[Array, "*batch"], new: PyTree, old: PyTree) -> PyTree:
    """Select the rows of `new` where the mask is True and the rows of `old` elsewhere, in every leaf.

    >>> select_rows(jnp.array([True, False]), jnp.ones((2, 2)), jnp.zeros((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def select(one: Array, other: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (one.ndim - mask.ndim)), one, other)

    return jax.tree.map(select, new, old)


def broadcast_unbatched(values: PyTree, batched: PyTree, size: int) -> PyTree:
    """Add a batch axis to the leaves that have none.

    Batching rules of `custom_vmap` functions need this step, because `vmap` may map over only some of the
    arguments.

    Args:
        values: Pytree of arguments.
        batched: Pytree of booleans, which are True for leaves that have a batch axis.
        size: Size of the batch axis.
    """
    # Constants in a `cond` are NumPy arrays.
    return jax.tree.map(
        lambda value, has_axis: value if has_axis else jnp.broadcast_to(value, (size, *jnp.shape(value))),
        values,
        batched,
    )


def map_where(
    function: RowFunction,
    mask: Bool[Array, " batch"],
    rows: PyTree,
    defaults: PyTree,
    chunk_size: int = _CHUNK_SIZE,
    *,
    shared: tuple[PyTree, ...] | None = None,
) -> PyTree:
    """Apply `vmap(function)` to the rows where the mask is True, and take the other results from `defaults`.

    On the CPU, the cost is proportional to the number of selected rows. An accelerator processes all rows,
    because a loop over the selected rows would be slower.

    Args:
        function: Function that is called with one row, followed by the arguments in `shared`.
        mask: True for the rows to which the function is applied.
        rows: Arguments with a leading batch axis.
        defaults: Results for the rows where the mask is False, with a leading batch axis.
        chunk_size: Number of rows that are processed at a time on the CPU.
        shared: Additional arguments of `function`, which are the same for all rows. If a tuple is passed,
            even an empty one, each row of a sharded batch is processed on the device that holds the row, and
            the function must not close over arrays. None means that there are no additional arguments.
    """
    row_function = function if shared is None else (lambda row: function(row, *shared))
    if mask.shape[0] <= 4 * chunk_size:
        return _map_all_rows(row_function, mask, rows, defaults)
    sparse = partial(_map_selected_rows, row_function, chunk_size)
    dense = partial(_map_all_rows, row_function)
    if shared is not None and jax.device_count() > 1:
        sparse = partial(_map_selected_rows_in_shards, function, chunk_size, shared)
    return jax.lax.platform_dependent(mask, rows, defaults, cpu=sparse, default=dense)


def _map_all_rows(
    function: RowFunction, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree
) -> PyTree:
    return select_rows(mask, jax.vmap(function)(rows), defaults)


def _map_selected_rows(
    function: RowFunction, chunk_size: int, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree
) -> PyTree:
    # The padding is an index that is dropped below.
    indices = first_true_rows(mask, mask.shape[0] + chunk_size)
    count = jnp.sum(mask, dtype=jnp.int32)

    def one_chunk(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, results = carry
        chunk = jax.lax.dynamic_slice(indices, (start,), (chunk_size,))
        new = jax.vmap(function)(jax.tree.map(lambda leaf: leaf.at[chunk].get(mode="clip"), rows))
        results = jax.tree.map(lambda leaf, value: leaf.at[chunk].set(value, mode="drop"), results, new)
        return start + chunk_size, results

    return jax.lax.while_loop(lambda carry: carry[0] < count, one_chunk, (jnp.int32(0), defaults))[1]


def first_true_rows(mask: Bool[Array, " batch"], count: int) -> Int32[Array, " rows"]:
    """Return the indices of the first `count` rows where the mask is True.

    If there are fewer such rows, the result is padded with the batch size, which is an invalid index.
    """
    batch = mask.shape[0]
    rank = jnp.cumsum(mask, dtype=jnp.int32) - 1
    slot = jnp.where(mask & (rank < count), rank, count)
    index = jnp.arange(batch, dtype=jnp.int32)
    return jnp.full(count, batch, jnp.int32).at[slot].set(index, mode="drop")


def _map_selected_rows_in_shards(
    function: RowFunction,
    chunk_size: int,
    shared: tuple[PyTree, ...],
    mask: Bool[Array, " batch"],
    rows: PyTree,
    defaults: PyTree,
) -> PyTree:
    """Apply `function` to the selected rows of each shard, on the shard's device.

    PRNG keys are passed as their `uint32` data, because a partitioned call takes only plain arrays.
    """
    leaves, structure = jax.tree.flatten((rows, defaults))
    shared_leaves, shared_structure = jax.tree.flatten(shared)
    key_types = list(map(key_type_of, leaves))

    def kernel(*args: Array) -> tuple[Array, ...]:
        shared_args = jax.tree.unflatten(shared_structure, args[: len(shared_leaves)])
        mask, *data = args[len(shared_leaves) :]
        wrapped = [with_key_type(leaf, key_type) for leaf, key_type in zip(data, key_types, strict=True)]
        own = jax.tree.unflatten(structure, wrapped)
        results = _map_selected_rows(lambda row: function(row, *shared_args), chunk_size, mask, *own)
        return tuple(map(without_key_type, jax.tree.leaves(results)))

    results = keep_batch_sharding(kernel, tuple(shared_leaves), (mask, *map(without_key_type, leaves)))
    result_types = key_types[len(key_types) - len(results) :]
    keys = [with_key_type(leaf, key_type) for leaf, key_type in zip(results, result_types, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(defaults), keys)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key_type(leaf: Any) -> Any:
    """Convert an array of PRNG keys to integers. Return other arrays unchanged.

    NumPy has no type for keys, and checkpoints and partitioned calls take only plain arrays.
    """
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def with_key_type(leaf: Any, key_type: Any) -> Any:
    """Convert integers to PRNG keys of a type. Inverse of `without_key_type`."""
    return leaf if key_type is None else jax.random.wrap_key_data(leaf, impl=key_type)


def key_type_of(leaf: Any) -> Any:
    """Return the type of an array of PRNG keys. None for other arrays."""
    return jax.random.key_impl(leaf) if _is_key(leaf) else None


def host_rows(states: Any, convert: Callable[[Any], Any] = jnp.asarray) -> list[Any]:
    """Split a batch into a list of rows.

    The batch is copied to the host and split there, because slicing on a device would dispatch one operation
    for every leaf of every row.

    Args:
        states: Pytree with a leading batch axis.
        convert: Function that is applied to every leaf of every row, which is a NumPy array.
    """
    host = jax.device_get(states)
    size = jax.tree.leaves(host)[0].shape[0]
    return [jax.tree.map(lambda leaf, n=n: convert(leaf[n]), host) for n in range(size)]


def parse_each(
    parse: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
) -> tuple[list[Any] | None, list[str]]:
    """Parse one action per environment.

    Args:
        parse: Function that returns an action or raises `ValueError`.
        arguments: Arguments of `parse` for each environment.

    Returns:
        The actions, and one error message per environment. The message is empty if the environment's action
        is valid. An invalid action is replaced by the first valid action in the batch. If no action is valid,
        None is returned instead of the actions.
    """
    found: list[Any] = []
    errors: list[str] = []
    for args in arguments:
        try:
            found.append(parse(*args))
            errors.append("")
        except ValueError as error:
            found.append(None)
            errors.append(str(error))
    filler = next((action for action in found if action is not None), None)
    if filler is None:
        return None, errors
    return [filler if action is None else action for action in found], errors
