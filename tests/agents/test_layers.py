"""Layers against their definitions: JAX's own convolution, a plain loop of attention, means by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.agents.networks import layers
from phalanx.agents.networks.layers import Attention, Convolution, Dense, LayerNorm, pooled

KEY = jax.random.key(0)


def some(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def jaxs_convolution(layer: Convolution, x: jax.Array) -> jax.Array:
    kernel = layer.weight.reshape(3, 3, *layer.weight.shape[1:])
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=dimensions)[0]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 2), (6, 6), (7, 6), (9, 4)])
def test_a_convolution_is_jaxs_own_on_either_side_of_the_small_grids_limit(shape: tuple[int, int]) -> None:
    layer, x = Convolution(3, 4, key=KEY), some(*shape, 3)
    np.testing.assert_allclose(layer(x), jaxs_convolution(layer, x), atol=1e-5)


@pytest.mark.parametrize("limit", [0, 1000])
def test_both_ways_to_convolve_are_equal(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_SMALL_GRID", limit)
    layer, x = Convolution(3, 4, key=KEY), some(5, 4, 3)
    np.testing.assert_allclose(layer(x), jaxs_convolution(layer, x), atol=1e-5)


def test_a_convolution_sees_the_eight_cells_around_and_no_further() -> None:
    layer = Convolution(1, 1, key=KEY)
    touched = np.asarray(layer(jnp.zeros((5, 5, 1)).at[2, 2].set(1.0)))[..., 0] != 0
    assert touched.tolist() == [
        [False, False, False, False, False],
        [False, True, True, True, False],
        [False, True, True, True, False],
        [False, True, True, True, False],
        [False, False, False, False, False],
    ]


def test_a_dense_layer_is_a_product_and_a_bias_whatever_the_axes_before() -> None:
    layer = Dense(3, 2, key=KEY)
    layer = jax.tree.map(lambda leaf: leaf + 1.0, layer)
    x = some(4, 5, 3)
    expected = np.asarray(x) @ np.asarray(layer.weight) + np.asarray(layer.bias)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)
    np.testing.assert_allclose(layer(x[0, 0]), expected[0, 0], rtol=1e-5)


def test_layer_norm_gives_mean_zero_and_deviation_one_then_scale_and_shift() -> None:
    out = np.asarray(LayerNorm(8)(5 + 3 * some(4, 8)))
    np.testing.assert_allclose(out.mean(axis=-1), np.zeros(4), atol=1e-6)
    np.testing.assert_allclose(out.std(axis=-1), np.ones(4), atol=1e-4)
    learned = jax.tree.map(lambda leaf: leaf + 1.0, LayerNorm(8))
    np.testing.assert_allclose(learned(5 + 3 * some(4, 8)), 2 * out + 1, atol=1e-5)


def test_attention_is_the_softmax_of_scaled_products_head_by_head() -> None:
    layer, items = Attention(4, 2, key=KEY), some(3, 4)
    seen = np.array([[True, True, False], [False, True, False], [True, True, True]])
    inward = np.asarray(layer.qkv(items)).reshape(3, 3, 2, 2)
    gathered = np.zeros((3, 2, 2))
    for item in range(3):
        for head in range(2):
            query, keys, values = inward[item, 0, head], inward[:, 1, head], inward[:, 2, head]
            weights = np.exp(keys @ query / np.sqrt(2)) * seen[item]
            gathered[item, head] = weights / weights.sum() @ values
    expected = gathered.reshape(3, 4) @ np.asarray(layer.out.weight)
    np.testing.assert_allclose(layer(items, jnp.asarray(seen)), expected, atol=1e-5)


def test_pooling_takes_mean_and_greatest_of_the_cells_inside_alone() -> None:
    features = jnp.array([[[1.0, -5.0], [3.0, -1.0]], [[100.0, 100.0], [50.0, 50.0]]])
    inside = jnp.array([[True, True], [False, False]])
    assert pooled(features, inside).tolist() == [2.0, -3.0, 3.0, -1.0]


def test_pooling_over_no_cells_gives_zeros_and_a_gradient_of_zero() -> None:
    nowhere = jnp.zeros((2, 2), bool)
    assert pooled(some(2, 2, 3), nowhere).tolist() == [0.0] * 6
    gradient = jax.grad(lambda x: pooled(x, nowhere).sum())(some(2, 2, 3))
    assert not np.asarray(gradient).any()
