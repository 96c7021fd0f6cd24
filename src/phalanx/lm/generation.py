"""Writing with a language model: batches of prompts, sampling, stop tokens, legal moves.

How the tokens are computed is in `decoding`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.lm.decoding import GenerationRequest, write
from phalanx.lm.model import LanguageModel

_STEP = 32
"""Prompts are padded to a multiple of this, so that few lengths are compiled."""


class SamplingConfig(Config):
    """How tokens are chosen."""

    temperature: float = Field(default=1.0, ge=0)
    """What logits are divided by; 0 takes the likeliest token."""
    top_k: int = Field(default=0, ge=0)
    """Only so many of the likeliest tokens are drawn from; 0 for all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that have this probability together are drawn from."""


class GenerationOutput(NamedTuple):
    """What was written after each prompt."""

    tokens: list[list[int]]
    """Up to and with the token that ended it, where one did."""
    log_probs: list[list[float]]
    """Of each token among all tokens, or among those that go on with a choice where there are choices, by the
    model at the temperature (at 1, where it is 0); what top-k and top-p left out is counted in."""
    ended: Bool[np.ndarray, " batch"]
    """Whether a stop token came before the room was used up."""


def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    sampling: SamplingConfig = SamplingConfig(temperature=0.0),  # noqa: B008 - frozen
    key: Key | None = None,
    stop_token: int | None = None,
    choices: Sequence[Sequence[Sequence[int]]] | None = None,
    padded_prompt: int = 0,
) -> GenerationOutput:
    """What the model writes after each prompt: greedily at temperature 0, else drawn with the key.

    A text ends with the `stop_token` or after `max_new_tokens`. `choices` are the only texts that each row
    may write, such as its legal moves with the stop token behind; they need a stop token, and must be at
    most `max_new_tokens` long. Rows are padded to `padded_prompt` tokens at least, to share a compilation.
    """
    _check(model, prompts, max_new_tokens, sampling, key)
    longest = max(max(map(len, prompts)), padded_prompt)
    width = -(-longest // _STEP) * _STEP
    padded = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    starts = np.array([width - len(prompt) for prompt in prompts], np.int32)
    request = GenerationRequest(
        jax.device_put(padded),
        jax.device_put(starts),
        jnp.float32(sampling.temperature),
        jnp.float32(sampling.top_p),
        jax.random.key(0) if key is None else key,
        jnp.int32(-1 if stop_token is None else stop_token),
        None if choices is None else jax.device_put(_choices(choices, max_new_tokens, stop_token)),
    )
    done = write(model, request, max_new_tokens, sampling.top_k, sampling.top_p < 1)
    written, log_probs, lengths, ended = map(np.asarray, done)
    return GenerationOutput(
        [row[:length].tolist() for row, length in zip(written, lengths, strict=True)],
        [row[:length].tolist() for row, length in zip(log_probs, lengths, strict=True)],
        ended,
    )


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    key: Key | None = None,
    stop_token: int | None = None,
) -> list[int]:
    """What the model writes after one prompt, without the `stop_token`; `generate_batch` writes many."""
    sampling = SamplingConfig.model_construct(temperature=temperature)
    said = generate_batch(model, [prompt], max_new_tokens, sampling=sampling, key=key, stop_token=stop_token)
    return said.tokens[0][:-1] if said.ended[0] else said.tokens[0]


def _check(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: Key | None,
) -> None:
    if not prompts or not all(map(len, prompts)):
        raise ValueError("the prompt is empty; give the model one token at least")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if sampling.temperature < 0:
        raise ValueError(f"temperature must not be negative, got {sampling.temperature}")
    if sampling.temperature > 0 and key is None:
        raise ValueError("drawing at a temperature needs a key")
    for token in (max(map(max, prompts)), min(map(min, prompts))):
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(
                f"the prompt has token {token}, the model knows 0 to {model.config.vocab_size - 1}"
            )


def _choices(
    choices: Sequence[Sequence[Sequence[int]]], max_new_tokens: int, stop_token: int | None
) -> Int32[np.ndarray, "batch choices new"]:
    """Padded by -1, which is no token."""
    if stop_token is None:
        raise ValueError("choices need a stop token, or nobody knows where one ends")
    # Rounded up, so that few shapes are compiled.
    most = -(-max(map(len, choices)) // _STEP) * _STEP
    table = np.full((len(choices), most, max_new_tokens), -1, np.int32)
    for row, texts in enumerate(choices):
        if not texts:
            raise ValueError(f"row {row} has no text to choose")
        for place, text in enumerate(texts):
            if len(text) > max_new_tokens or text[-1] != stop_token:
                raise ValueError(
                    f"choice {place} of row {row} must end with the stop token in {max_new_tokens}"
                )
            table[row, place, : len(text)] = text
    return table
