"""Writing by the native kernel beside XLA's loop: the same tokens by the same key, the same probabilities.

And calls with anything at all, which `.ci/sanitize` runs too: an answer or an error in words.
"""

import functools
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from phalanx.core.backends import register_ffi_targets
from phalanx.lm import LanguageModel, LanguageModelConfig
from phalanx.lm.generation import GenerationArrays, GenerationRequest, _generate
from phalanx.native import is_native_available, native_unavailable_reason

if not is_native_available():
    pytest.skip(f"native engine: {native_unavailable_reason()}", allow_module_level=True)

SMALL: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "num_layers": 2, "num_heads": 2, "d_ff": 10}
"""Heads of 6 numbers: no size is that of a vector."""
END, NEW = 3, 20


@functools.cache
def model_of(**sizes: Any) -> LanguageModel:
    """With biases, and with logits that differ."""

    @eqx.filter_jit
    def make(key: jax.Array) -> LanguageModel:
        model = LanguageModel(LanguageModelConfig(**{**SMALL, **sizes}), key=key)
        moved = jax.tree.map(lambda leaf: leaf + 0.1, model.blocks), 9 * model.head
        return eqx.tree_at(lambda one: (one.blocks, one.head), model, moved)

    return make(jax.random.key(4))


def request_of(batch: int, padded: int, **changes: Any) -> GenerationRequest:
    """Prompts of many lengths, every third the same."""
    rng = np.random.default_rng(batch)
    starts, prompts = rng.integers(0, padded, batch), rng.integers(0, SMALL["vocab_size"], (batch, padded))
    starts[1::3], prompts[1::3] = starts[0], prompts[0]
    usual = {
        "prompt_ids": jax.device_put(prompts.astype(np.int32)),
        "prompt_start": jax.device_put(starts.astype(np.int32)),
        "temperature": jnp.float32(1),
        "top_p": jnp.float32(1),
        "key": jax.random.key(5),
        "stop_token_id": jnp.int32(END),
        "choices": None,
    }
    return GenerationRequest(**{**usual, **changes})


def texts(batch: int) -> jax.Array:
    """Texts of 6 to 13 tokens for each row; all of a row begin alike."""
    table = np.random.default_rng(0).integers(4, SMALL["vocab_size"], (batch, 32, NEW))
    table[:, :, 0] = table[:, :1, 0]
    for text in range(32):
        table[:, text, 5 + text % 8] = END
        table[:, text, 6 + text % 8 :] = -1
    return jax.device_put(table.astype(np.int32))


def assert_alike(model: LanguageModel, request: GenerationRequest, top_k: int = 0) -> GenerationArrays:
    nucleus = float(request.top_p) < 1
    native, xla = (
        GenerationArrays(*map(np.asarray, _generate(model, request, NEW, top_k, nucleus, which)))
        for which in ("native", "xla")
    )
    np.testing.assert_array_equal(native.lengths, xla.lengths)
    np.testing.assert_array_equal(native.finished, xla.finished)
    looked_at = np.arange(NEW) < xla.lengths[:, None]
    np.testing.assert_array_equal(native.completion_ids[looked_at], xla.completion_ids[looked_at])
    np.testing.assert_allclose(native.logps[looked_at], xla.logps[looked_at], atol=1e-5)
    return native


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"d_model": 80, "num_heads": 1, "d_ff": 33},
        {"vocab_size": 1030, "d_model": 4, "num_heads": 2, "num_layers": 1},
    ],
)
def test_the_native_engine_writes_what_xla_writes(sizes: dict[str, int]) -> None:
    model = model_of(**sizes)
    # More rows than two threads have places for, prompts longer than are read at once, one row alone.
    for batch, padded in ((90, 32), (7, 64), (1, 1)):
        written = assert_alike(model, request_of(batch, padded))
    assert_alike(model, request_of(7, 64, temperature=jnp.float32(0), stop_token_id=jnp.int32(-1)))
    assert written.lengths.shape == (1,)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.5), (50, 0.999), (1, 1.0)])
