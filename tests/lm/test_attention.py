"""Attention within segments: the native kernel and its gradient beside XLA's, whatever rows look like."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.lm.attention import RotaryAngles, packed_attention, rotary_angles
from phalanx.native import Backend, is_native_available, native_unavailable_reason

pytestmark = pytest.mark.slow

if not is_native_available():
    pytest.skip(f"native engine: {native_unavailable_reason()}", allow_module_level=True)


@functools.partial(jax.jit, static_argnums=4)
def attend(
    qkv: jax.Array, angles: RotaryAngles, segments: jax.Array, cotangent: jax.Array, which: Backend
) -> tuple[jax.Array, jax.Array]:
    """What is attended to, and the gradient."""
    attended, pull = jax.vjp(lambda one: packed_attention(one, angles, segments, which), qkv)
    return attended, pull(cotangent)[0]


def drawn(rows: int, tokens: int, heads: int, size: int) -> tuple[jax.Array, RotaryAngles, jax.Array]:
    """Queries, keys and values large enough for sharp weights; angles; a cotangent."""
    random = np.random.default_rng(tokens)
    qkv = 2 * random.standard_normal((rows, tokens, 3, heads, size), np.float32)
    places = np.tile(np.arange(tokens, dtype=np.int32), (rows, 1))
    cotangent = random.standard_normal((rows, tokens, heads, size), np.float32)
    return jax.device_put(qkv), turned(places, size), jax.device_put(cotangent)


@functools.partial(jax.jit, static_argnums=1)
def turned(places: jax.Array, size: int) -> RotaryAngles:
    return rotary_angles(places, size, 100.0)


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
            "padding alone": np.zeros((rows, tokens), int),
            "segments in pieces": rng.integers(-2, 3, (rows, tokens)),
        }[kind]
    return jax.device_put(ids.astype(np.int32))


KINDS = ["one segment", "packed, then padding", "padding first", "padding alone", "segments in pieces"]
SHAPES = [(2, 203, 2, 8), (1, 1, 1, 2), (3, 97, 2, 6), (1, 49, 3, 40), (0, 7, 2, 4), (2, 0, 2, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_native_attention_and_gradient_match_xla(shape: tuple[int, int, int, int]) -> None:
    qkv, angles, cotangent = drawn(*shape)
    for kind in KINDS:
        segments = segments_of(kind, *shape[:2])
        native = attend(qkv, angles, segments, cotangent, "native")
        xla = attend(qkv, angles, segments, cotangent, "xla")
        for found, expected in zip(*map(jax.device_get, (native, xla)), strict=True):
            assert found.shape == expected.shape
            scale = max(float(np.abs(expected).max(initial=0)), 1.0)
            np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5, err_msg=kind)


def test_segments_do_not_affect_each_other_even_with_nan() -> None:
    qkv, angles, cotangent = drawn(2, 203, 2, 8)
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

    qkv, angles, cotangent = drawn(2, 203, 2, 8)
    given = qkv, angles, segments_of("one segment", 2, 203), cotangent
    many = jax.block_until_ready(attend(*given, "native"))
    try:
        kernels.set_num_devices(10_000)
        alone = jax.block_until_ready(attend(*given, "native"))
    finally:
        kernels.set_num_devices(len(jax.local_devices(backend="cpu")))
    jax.tree.map(np.testing.assert_array_equal, many, alone)


def test_very_large_scores_select_the_maximum() -> None:
    qkv, angles, _ = drawn(1, 49, 3, 40)
    segments = segments_of("one segment", 1, 49)
    far = np.array(qkv)
    far[:, :, :2] *= 1e3
    attend_to = jax.jit(packed_attention, static_argnums=3)
    native, xla = (np.asarray(attend_to(far, angles, segments, which)) for which in ("native", "xla"))
    assert np.isfinite(native).all()
    np.testing.assert_allclose(native, xla, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_bfloat16_is_computed_in_float32(dtype: jnp.dtype) -> None:
    qkv, angles, cotangent = drawn(1, 49, 3, 40)
    segments = segments_of("packed, then padding", 1, 49)
    short, short_cotangent = (np.asarray(array).astype(dtype) for array in (qkv, cotangent))
    found = attend(short, angles, segments, short_cotangent, "native")
    exact = attend(short.astype("f4"), angles, segments, short_cotangent.astype("f4"), "native")
    for one, two in zip(found, exact, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, np.asarray(two).astype(dtype))


def test_single_row_and_vmap_give_the_same_attention() -> None:
    qkv, angles, _ = drawn(3, 97, 2, 6)
    segments = segments_of("packed, then padding", 3, 97)

    @jax.jit
    def gradient(qkv: jax.Array, angles: RotaryAngles, segments: jax.Array) -> jax.Array:
        return jax.grad(lambda one: jnp.sum(packed_attention(one, angles, segments, "native") ** 2))(qkv)

    whole = np.asarray(gradient(qkv, angles, segments))
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(qkv, angles, segments), whole)
    alone = gradient(*jax.tree.map(lambda leaf: np.asarray(leaf)[1], (qkv, angles, segments)))
    np.testing.assert_array_equal(alone, whole[1])
