"""The native color-equivariant network matches the XLA implementation and its gradients."""

import copy
import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcObservation, DatasetConfig, ObservationConfig
from phalanx.arc.networks import ArcNetworkConfig
from phalanx.arc.networks.color_equivariant import ColorEquivariantNetwork
from phalanx.native import is_native_available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_native_available(), reason="the native extension is not available"),
]


def create_networks(
    rows: int, columns: int, width: int, depth: int
) -> tuple[ColorEquivariantNetwork, ColorEquivariantNetwork]:
    """Create a native and an XLA network with the same weights."""
    arc = ArcConfig(
        dataset=DatasetConfig(max_grid_height=rows, max_grid_width=columns),
        observation=ObservationConfig(input_grid=True),
    )
    config = ArcNetworkConfig(kind="color_equivariant", hidden_dim=width, num_layers=depth)
    network = eqx.filter_jit(ColorEquivariantNetwork)(config, arc, key=jax.random.key(0))
    colors = np.random.default_rng(1).normal(0, 0.1, network.colors.shape).astype(np.float32)
    network = eqx.tree_at(lambda n: n.colors, network, jax.device_put(colors))
    assert network.backend == "native"
    xla = copy.copy(network)
    object.__setattr__(xla, "backend", "xla")
    return network, xla


def create_observations(count: int, rows: int, columns: int) -> ArcObservation:
    """Create grids of all sizes up to the canvas, with few colors so that maxima are tied."""
    random = np.random.default_rng(count)
    grids = random.integers(0, 4, (count, 2, rows, columns)).astype(np.int8)
    heights, widths = (
        random.integers(0, rows + 1, (count, 1, 1, 1)),
        random.integers(1, columns + 1, (count, 1, 1, 1)),
    )
    inside = (np.arange(rows)[:, None] < heights) & (np.arange(columns) < widths)
    grids = jax.device_put(np.where(inside, grids, -1))
    return ArcObservation(working_grid=grids[:, 0], input_grid=grids[:, 1])


def loss(network: ColorEquivariantNetwork, observation: ArcObservation) -> jax.Array:
    logits, values = jax.vmap(network.logits)(observation)
    cells = jnp.where(jnp.isfinite(logits.selections[0].cells), logits.selections[0].cells, 0.0)
    return jnp.mean(jnp.square(values) + jnp.sum(jnp.sin(cells), axis=(1, 2, 3)))


def batch_loss(network: ColorEquivariantNetwork, observation: ArcObservation) -> jax.Array:
    distribution, values = network.batch(observation)
    return jnp.mean(jnp.square(values) + jax.vmap(lambda one: one.entropy())(distribution))


def example_loss(network: ColorEquivariantNetwork, observation: ArcObservation) -> jax.Array:
    distribution, value = network(observation)
    return jnp.square(value) + distribution.entropy()


def leaves(tree: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def assert_close(actual: object, expected: object) -> None:
    for actual_leaf, expected_leaf in zip(leaves(actual), leaves(expected), strict=True):
        np.testing.assert_allclose(
            actual_leaf, expected_leaf, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected_leaf).max())
        )


@pytest.mark.parametrize(
    ("rows", "columns", "width", "depth", "count"),
    [(4, 4, 12, 3, 19), (1, 1, 8, 1, 1), (3, 5, 16, 2, 8), (5, 2, 32, 1, 9), (2, 3, 24, 2, 3)],
)
def test_values_and_gradients_match_xla(rows: int, columns: int, width: int, depth: int, count: int) -> None:
    native, xla = create_networks(rows, columns, width, depth)
    observation = create_observations(count, rows, columns)
    value_and_gradient = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    assert_close(value_and_gradient(native, observation), value_and_gradient(xla, observation))


def test_vmap_over_weights_matches_single_networks() -> None:
    native, _ = create_networks(3, 3, 8, 2)
    observation = create_observations(10, 3, 3)
    gradient = eqx.filter_jit(eqx.filter_grad(loss))
    arrays, structure = eqx.partition(native, eqx.is_array)
    stacked = jax.jit(lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf * 1.5]), tree))(arrays)

    def single_gradient(arrays: ColorEquivariantNetwork) -> ColorEquivariantNetwork:
        return eqx.filter(eqx.filter_grad(loss)(eqx.combine(arrays, structure), observation), eqx.is_array)

    batched = jax.device_get(jax.jit(jax.vmap(single_gradient))(stacked))
    for number in range(2):
        single = jax.tree.map(lambda leaf, n=number: jax.device_put(np.asarray(leaf)[n]), stacked)
        expected = gradient(eqx.combine(single, structure), observation)
        assert_close(jax.tree.map(lambda leaf, n=number: leaf[n], batched), expected)


def test_nested_batch_matches_flat_batch() -> None:
    native, _ = create_networks(3, 3, 8, 1)
    observation = create_observations(12, 3, 3)
    nested_observation = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(3, 4, *leaf.shape[1:]), observation
    )

    def nested_loss(network: ColorEquivariantNetwork, observation: ArcObservation) -> jax.Array:
        return jnp.mean(jax.vmap(lambda rows: loss(network, rows))(observation))

    gradient = eqx.filter_jit(eqx.filter_grad(nested_loss))(native, nested_observation)
    assert_close(gradient, eqx.filter_jit(eqx.filter_grad(loss))(native, observation))


def test_vmap_of_gradient_gives_per_example_gradients() -> None:
    native, xla = create_networks(3, 4, 8, 2)
    observation = create_observations(5, 3, 4)

    @eqx.filter_jit
    def per_example(network: ColorEquivariantNetwork, observation: ArcObservation) -> ColorEquivariantNetwork:
        return eqx.filter_vmap(eqx.filter_grad(example_loss), in_axes=(None, 0))(network, observation)

    gradients = per_example(native, observation)
    assert_close(gradients, per_example(xla, observation))
    kernels = np.asarray(gradients.blocks[0].convolution.weight)
    assert not np.allclose(kernels[0], kernels[1])


def test_batch_gradient_matches_xla() -> None:
    native, xla = create_networks(3, 4, 8, 2)
    observation = create_observations(9, 3, 4)
    gradient = eqx.filter_jit(eqx.filter_grad(batch_loss))
    assert_close(gradient(native, observation), gradient(xla, observation))


def digest() -> str:
    gradient = eqx.filter_jit(eqx.filter_grad(batch_loss))(
        create_networks(4, 4, 12, 2)[0], create_observations(150, 4, 4)
    )
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves(gradient.blocks))).hexdigest()


def test_gradients_do_not_depend_on_number_of_threads() -> None:
    import phalanx._native as kernels

    parallel = digest()
    try:
        kernels.set_num_devices(10_000)  # each device uses an equal part of the threads, here a single one
        single_thread = digest()
    finally:
        kernels.set_num_devices(len(jax.local_devices(backend="cpu")))
    assert parallel == single_thread
