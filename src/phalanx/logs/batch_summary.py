"""A batch's statistics and a few of its episodes, computed on the device in one compiled call.

Which keys of `batch_data` are wanted is decided in `batch_data`; handlers are not known here.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PyTree, UInt8, UInt32

from phalanx.logs.host_copy import pack_bytes, unpack_bytes

Summary = dict[str, Any]


def summarise_batch(
    inputs: dict[str, Any], update_step: int, num_environments: int, num_samples: int
) -> Summary:
    """The summary on the host: one compiled call, one transfer.

    `inputs` has, each by name and each possibly empty: `statistics` and `rates` (a value for each
    environment, to be reduced), `scalars` (passed on), `episodes` and `states` (pytrees with a leading axis
    of environments, of which the sampled rows come back), and `finished` (None, or which environments count).
    """
    step = np.uint32(update_step & 0xFFFFFFFF)
    leaves, structure = jax.tree.flatten(inputs)
    specs = tuple(jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf)) for leaf in leaves)
    like = _layout(structure, specs, num_environments, num_samples)
    buffer = np.asarray(jax.device_get(_packed_summary(inputs, step, num_environments, num_samples)))
    return unpack_bytes(buffer, like)


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if isinstance(leaf, jax.Array | np.ndarray | np.generic) else jnp.result_type(leaf)


@functools.lru_cache(maxsize=64)
def _layout(structure: Any, specs: tuple[jax.ShapeDtypeStruct, ...], environments: int, samples: int) -> Any:
    """Shapes and types of a summary; asked for at every logging update, so it is traced once."""
    inputs = jax.tree.unflatten(structure, specs)
    step = jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.eval_shape(lambda i, s: _summary(i, s, environments, samples), inputs, step)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _packed_summary(
    inputs: dict[str, Any], step: UInt32[Array, ""], environments: int, samples: int
) -> UInt8[Array, " bytes"]:
    return pack_bytes(_summary(inputs, step, environments, samples))


def _summary(inputs: dict[str, Any], step: UInt32[Array, ""], environments: int, samples: int) -> Summary:
    finished = inputs["finished"]
    metrics: dict[str, Any] = {}
    for prefix, values in inputs["statistics"].items():
        metrics |= {f"{prefix}_{name}": value for name, value in _statistics(values, finished).items()}
    for name, values in inputs["rates"].items():
        metrics[name] = jnp.mean(values, where=finished)
    count = jnp.int32(environments) if finished is None else jnp.sum(finished, dtype=jnp.int32)
    summary = {"metrics": metrics, "scalars": inputs["scalars"], "count": count}
    if samples:
        rows = _sampled_rows(step, environments, samples, finished)
        taken = jax.tree.map(lambda leaf: _plain(leaf[rows]), (inputs["episodes"], inputs["states"]))
        summary |= {"rows": rows, "episodes": taken[0], "states": taken[1]}
    return summary


def _statistics(
    values: Num[Array, " batch"] | Bool[Array, " batch"], finished: Bool[Array, " batch"] | None
) -> dict[str, Array]:
    numbers = values.astype(jnp.float32)
    return {
        "mean": jnp.mean(numbers, where=finished),
        "std": jnp.std(numbers, where=finished),
        "max": jnp.max(numbers, where=finished, initial=-jnp.inf),
        "min": jnp.min(numbers, where=finished, initial=jnp.inf),
    }


def _sampled_rows(
    step: UInt32[Array, ""], environments: int, samples: int, finished: Bool[Array, " batch"] | None
) -> Int[Array, " samples"]:
    """Which environments are sampled: drawn by the update step alone, so that a rerun shows the same ones."""
    key = jax.random.PRNGKey(step)
    if finished is None:
        if samples >= environments:
            return jnp.arange(environments)
        return jax.random.choice(key, environments, shape=(samples,), replace=False)
    order = jax.random.permutation(key, environments)
    finished_first = jnp.argsort(~finished[order], stable=True)
    return order[finished_first][:samples]


def _plain(leaf: Array) -> Array:
    """Random keys are an array type of their own, which has no bytes to copy; their data has."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def row_of(states: PyTree, place: int) -> PyTree:
    """One of the rows that came back, as a state whose arrays are JAX's again, on the host's CPU."""
    return jax.device_put(jax.tree.map(lambda leaf: leaf[place], states), _host())


@functools.cache
def _host() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        # JAX_PLATFORMS can leave the CPU out; the default device then has to serve.
        return None