def test_the_native_engine_draws_from_the_same_tokens(top_k: int, top_p: float) -> None:
    assert_alike(
        model_of(), request_of(40, 32, temperature=jnp.float32(0.7), top_p=jnp.float32(top_p)), top_k
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_native_engine_writes_one_of_the_choices(temperature: float) -> None:
    request = request_of(40, 32, temperature=jnp.float32(temperature), choices=texts(40))
    written = assert_alike(model_of(), request)
    assert written.finished.all() and written.lengths.max() > written.lengths.min()


def test_what_a_row_writes_does_not_depend_on_other_rows_or_threads_by_a_bit() -> None:
    import phalanx._native as kernels

    model, request = model_of(), request_of(90, 32, temperature=jnp.float32(0))
    many = _generate(model, request, NEW, 0, False, "native")
    try:
        kernels.share_threads(10_000)
        one = jax.block_until_ready(_generate(model, request, NEW, 0, False, "native"))
    finally:
        kernels.share_threads(len(jax.local_devices(backend="cpu")))
    jax.tree.map(np.testing.assert_array_equal, many, one)
    rows = jax.device_get((request.prompt_ids, request.prompt_start))
    few = request._replace(
        **dict(zip(("prompt_ids", "prompt_start"), (part[40:47] for part in rows), strict=True))
    )
    alone = _generate(model, few, NEW, 0, False, "native")
    jax.tree.map(
        lambda all_, some: np.testing.assert_array_equal(all_[40:47], some), jax.device_get(many), alone
    )


def test_a_model_that_computes_in_bfloat16_writes_by_xla() -> None:
    model, request = model_of(dtype="bfloat16"), request_of(3, 32)
    asked, xla = (_generate(model, request, NEW, 0, False, which) for which in ("native", "xla"))
    jax.tree.map(np.testing.assert_array_equal, asked, xla)


RUNS = settings(
    max_examples=int(os.environ.get("PHALANX_FUZZ", "50")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
WHOLE = {"starts", "prompts", "stop_token", "choices"}


def shapes_of(
    vocabulary: int,
    width: int,
    depth: int,
    hidden: int,
    half: int,
    places: int,
    rows: int,
    padded: int,
    new: int,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Of what the call is given, and of what it makes."""
    given_ = {
        "embedding": (vocabulary, width),
        "head": (vocabulary, width),
        "norm": (width,),
        "first_norm": (depth, width),
        "second_norm": (depth, width),
        "qkv": (depth, width, 3 * width),
        "qkv_bias": (depth, 3 * width),
        "out": (depth, width, width),
        "out_bias": (depth, width),
        "gate": (depth, width, 2 * hidden),
        "gate_bias": (depth, 2 * hidden),
        "down": (depth, hidden, width),
        "down_bias": (depth, width),
        "cosine": (places, half),
        "sine": (places, half),
        "prompts": (rows, padded),
        "starts": (rows,),
        "uniforms": (rows, new),
        "temperature": (),
        "top_p": (),
        "stop_token": (),
        "choices": (rows, 2, new),
    }
    made = {"tokens": (rows, new), "log_probs": (rows, new), "lengths": (rows,), "ended": (rows,)}
    return given_, made


def call(operands: list[np.ndarray], made: list[tuple[int, ...]], **attributes: Any) -> list[np.ndarray]:
    register_ffi_targets()
    kinds = (np.int32, np.float32, np.int32, bool)
    results = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(made, kinds, strict=True)]
    options = {"heads": np.int64(2), "top_k": np.int64(0), "epsilon": np.float32(1e-6), **attributes}
    return [np.asarray(one) for one in jax.ffi.ffi_call("phalanx_lm_write", results)(*operands, **options)]


RIGHT = shapes_of(5, 8, 2, 6, 2, 32, 2, 3, 4)


@pytest.mark.parametrize("name", [*RIGHT[0], *RIGHT[1]])
def test_the_writing_kernel_refuses_sizes_that_do_not_go_together(name: str) -> None:
    right = {**RIGHT[0], **RIGHT[1]}[name]
    wrong = {
        (2,),
        right[:-1],
        (*right, 1),
        (*right[:-1], *(size + 1 for size in right[-1:])),
        (0, *right[1:]),
    }
    # Prompts may be of any width that there are places for.
    for shape in wrong - {right, (2, 4) if name == "prompts" else right}:
        given_, made = ({**shapes, **({name: shape} if name in shapes else {})} for shapes in RIGHT)
        operands = [np.zeros(one, np.int32 if at in WHOLE else np.float32) for at, one in given_.items()]
        with pytest.raises(jax.errors.JaxRuntimeError, match="phalanx_lm_write"):
            call(operands, list(made.values()))


@pytest.mark.parametrize(
    "attributes", [{"heads": np.int64(0)}, {"heads": np.int64(-2)}, {"heads": np.int64(3)}]
)
def test_the_writing_kernel_refuses_heads_that_do_not_go_together_with_its_width(attributes: dict) -> None:
    operands = [np.zeros(one, np.int32 if at in WHOLE else np.float32) for at, one in RIGHT[0].items()]
    with pytest.raises(jax.errors.JaxRuntimeError, match="multiple of twice the heads"):
        call(operands, list(RIGHT[1].values()), **attributes)
    with pytest.raises(jax.errors.JaxRuntimeError, match="top_k must not be negative"):
        call(operands, list(RIGHT[1].values()), top_k=np.int64(-1))


@RUNS
@given(st.data())
def test_the_writing_kernel_survives_any_content_of_its_buffers(data: st.DataObject) -> None:
    heads, half, rows = (
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(0, 70)),
    )
    padded, new = data.draw(st.sampled_from([1, 3, 50])), data.draw(st.integers(0, 5))
    vocabulary, hidden = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    places = -(-(padded + new) // 16) * 16
    given_, made = shapes_of(vocabulary, 2 * half * heads, 1, hidden, half, places, rows, padded, new)
    numbers = st.sampled_from([0.0, 1.0, -2.5, 1e30, -1e30, float("inf"), float("-inf"), float("nan")])
    whole = st.integers(0, vocabulary - 1)
    if data.draw(st.booleans()):
        whole |= st.integers(-(2**31), 2**31 - 1)
    operands = []
    for name, shape in given_.items():
        drawn = data.draw(st.lists(whole if name in WHOLE else numbers, min_size=1, max_size=9))
        if name == "starts" and data.draw(st.booleans()):
            drawn = [0]
        operands.append(np.resize(np.array(drawn, np.int32 if name in WHOLE else np.float32), shape))
    top_k = np.int64(data.draw(st.integers(0, 25) | st.just(2**62)))
    try:
        tokens, _, lengths, _ = call(operands, list(made.values()), heads=np.int64(heads), top_k=top_k)
    except jax.errors.JaxRuntimeError as error:
        words = str(error)
    else:
        words = "each prompt must have a token"
        assert ((tokens >= 0) & (tokens < vocabulary)).all() and (lengths <= new).all()
    assert "each prompt must have a token" in words
