"""Attention within segments: the native kernel and its gradient compared with XLA, for many kinds of rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.lm.attention import RotaryAngles, packed_attention, rotary_angles
from phalanx.native import Backend, is_native_available, native_unavailable_reason

pytestmark = pytest.mark.slow

if not is_native_available():
    pytest.skip(f"native backend: {native_unavailable_reason()}", allow_module_level=True)


@functools.partial(jax.jit, static_argnums=4)
def attend(
    qkv: jax.Array, angles: RotaryAngles, segments: jax.Array, cotangent: jax.Array, backend: Backend
) -> tuple[jax.Array, jax.Array]:
    """Return the attention output and the gradient of the inputs."""
    attended, pullback = jax.vjp(lambda one: packed_attention(one, angles, segments, backend), qkv)
    return attended, pullback(cotangent)[0]


def random_inputs(rows: int, tokens: int, heads: int, size: int) -> tuple[jax.Array, RotaryAngles, jax.Array]:
    """Return queries, keys and values that are large enough for sharp weights, angles, and a cotangent."""
    random = np.random.default_rng(tokens)
    qkv = 2 * random.standard_normal((rows, tokens, 3, heads, size), np.float32)
    positions = np.tile(np.arange(tokens, dtype=np.int32), (rows, 1))
    cotangent = random.standard_normal((rows, tokens, heads, size), np.float32)
    return jax.device_put(qkv), compute_angles(positions, size), jax.device_put(cotangent)


@functools.partial(jax.jit, static_argnums=1)
def compute_angles(positions: jax.Array, size: int) -> RotaryAngles:
    return rotary_angles(positions, size, 100.0)


def segments_of(kind: str, rows: int, tokens: int) -> jax.Array:
    rng = np.random.default_rng(tokens)
    if kind == "packed, then padding":
        ids = np.sort(rng.integers(1, 5, (rows, tokens)))
        ids[:, tokens - tokens // 5 :] = 0
    elif kind == "padding first":
        ids = np.ones((rows, tokens), int)
        ids[:, : tokens // 3] = 0
    else:
        ids = {
            "one segment": np.ones((rows, tokens), int),
            "only padding": np.zeros((rows, tokens), int),
            "interleaved segments": rng.integers(-2, 3, (rows, tokens)),
        }[kind]
    return jax.device_put(ids.astype(np.int32))


KINDS = ["one segment", "packed, then padding", "padding first", "only padding", "interleaved segments"]
SHAPES = [(2, 203, 2, 8), (1, 1, 1, 2), (3, 97, 2, 6), (1, 49, 3, 40), (0, 7, 2, 4), (2, 0, 2, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_native_attention_and_gradient_match_xla(shape: tuple[int, int, int, int]) -> None:
    qkv, angles, cotangent = random_inputs(*shape)
    for kind in KINDS:
        segments = segments_of(kind, *shape[:2])
        native = attend(qkv, angles, segments, cotangent, "native")
        xla = attend(qkv, angles, segments, cotangent, "xla")
        for result, expected in zip(*map(jax.device_get, (native, xla)), strict=True):
            assert result.shape == expected.shape
            scale = max(float(np.abs(expected).max(initial=0)), 1.0)
            np.testing.assert_allclose(result / scale, expected / scale, atol=1e-5, err_msg=kind)


def test_segments_do_not_affect_each_other_even_with_nan() -> None:
    qkv, angles, cotangent = random_inputs(2, 203, 2, 8)
    segments = segments_of("packed, then padding", 2, 203)
    other = np.asarray(segments) == 2
    before = attend(qkv, angles, segments, cotangent, "native")
    broken = jax.device_put(np.where(other[..., None, None, None], np.float32(np.nan), qkv))
    after = attend(broken, angles, segments, cotangent, "native")
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[~other], np.asarray(two)[~other])
    assert np.isnan(np.asarray(after[0])[other]).all()


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    import phalanx._native as kernels

    qkv, angles, cotangent = random_inputs(2, 203, 2, 8)
    inputs = qkv, angles, segments_of("one segment", 2, 203), cotangent
    parallel = jax.block_until_ready(attend(*inputs, "native"))
    try:
        kernels.set_num_devices(10_000)
        single = jax.block_until_ready(attend(*inputs, "native"))
    finally:
        kernels.set_num_devices(len(jax.local_devices(backend="cpu")))
    jax.tree.map(np.testing.assert_array_equal, parallel, single)


def test_very_large_scores_select_the_maximum() -> None:
    qkv, angles, _ = random_inputs(1, 49, 3, 40)
    segments = segments_of("one segment", 1, 49)
    scaled = np.array(qkv)
    scaled[:, :, :2] *= 1e3
    attend_to = jax.jit(packed_attention, static_argnums=3)
    native, xla = (np.asarray(attend_to(scaled, angles, segments, backend)) for backend in ("native", "xla"))
    assert np.isfinite(native).all()
    np.testing.assert_allclose(native, xla, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_computed_in_float32(dtype: jnp.dtype) -> None:
    qkv, angles, cotangent = random_inputs(1, 49, 3, 40)
    segments = segments_of("packed, then padding", 1, 49)
    low_precision, low_precision_cotangent = (np.asarray(array).astype(dtype) for array in (qkv, cotangent))
    result = attend(low_precision, angles, segments, low_precision_cotangent, "native")
    exact = attend(
        low_precision.astype("f4"), angles, segments, low_precision_cotangent.astype("f4"), "native"
    )
    for one, two in zip(result, exact, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, np.asarray(two).astype(dtype))


def test_single_row_and_vmap_give_the_same_attention() -> None:
    qkv, angles, _ = random_inputs(3, 97, 2, 6)
    segments = segments_of("packed, then padding", 3, 97)

    @jax.jit
    def gradient(qkv: jax.Array, angles: RotaryAngles, segments: jax.Array) -> jax.Array:
        return jax.grad(lambda one: jnp.sum(packed_attention(one, angles, segments, "native") ** 2))(qkv)

    batched = np.asarray(gradient(qkv, angles, segments))
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(qkv, angles, segments), batched)
    single = gradient(*jax.tree.map(lambda leaf: np.asarray(leaf)[1], (qkv, angles, segments)))
    np.testing.assert_array_equal(single, batched[1])
