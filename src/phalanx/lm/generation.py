"""Generation of completions for batches of prompts, optionally restricted to given choices.

On the CPU, one call of a native kernel generates a complete batch. On other devices, an XLA loop with a
key-value cache does. Both backends use the same random numbers and generate the same tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.core.backends import dispatch, resolve_backend
from phalanx.core.environment import Key
from phalanx.lm.attention import apply_rotary, masked_attention, packed_attention
from phalanx.lm.model import LanguageModel, TransformerBlock
from phalanx.lm.sampling import MASKED_LOGIT, SamplingConfig, sample_tokens
from phalanx.native import Backend

_PAD_MULTIPLE = 32
"""Prompt lengths and numbers of choices are padded to a multiple of this number, so that few shapes are
compiled."""
_CACHE_PANEL = 16
"""Number of tokens per block of the native key-value cache."""


class GenerationOutput(NamedTuple):
    """Generated completions, one per prompt."""

    completion_ids: list[list[int]]
    """Tokens of each completion, including the stop token if it was generated."""
    logps: list[list[float]]
    """Log-probability of each generated token at the sampling temperature, or at temperature 1 if the
    sampling temperature is 0.

    With choices, probabilities are normalized over the tokens that continue a choice. Top-k and top-p do not
    change the normalization.
    """
    finished: Bool[np.ndarray, " batch"]
    """True for completions that ended with the stop token."""


def generate_batch(
    model: LanguageModel,
    prompt_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    sampling: SamplingConfig = SamplingConfig(temperature=0.0),  # noqa: B008 - frozen
    key: Key | None = None,
    stop_token_id: int | None = None,
    choices: Sequence[Sequence[Sequence[int]]] | None = None,
) -> GenerationOutput:
    """Generate a completion for each prompt.

    Args:
        model: The language model.
        prompt_ids: Tokens of each prompt. Each prompt needs at least one token.
        max_new_tokens: Maximum number of tokens of a completion, including the stop token.
        sampling: Temperature, top-k and top-p. The default is greedy decoding.
        key: PRNG key, required if the temperature is above 0. Each index in the batch has its own random
            numbers, so a sampled completion depends on the index of its prompt.
        stop_token_id: Token that ends a completion. None means that all completions have `max_new_tokens`
            tokens.
        choices: For each prompt, the completions that may be generated, such as the legal actions. Each
            choice must end with the stop token and have at most `max_new_tokens` tokens. None allows all
            completions.
    """
    if not prompt_ids or not all(map(len, prompt_ids)):
        raise ValueError("the prompt is empty; it must have at least one token")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if sampling.temperature < 0:
        raise ValueError(f"temperature must not be negative, got {sampling.temperature}")
    if sampling.temperature > 0 and key is None:
        raise ValueError("sampling at a temperature above 0 needs a key")
    last_token = model.config.vocab_size - 1
    for token in (max(map(max, prompt_ids)), min(map(min, prompt_ids))):
        if not 0 <= token <= last_token:
            raise ValueError(
                f"the prompt contains token {token}, but the model's tokens are 0 to {last_token}"
            )
    width = -(-max(map(len, prompt_ids)) // _PAD_MULTIPLE) * _PAD_MULTIPLE
    padded = np.zeros((len(prompt_ids), width), np.int32)
    for row, prompt in zip(padded, prompt_ids, strict=True):
        row[width - len(prompt) :] = prompt
    prompt_start = np.array([width - len(prompt) for prompt in prompt_ids], np.int32)
    choice_table = None if choices is None else _pad_choices(choices, max_new_tokens, stop_token_id)
    request = GenerationRequest(
        prompt_ids=jax.device_put(padded),
        prompt_start=jax.device_put(prompt_start),
        temperature=jnp.float32(sampling.temperature),
        top_p=jnp.float32(sampling.top_p),
        key=jax.random.key(0) if key is None else key,
        stop_token_id=jnp.int32(-1 if stop_token_id is None else stop_token_id),
        choices=jax.device_put(choice_table),
    )
    arrays = _generate(model, request, max_new_tokens, sampling.top_k, sampling.top_p < 1)
    completion_ids, logps, lengths, finished = map(np.asarray, arrays)
    return GenerationOutput(
        [row[:length].tolist() for row, length in zip(completion_ids, lengths, strict=True)],
        [row[:length].tolist() for row, length in zip(logps, lengths, strict=True)],
        finished,
    )


def generate(
    model: LanguageModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    key: Key | None = None,
    stop_token_id: int | None = None,
) -> list[int]:
    """Generate a completion for one prompt and return its tokens, without the stop token.

    Args:
        model: The language model.
        prompt_ids: Tokens of the prompt.
        max_new_tokens: Maximum number of tokens of the completion, including the stop token.
        temperature: Sampling temperature. 0 is greedy decoding.
        key: PRNG key, required if the temperature is above 0.
        stop_token_id: Token that ends the completion. None means that the completion has `max_new_tokens`
            tokens.
    """
    sampling = SamplingConfig.model_construct(temperature=temperature)
    output = generate_batch(
        model, [prompt_ids], max_new_tokens, sampling=sampling, key=key, stop_token_id=stop_token_id
    )
    [completion_ids], [finished] = output.completion_ids, output.finished
    return completion_ids[:-1] if finished else completion_ids


def _pad_choices(
    choices: Sequence[Sequence[Sequence[int]]], max_new_tokens: int, stop_token_id: int | None
) -> Int32[np.ndarray, "batch choices new"]:
    """Return the choices as an array that is padded with -1, which is not a token."""
    if stop_token_id is None:
        raise ValueError("choices require a stop token (stop_token_id)")
    num_choices = -(-max(map(len, choices)) // _PAD_MULTIPLE) * _PAD_MULTIPLE
    table = np.full((len(choices), num_choices, max_new_tokens), -1, np.int32)
    for row, completions in enumerate(choices):
        if not completions:
            raise ValueError(f"prompt {row} has no choices; pass at least one for every prompt")
        for index, completion in enumerate(completions):
            if len(completion) > max_new_tokens or completion[-1] != stop_token_id:
                raise ValueError(
                    f"choice {index} of prompt {row} must end with the stop token and have at most "
                    f"max_new_tokens={max_new_tokens} tokens"
                )
            table[row, index, : len(completion)] = completion
    return table


# Compiled generation


class GenerationRequest(NamedTuple):
    """Array arguments of the compiled generation."""

    prompt_ids: Int32[Array, "batch padded"]
    """Prompts, padded on the left, so that generated tokens have the same index in the key-value cache in all
    rows."""
    prompt_start: Int32[Array, " batch"]
    """Index of the first token of each prompt in its padded row."""
    temperature: Float[Array, ""]
    top_p: Float[Array, ""]
    key: Key
    stop_token_id: Int32[Array, ""]
    """Token that ends a completion, or -1 if there is none."""
    choices: Int32[Array, "batch choices new"] | None
    """Allowed completions, padded with -1. None means that all completions are allowed."""


class GenerationArrays(NamedTuple):
    """Generated completions as arrays. Values after the end of a completion are undefined."""

    completion_ids: Int32[Array, "batch new"]
    logps: Float[Array, "batch new"]
    lengths: Int32[Array, " batch"]
    """Number of tokens of each completion, including the stop token."""
    finished: Bool[Array, " batch"]
    """True for completions that ended with the stop token."""


@eqx.filter_jit
def _generate(
    model: LanguageModel,
    request: GenerationRequest,
    max_new_tokens: int,
    top_k: int,
    use_top_p: bool,
    backend: Backend = "auto",
) -> GenerationArrays:
    """Generate until every row has finished or has `max_new_tokens` tokens.

    The native backend computes only in float32. Models with `dtype="bfloat16"` therefore use XLA on the CPU.
    """
    arrays, static = eqx.partition(model, eqx.is_array)

    def native(arrays: LanguageModel, request: GenerationRequest) -> GenerationArrays:
        return _generate_native(eqx.combine(arrays, static), request, max_new_tokens, top_k)

    def xla(arrays: LanguageModel, request: GenerationRequest) -> GenerationArrays:
        return _generate_xla(eqx.combine(arrays, static), request, max_new_tokens, top_k, use_top_p)

    resolved = resolve_backend(backend) if model.config.dtype == "float32" else "xla"
    return dispatch(resolved, native, xla, arrays, request)


def _uniform(key: Key, index: Int32[Array, ""], batch: int) -> Float[Array, " batch"]:
    """Draw one random number per row, which selects the token at position `index` of the row's completion."""
    return jax.random.uniform(jax.random.fold_in(key, index), (batch,))


