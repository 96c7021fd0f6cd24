"""Batches: `batch_reset` and `batch_step` of any environment, rows chosen by a mask, single states stacked.

The transitions themselves belong to the environments; starting anew after the end is in `autoreset`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.backends import keep_batch_sharding
from phalanx.core.environment import Environment, EnvironmentConfigLike, Keys, TransitionInfo, as_environment

_NO_TASKS = object()


def environment_of(config: Environment | EnvironmentConfigLike, states: PyTree) -> Environment:
    """The environment that these states belong to, from it itself or from the config that described it.

    States that have `tasks` know what they were made from, so that `(states, actions, config)` says it all.
    """
    if isinstance(config, Environment):
        return config
    tasks = getattr(states, "tasks", _NO_TASKS)
    if tasks is _NO_TASKS:
        return as_environment(config)
    if tasks is None:
        raise ValueError(
            "these states were made inside a compiled program that has their environment as an argument, and "
            "do not know their tasks: pass the environment in the config's place, or environment.bind(states)"
        )
    return as_environment(config, tasks)


def select_rows(mask: Bool[Array, "*batch"], new: PyTree, old: PyTree) -> PyTree:
    """The rows of `new` where the mask says so and those of `old` elsewhere, in every leaf of two trees.

    >>> select_rows(jnp.array([True, False]), jnp.ones((2, 2)), jnp.zeros((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def select(one: Array, other: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (one.ndim - mask.ndim)), one, other)

    return jax.tree.map(select, new, old)


def broadcast_unbatched(values: PyTree, batched: PyTree, size: int) -> PyTree:
    """Values, those that are not batched once for each of a batch; for the rules of a `custom_vmap`."""
    # Constants under a `cond` come as NumPy arrays.
    return jax.tree.map(
        lambda value, has_axis: value if has_axis else jnp.broadcast_to(value, (size, *jnp.shape(value))),
        values,
        batched,
    )


def batch_reset(
    keys: Keys, config: Environment | EnvironmentConfigLike, task: Any = None
) -> tuple[PyTree, PyTree]:
    """Start one episode for each key: states and observations with a leading batch axis."""
    environment = as_environment(config, task)
    if has_tracers(environment, keys):
        return environment.batch_reset(keys)
    states, observations = _reset(environment, keys)
    return environment.bind(states), observations


def batch_step(
    states: PyTree,
    actions: PyTree,
    config: Environment | EnvironmentConfigLike,
    *,
    donate: bool = False,
) -> tuple[PyTree, PyTree, Float[Array, " batch"], Bool[Array, " batch"], TransitionInfo]:
    """Step every environment once: states, observations, rewards, dones, infos.

    With `donate` the memory of `states` is reused for the new ones, and the old ones may not be read again.
    """
    environment = environment_of(config, states)
    if has_tracers(environment, states, actions):
        return environment.batch_step(states, actions)
    step = _donating_step if donate else _step
    after, *rest = step(environment, environment.unbind(states), actions)
    return environment.bind(after), *rest


def has_tracers(*trees: PyTree) -> bool:
    """Whether this is inside a program that is compiled as a whole, where constants had better stay ones."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


# The environment is an argument: one compilation serves all whose arrays have the same shapes.
@jax.jit
def _reset(environment: Environment, keys: Keys) -> tuple[PyTree, PyTree]:
    return environment.batch_reset(keys)


def _transition(environment: Environment, states: PyTree, actions: PyTree) -> tuple[Any, ...]:
    return environment.batch_step(states, actions)


_step = jax.jit(_transition)
_donating_step = jax.jit(_transition, donate_argnums=1)


_CHUNK = 16
"""Rows computed at a time, if nothing else is said: of a thousand environments about ten end in a step."""

RowFunction = Callable[..., Any]


def map_where(
    function: RowFunction,
    mask: Bool[Array, " batch"],
    rows: PyTree,
    defaults: PyTree,
    chunk: int = _CHUNK,
    *,
    shared: tuple[PyTree, ...] | None = None,
) -> PyTree:
    """`vmap(function)(rows)` where the mask says so, and `defaults` elsewhere.

    On the CPU the cost grows with the number of rows that the mask names, `chunk` of them at a time; an
    accelerator computes all rows at once, which it does in no time, where a loop would make it wait.

    With `shared` the function is `function(row, *shared)` and reads no other arrays: then rows that are
    spread over devices are computed where they are.
    """
    on_row = function if shared is None else (lambda row: function(row, *shared))
    if mask.shape[0] <= 4 * chunk:
        return _all_rows(on_row, mask, rows, defaults)
    sparse, dense = partial(_named_rows, on_row, chunk), partial(_all_rows, on_row)
    if shared is not None and jax.device_count() > 1:
        sparse = partial(_named_rows_in_shards, function, chunk, shared)
    return jax.lax.platform_dependent(mask, rows, defaults, cpu=sparse, default=dense)


def _all_rows(function: RowFunction, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree) -> PyTree:
    return select_rows(mask, jax.vmap(function)(rows), defaults)


def _named_rows(
    function: RowFunction, chunk: int, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree
) -> PyTree:
    batch = mask.shape[0]
    rank = jnp.cumsum(mask, dtype=jnp.int32)
    # The named rows' indices, in order and without gaps; `batch`, which is dropped below, fills the rest.
    order = jnp.full((batch + chunk,), batch, jnp.int32)
    places = jnp.where(mask, rank - 1, batch + chunk)
    order = order.at[places].set(jnp.arange(batch, dtype=jnp.int32), mode="drop")

    def one_chunk(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, results = carry
        here = jax.lax.dynamic_slice(order, (start,), (chunk,))
        new = jax.vmap(function)(jax.tree.map(lambda leaf: leaf.at[here].get(mode="clip"), rows))
        results = jax.tree.map(lambda leaf, value: leaf.at[here].set(value, mode="drop"), results, new)
        return start + chunk, results

    return jax.lax.while_loop(lambda carry: carry[0] < rank[-1], one_chunk, (jnp.int32(0), defaults))[1]


def _named_rows_in_shards(
    function: RowFunction,
    chunk: int,
    shared: tuple[PyTree, ...],
    mask: Bool[Array, " batch"],
    rows: PyTree,
    defaults: PyTree,
) -> PyTree:
    """The same on each device by itself. Keys go as their words: a partitioned call takes plain arrays."""
    leaves, structure = jax.tree.flatten((rows, defaults))
    common, form = jax.tree.flatten(shared)
    kinds = [jax.random.key_impl(leaf) if _is_key(leaf) else None for leaf in leaves]

    def call(*given: Array) -> tuple[Array, ...]:
        together = jax.tree.unflatten(form, given[: len(common)])
        mask, *words = given[len(common) :]
        wrapped = [_as_key(leaf, kind) for leaf, kind in zip(words, kinds, strict=True)]
        own = jax.tree.unflatten(structure, wrapped)
        results = _named_rows(lambda row: function(row, *together), chunk, mask, *own)
        return tuple(map(_as_words, jax.tree.leaves(results)))

    results = keep_batch_sharding(call, tuple(common), (mask, *map(_as_words, leaves)))
    last = kinds[len(kinds) - len(results) :]
    keys = [_as_key(leaf, kind) for leaf, kind in zip(results, last, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(defaults), keys)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_words(leaf: Any) -> Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _as_key(leaf: Array, kind: Any) -> Any:
    return leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)


def stack_states(states_list: Sequence[PyTree]) -> PyTree:
    """One batch of states from single ones."""
    return _stack(states_list, "state")


def stack_actions(actions_list: Sequence[PyTree]) -> PyTree:
    """One batch of actions from single ones; they must share a format."""
    return _stack(actions_list, "action")


def pad_states(states_list: Sequence[PyTree], size: int) -> PyTree:
    """A batch of exactly `size` states; copies of the last one fill it."""
    return _stack(_pad(states_list, size, "state"), "state")


def pad_actions(actions_list: Sequence[PyTree], size: int) -> PyTree:
    """A batch of exactly `size` actions; copies of the last one fill it."""
    return _stack(_pad(actions_list, size, "action"), "action")


def unpad_results(results: PyTree, size: int) -> PyTree:
    """The first `size` entries of every leaf: what `batch_step` returned, without the padding."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        if leaf.ndim == 0 or leaf.shape[0] < size:
            raise ValueError(
                f"cannot take {size} results from a batch: result{jax.tree_util.keystr(path)} "
                f"has shape {leaf.shape}"
            )
    return jax.tree.map(lambda leaf: leaf[:size], results)


def combine_batch_results(results: Sequence[PyTree]) -> PyTree:
    """One result from the results of several batches, in order."""
    _check_alike(results, "batch result")
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)


def process_dynamic_batch(
    states_list: Sequence[PyTree],
    actions_list: Sequence[PyTree],
    config: Environment | EnvironmentConfigLike,
    max_batch_size: int = 64,
) -> tuple[Any, ...]:
    """Step any number of single states in batches of exactly `max_batch_size`, so that one shape compiles.

    More states than that are stepped in chunks, and the last (or only) chunk is padded. The result is
    `batch_step`'s, with as many entries as there are states.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    if len(states_list) != len(actions_list):
        raise ValueError(
            f"every state needs one action: got {len(states_list)} states and {len(actions_list)} actions"
        )
    _check_alike(states_list, "state")
    _check_alike(actions_list, "action")
    results = []
    for start in range(0, len(states_list), max_batch_size):
        states = states_list[start : start + max_batch_size]
        actions = actions_list[start : start + max_batch_size]
        padded = batch_step(pad_states(states, max_batch_size), pad_actions(actions, max_batch_size), config)
        results.append(unpad_results(padded, len(states)))
    return combine_batch_results(results)


def _stack(items: Sequence[PyTree], what: str) -> PyTree:
    _check_alike(items, what)

    def stack(*leaves: Array) -> Array:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    return jax.tree.map(stack, *items)


def _pad(items: Sequence[PyTree], size: int, what: str) -> list[PyTree]:
    if not items:
        raise ValueError(f"cannot pad an empty list of {what}s: there is nothing to fill it with")
    if len(items) > size:
        raise ValueError(f"cannot pad {len(items)} {what}s to {size}; raise the size or split the list")
    return [*items, *[items[-1]] * (size - len(items))]


def _check_alike(items: Sequence[PyTree], what: str) -> None:
    """Refuse an empty list and items of different kinds, naming the first that differs."""
    if not items:
        raise ValueError(f"need at least one {what}, got an empty list")
    first: Any = jax.tree.structure(items[0])
    for index, item in enumerate(items):
        structure: Any = jax.tree.structure(item)
        if structure != first:
            raise ValueError(
                f"{what}s of different kinds cannot form one batch: {what} 0 is {first}, "
                f"{what} {index} is {structure}"
            )
    # Results of batches may differ in their first axis; single states and actions may not differ at all.
    skip = 1 if what == "batch result" else 0
    shapes = [[jnp.shape(leaf)[skip:] for leaf in jax.tree.leaves(item)] for item in items]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"{what} {index} has shapes {shape}, {what} 0 has {shapes[0]}")


def host_rows(states: PyTree, convert: Callable[[Any], Any] = jnp.asarray) -> list[Any]:
    """Split a batch into rows on the host. On a device, this would run one program per leaf and row."""
    host = jax.device_get(states)
    size = jax.tree.leaves(host)[0].shape[0]
    return [jax.tree.map(lambda leaf, n=n: convert(leaf[n]), host) for n in range(size)]


def read_actions(
    parse: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
) -> tuple[list[Any] | None, list[str]]:
    """Parse the actions of all rows.

    Returns:
        One action per row, with another row's action where parsing failed (None if it failed for all), and
        one error message per row, which is empty where parsing succeeded.
    """
    actions: list[Any] = []
    errors: list[str] = []
    for row in arguments:
        try:
            actions.append(parse(*row))
            errors.append("")
        except ValueError as error:
            actions.append(None)
            errors.append(str(error))
    filler = next((action for action in actions if action is not None), None)
    if filler is None:
        return None, errors
    return [filler if action is None else action for action in actions], errors
