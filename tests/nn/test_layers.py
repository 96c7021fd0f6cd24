"""Layers against their definitions: JAX's own convolution, a plain loop of attention, means by hand."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from phalanx.nn import layers
from phalanx.nn.layers import Attention, Conv3x3, Dense, LayerNorm, pool

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)


def some(*shape: int, seed: int = 0) -> jax.Array:
    return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def once(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives, compiled in one piece: operation by operation each would be a program."""
    return jax.jit(lambda *given: function(*given))(*given)


def convolution(inputs: int, outputs: int) -> Conv3x3:
    return once(lambda key: Conv3x3(inputs, outputs, key=key), KEY)


def jaxs_convolution(layer: Conv3x3, x: jax.Array) -> jax.Array:
    kernel = layer.weight.reshape(3, 3, *layer.weight.shape[1:])
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=dimensions)[0]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 2), (6, 6), (7, 6), (9, 4)])
def test_convolution_equals_jax_for_small_and_large_grids(shape: tuple[int, int]) -> None:
    layer, x = convolution(3, 4), some(*shape, 3)
    found, expected = once(lambda layer, x: (layer(x), jaxs_convolution(layer, x)), layer, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("limit", [0, 1000])
def test_both_convolution_methods_are_equal(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_SMALL_GRID", limit)
    layer, x = convolution(3, 4), some(5, 4, 3)
    found, expected = once(lambda layer, x: (layer(x), jaxs_convolution(layer, x)), layer, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_convolution_depends_only_on_neighboring_cells() -> None:
    x = np.zeros((5, 5, 1), np.float32)
    x[2, 2] = 1.0
    touched = np.asarray(once(lambda layer, x: layer(x), convolution(1, 1), x))[..., 0] != 0
    assert touched.tolist() == [
        [False, False, False, False, False],
        [False, True, True, True, False],
        [False, True, True, True, False],
        [False, True, True, True, False],
        [False, False, False, False, False],
    ]


def test_dense_layer_accepts_any_leading_axes() -> None:
    layer = once(lambda key: jax.tree.map(lambda leaf: leaf + 1.0, Dense(3, 2, key=key)), KEY)
    x = some(4, 5, 3)
    expected = np.asarray(x) @ np.asarray(layer.weight) + np.asarray(layer.bias)
    whole, alone = once(lambda layer, x: (layer(x), layer(x[0, 0])), layer, x)
    np.testing.assert_allclose(whole, expected, rtol=1e-5)
    np.testing.assert_allclose(alone, expected[0, 0], rtol=1e-5)


def test_layer_norm_gives_mean_zero_and_deviation_one_then_scale_and_shift() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        layer = LayerNorm(8)
        return layer(x), jax.tree.map(lambda leaf: leaf + 1.0, layer)(x)

    out, learned = map(np.asarray, once(both, 5 + 3 * np.asarray(some(4, 8))))
    np.testing.assert_allclose(out.mean(axis=-1), np.zeros(4), atol=1e-6)
    np.testing.assert_allclose(out.std(axis=-1), np.ones(4), atol=1e-4)
    np.testing.assert_allclose(learned, 2 * out + 1, atol=1e-5)


def test_attention_is_the_softmax_of_scaled_products_head_by_head() -> None:
    layer, items = once(lambda key: Attention(4, 2, key=key), KEY), some(3, 4)
    seen = np.array([[True, True, False], [False, True, False], [True, True, True]])
    found, inward = once(lambda layer, x, seen: (layer(x, seen), layer.qkv(x)), layer, items, seen)
    inward = np.asarray(inward).reshape(3, 3, 2, 2)
    gathered = np.zeros((3, 2, 2))
    for item in range(3):
        for head in range(2):
            query, keys, values = inward[item, 0, head], inward[:, 1, head], inward[:, 2, head]
            weights = np.exp(keys @ query / np.sqrt(2)) * seen[item]
            gathered[item, head] = weights / weights.sum() @ values
    expected = gathered.reshape(3, 4) @ np.asarray(layer.out.weight)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pooling_uses_only_cells_inside() -> None:
    features = np.array([[[1, -5], [3, -1]], [[100, 100], [50, 50]]], np.float32)
    inside = np.array([[True, True], [False, False]])
    assert once(pool, features, inside).tolist() == [2.0, -3.0, 3.0, -1.0]


def test_pooling_over_no_cells_gives_zeros_and_a_gradient_of_zero() -> None:
    nowhere = np.zeros((2, 2), bool)

    def summed(x: jax.Array, inside: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = pool(x, inside)
        return found.sum(), found

    gradient, found = once(jax.grad(summed, has_aux=True), some(2, 2, 3), nowhere)
    assert found.tolist() == [0.0] * 6
    assert not np.asarray(gradient).any()
