"""Generation with the native kernel: the same tokens and log-probabilities as XLA for the same key."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.lm import LanguageModel, LanguageModelConfig
from phalanx.lm.generation import GenerationArrays, GenerationInputs, _generate
from phalanx.native import is_native_available, native_unavailable_reason

pytestmark = pytest.mark.slow

if not is_native_available():
    pytest.skip(f"native backend: {native_unavailable_reason()}", allow_module_level=True)

SMALL: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "num_layers": 2, "num_heads": 2, "d_ff": 10}
"""The sizes are not multiples of the size of a vector register."""
END, NEW = 3, 20


@functools.cache
def model_of(**sizes: Any) -> LanguageModel:
    """Create a model with nonzero biases and distinct logits."""

    @eqx.filter_jit
    def make(key: jax.Array) -> LanguageModel:
        model = LanguageModel(LanguageModelConfig(**{**SMALL, **sizes}), key=key)
        changed = jax.tree.map(lambda leaf: leaf + 0.1, model.blocks), 9 * model.head
        return eqx.tree_at(lambda one: (one.blocks, one.head), model, changed)

    return make(jax.random.key(4))


def request_of(batch: int, padded: int, **changes: Any) -> GenerationInputs:
    """Create a request with prompts of various lengths; every third prompt is the same."""
    rng = np.random.default_rng(batch)
    starts, prompts = rng.integers(0, padded, batch), rng.integers(0, SMALL["vocab_size"], (batch, padded))
    starts[1::3], prompts[1::3] = starts[0], prompts[0]
    defaults = {
        "prompt_ids": jax.device_put(prompts.astype(np.int32)),
        "prompt_start": jax.device_put(starts.astype(np.int32)),
        "temperature": jnp.float32(1),
        "top_p": jnp.float32(1),
        "key": jax.random.key(5),
        "stop_token_id": jnp.int32(END),
        "choices": jnp.zeros((batch, 0, NEW), jnp.int32),
    }
    return GenerationInputs(**{**defaults, **changes})


def create_choices(batch: int) -> jax.Array:
    """Create 32 choices of 6 to 13 tokens for each row; the choices of a row begin with the same token."""
    table = np.random.default_rng(0).integers(4, SMALL["vocab_size"], (batch, 32, NEW))
    table[:, :, 0] = table[:, :1, 0]
    for text in range(32):
        table[:, text, 5 + text % 8] = END
        table[:, text, 6 + text % 8 :] = -1
    return jax.device_put(table.astype(np.int32))


def assert_backends_agree(
    model: LanguageModel, request: GenerationInputs, top_k: int = 0
) -> GenerationArrays:
    nucleus = float(request.top_p) < 1
    native, xla = (
        GenerationArrays(*map(np.asarray, _generate(model, request, NEW, top_k, nucleus, backend)))
        for backend in ("native", "xla")
    )
    np.testing.assert_array_equal(native.lengths, xla.lengths)
    np.testing.assert_array_equal(native.finished, xla.finished)
    is_generated = np.arange(NEW) < xla.lengths[:, None]
    np.testing.assert_array_equal(native.completion_ids[is_generated], xla.completion_ids[is_generated])
    np.testing.assert_allclose(native.logps[is_generated], xla.logps[is_generated], atol=1e-5)
    return native


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"d_model": 80, "num_heads": 1, "d_ff": 33},
        {"vocab_size": 1030, "d_model": 4, "num_heads": 2, "num_layers": 1},
    ],
)
def test_native_generation_equals_xla(sizes: dict[str, int]) -> None:
    model = model_of(**sizes)
    # More rows than two threads process at once, prompts longer than one chunk, and a single row.
    for batch, padded in ((90, 32), (7, 64), (1, 1)):
        output = assert_backends_agree(model, request_of(batch, padded))
    assert_backends_agree(model, request_of(7, 64, temperature=jnp.float32(0), stop_token_id=jnp.int32(-1)))
    assert output.lengths.shape == (1,)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.5), (50, 0.999), (1, 1.0)])
def test_native_sampling_uses_the_same_candidates(top_k: int, top_p: float) -> None:
    assert_backends_agree(
        model_of(), request_of(40, 32, temperature=jnp.float32(0.7), top_p=jnp.float32(top_p)), top_k
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_native_generation_returns_one_of_the_choices(temperature: float) -> None:
    request = request_of(40, 32, temperature=jnp.float32(temperature), choices=create_choices(40))
    output = assert_backends_agree(model_of(), request)
    assert output.finished.all() and output.lengths.max() > output.lengths.min()


def test_row_does_not_depend_on_other_rows_or_threads() -> None:
    import phalanx._native as kernels

    model, request = model_of(), request_of(90, 32, temperature=jnp.float32(0))
    parallel = _generate(model, request, NEW, 0, False, "native")
    try:
        kernels.set_num_devices(10_000)
        single_thread = jax.block_until_ready(_generate(model, request, NEW, 0, False, "native"))
    finally:
        kernels.set_num_devices(len(jax.local_devices(backend="cpu")))
    jax.tree.map(np.testing.assert_array_equal, parallel, single_thread)
    names = "prompt_ids", "prompt_start", "choices"
    rows = jax.device_get([getattr(request, name) for name in names])
    some_rows = request._replace(**{name: part[40:47] for name, part in zip(names, rows, strict=True)})
    separate = _generate(model, some_rows, NEW, 0, False, "native")
    jax.tree.map(
        lambda all_, some: np.testing.assert_array_equal(all_[40:47], some),
        jax.device_get(parallel),
        separate,
    )


def test_bfloat16_model_generates_with_xla() -> None:
    model, request = model_of(dtype="bfloat16"), request_of(3, 32)
    native, xla = (_generate(model, request, NEW, 0, False, backend) for backend in ("native", "xla"))
    jax.tree.map(np.testing.assert_array_equal, native, xla)