def _generate_native(
    model: LanguageModel, request: GenerationRequest, max_new_tokens: int, top_k: int
) -> GenerationArrays:
    """Generate completions with the native kernel.

    Each thread generates several completions at a time. When a completion is finished, the thread continues
    with the next prompt.
    """
    blocks = model.blocks
    batch, padded = request.prompt_ids.shape
    cache_size = -(-(padded + max_new_tokens) // _CACHE_PANEL) * _CACHE_PANEL
    results = (
        jax.ShapeDtypeStruct((batch, max_new_tokens), jnp.int32),
        jax.ShapeDtypeStruct((batch, max_new_tokens), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((batch,), bool),
    )
    choices = request.choices
    arrays = jax.ffi.ffi_call("phalanx_lm_generate", results)(
        model.embedding,
        model.head,
        model.norm.scale,
        blocks.attention_norm.scale,
        blocks.mlp_norm.scale,
        *(
            array
            for layer in (blocks.qkv_proj, blocks.o_proj, blocks.gate_up_proj, blocks.down_proj)
            for array in (layer.weight, layer.bias)
        ),
        *model.rotary_angles(jnp.arange(cache_size)),
        request.prompt_ids,
        request.prompt_start,
        jax.vmap(lambda index: _uniform(request.key, index, batch), out_axes=1)(jnp.arange(max_new_tokens)),
        request.temperature,
        request.top_p,
        request.stop_token_id,
        jnp.zeros((batch, 0, max_new_tokens), jnp.int32) if choices is None else choices,
        num_heads=model.config.num_heads,
        top_k=top_k,
        epsilon=np.float32(model.config.norm_eps),
    )
    return GenerationArrays(*arrays)


class KVCache(NamedTuple):
    """Keys and values of one transformer block. The keys include rotary position embeddings."""

    keys: Float[Array, "batch tokens heads head_dim"]
    values: Float[Array, "batch tokens heads head_dim"]


class _LoopState(NamedTuple):
    num_generated: Int32[Array, ""]
    """Number of tokens generated so far."""
    caches: list[KVCache]
    logits: Float[Array, "batch vocab"]
    """Logits of the next token."""
    matching_choices: Bool[Array, "batch choices"] | None
    """True for choices that start with the tokens generated so far. None if there are no choices."""
    output: GenerationArrays


def _generate_xla(
    model: LanguageModel, request: GenerationRequest, max_new_tokens: int, top_k: int, use_top_p: bool
) -> GenerationArrays:
    temperature, choices = request.temperature, request.choices
    batch, padded = request.prompt_ids.shape
    caches, logits = prefill(model, request.prompt_ids, request.prompt_start, max_new_tokens)
    blocks = model.unstack_blocks()
    output = GenerationArrays(
        jnp.zeros((batch, max_new_tokens), jnp.int32),
        jnp.zeros((batch, max_new_tokens)),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )
    matching = None if choices is None else choices[:, :, 0] >= 0
    initial = _LoopState(jnp.int32(0), caches, logits, matching, output)

    def generate_token(state: _LoopState) -> _LoopState:
        logps = jax.nn.log_softmax(state.logits / jnp.where(temperature > 0, temperature, 1.0))
        allowed_logps, matching, next_of_choice = logps, state.matching_choices, None
        finished = state.output.finished
        if choices is not None and matching is not None:
            next_of_choice = jax.lax.dynamic_index_in_dim(choices, state.num_generated, 2, keepdims=False)
            is_next = jax.nn.one_hot(next_of_choice, logps.shape[-1], dtype=bool) & matching[..., None]
            # A finished row has no choice left, and its further tokens are ignored.
            allowed = is_next.any(axis=1) | finished[:, None]
            allowed_logps = jnp.where(allowed, logps, MASKED_LOGIT)
        tokens = sample_tokens(
            allowed_logps,
            temperature,
            top_k,
            request.top_p if use_top_p else None,
            _uniform(request.key, state.num_generated, batch),
        )
        if next_of_choice is not None and matching is not None:
            matching = matching & (next_of_choice == tokens[:, None])
            logps = jax.nn.log_softmax(allowed_logps)
        token_logps = jnp.take_along_axis(logps, tokens[:, None], axis=1)
        caches, logits = decode_step(
            model, blocks, state.caches, tokens, padded + state.num_generated, request.prompt_start
        )
        index = (jnp.int32(0), state.num_generated)
        output = GenerationArrays(
            jax.lax.dynamic_update_slice(state.output.completion_ids, tokens[:, None], index),
            jax.lax.dynamic_update_slice(state.output.logps, token_logps, index),
            state.output.lengths + ~finished,
            finished | (tokens == request.stop_token_id),
        )
        return _LoopState(state.num_generated + 1, caches, logits, matching, output)

    def unfinished(state: _LoopState) -> Bool[Array, ""]:
        return (state.num_generated < max_new_tokens) & ~state.output.finished.all()

    return jax.lax.while_loop(unfinished, generate_token, initial).output


def prefill(
    model: LanguageModel,
    prompt_ids: Int32[Array, "batch padded"],
    prompt_start: Int32[Array, " batch"],
    max_new_tokens: int,
) -> tuple[list[KVCache], Float[Array, "batch vocab"]]:
    """Compute the key-value caches of a batch of prompts.

    Args:
        model: The language model.
        prompt_ids: Prompts, padded on the left.
        prompt_start: Index of the first token of each prompt.
        max_new_tokens: Number of additional tokens for which the caches have space.

    Returns:
        One cache per block, and the logits of the first token of each completion.
    """
    positions = jnp.arange(prompt_ids.shape[1], dtype=jnp.int32)
    position_ids = jnp.maximum(positions - prompt_start[:, None], 0)
    segment_ids = (positions >= prompt_start[:, None]).astype(jnp.int32)
    angles = model.rotary_angles(position_ids)
    x, caches = model.embed(prompt_ids), []
    padding = ((0, 0), (0, max_new_tokens), (0, 0), (0, 0))
    for block in model.unstack_blocks():
        qkv = block.project_qkv(x)
        x = block.finish(x, packed_attention(qkv, angles, segment_ids))
        keys, values = apply_rotary(qkv[..., 1, :, :], angles), qkv[..., 2, :, :]
        caches.append(KVCache(jnp.pad(keys, padding), jnp.pad(values, padding)))
    return caches, model.logits(x[:, -1])


def decode_step(
    model: LanguageModel,
    blocks: list[TransformerBlock],
    caches: list[KVCache],
    tokens: Int32[Array, " batch"],
    index: Int32[Array, ""],
    prompt_start: Int32[Array, " batch"],
) -> tuple[list[KVCache], Float[Array, "batch vocab"]]:
    """Process one more token per row, and add its keys and values to the caches.

    Args:
        model: The language model.
        blocks: Result of `model.unstack_blocks()`.
        caches: One cache per block.
        tokens: Token to add to each row.
        index: Index in the caches at which the token is stored, equal for all rows.
        prompt_start: Index of the first token of each prompt.

    Returns:
        The new caches, and the logits of the next token of each row.
    """
    positions = jnp.arange(caches[0].keys.shape[1])
    mask = (positions >= prompt_start[:, None]) & (positions <= index)
    angles = model.rotary_angles((index - prompt_start)[:, None])
    x, updated = model.embed(tokens)[:, None], []
    for block, cache in zip(blocks, caches, strict=True):
        qkv = block.project_qkv(x)
        queries, keys, values = (qkv[..., part, :, :] for part in range(3))
        cache = KVCache(
            jax.lax.dynamic_update_slice_in_dim(cache.keys, apply_rotary(keys, angles), index, 1),
            jax.lax.dynamic_update_slice_in_dim(cache.values, values, index, 1),
        )
        attended = masked_attention(apply_rotary(queries, angles), cache.keys, cache.values, mask[:, None])
        x = block.finish(x, attended)
        updated.append(cache)
    return updated, model.logits(x[:, 0])
