"""Batched generation: log-probabilities, sampling, stop tokens and choices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.lm import LanguageModel, LanguageModelConfig, SamplingConfig, generate, generate_batch
from phalanx.lm.sampling import sample_tokens

pytestmark = pytest.mark.slow

PROMPTS = [[4, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8]]
END = 3


@functools.cache
def model() -> LanguageModel:
    config = LanguageModelConfig(vocab_size=11, d_model=16, num_layers=2, num_heads=2, d_ff=16)
    return jax.jit(lambda key: LanguageModel(config, key=key))(jax.random.key(3))


def test_batch_generates_the_same_as_single_prompts() -> None:
    output = generate_batch(model(), PROMPTS, 6)
    assert output.completion_ids == [generate(model(), prompt, 6) for prompt in PROMPTS]


def test_logps_equal_those_of_the_full_model() -> None:
    sampling = SamplingConfig(temperature=0.7)
    output = generate_batch(model(), PROMPTS, 6, sampling=sampling, key=jax.random.key(0), stop_token_id=END)
    full_log_probs = jax.jit(
        lambda t: jax.nn.log_softmax(model()(t, jnp.ones(14, jnp.int32), jnp.arange(14)) / 0.7)
    )
    for prompt, completion, found in zip(PROMPTS, output.completion_ids, output.logps, strict=True):
        row = np.zeros(14, np.int32)
        row[: len(prompt) + len(completion)] = prompt + completion
        log_probs = np.asarray(full_log_probs(row))
        expected = [log_probs[len(prompt) + at - 1, token] for at, token in enumerate(completion)]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_row_ends_with_its_stop_token_while_others_continue() -> None:
    unstopped = generate_batch(model(), PROMPTS, 6)
    stop = unstopped.completion_ids[0][2]
    output = generate_batch(model(), PROMPTS, 6, stop_token_id=stop)
    for completion, without, finished in zip(
        output.completion_ids, unstopped.completion_ids, output.finished, strict=True
    ):
        cut = without.index(stop) + 1 if stop in without else 6
        assert (completion, bool(finished)) == (without[:cut], stop in without)


def test_generation_is_restricted_to_the_choices() -> None:
    choices = [[[5, 6, END], [5, END]], [[9, END]], [[1, 1, 1, END], [10, END], [2, 4, END]]]
    for key in range(4):
        output = generate_batch(
            model(),
            PROMPTS,
            5,
            sampling=SamplingConfig(),
            key=jax.random.key(key),
            stop_token_id=END,
            choices=choices,
        )
        assert all(text in known for text, known in zip(output.completion_ids, choices, strict=True))
        assert output.completion_ids[1] == [9, END]
    with pytest.raises(ValueError, match="prompt 1 has no choices"):
        generate_batch(model(), PROMPTS, 5, stop_token_id=END, choices=[[[END]], [], [[END]]])
    with pytest.raises(ValueError, match="require a stop token"):
        generate_batch(model(), PROMPTS, 5, choices=choices)


def test_top_k_and_top_p_sample_only_likely_tokens() -> None:
    log_probs = np.log(np.array([[0.5, 0.3, 0.15, 0.05]] * 400, np.float32))
    sample, uniform = (
        jax.jit(sample_tokens, static_argnums=2),
        np.random.default_rng(0).random(400, np.float32),
    )

    def sampled_tokens(top_k: int, top_p: float | None) -> set[int]:
        share = None if top_p is None else np.float32(top_p)
        return set(np.asarray(sample(log_probs, np.float32(1), top_k, share, uniform)).tolist())

    assert sampled_tokens(0, None) == {0, 1, 2, 3}
    assert sampled_tokens(2, None) == {0, 1}
    # The first token has 0.5, which is not enough; the first two have 0.8.
    assert sampled_tokens(0, 0.6) == {0, 1}
    assert sampled_tokens(0, 0.4) == {0}
    assert set(np.asarray(sample(log_probs, np.float32(0), 0, None, np.zeros(400, np.float32))).tolist()) == {
        0
    }


def test_sampled_tokens_follow_the_probabilities() -> None:
    log_probs = np.log(np.array([[0.5, 0.3, 0.15, 0.05]] * 20_000, np.float32))
    uniform = np.random.default_rng(1).random(20_000, np.float32)
    found = np.asarray(jax.jit(sample_tokens, static_argnums=2)(log_probs, np.float32(1), 0, None, uniform))
    np.testing.assert_allclose(np.bincount(found) / len(found), [0.5, 0.3, 0.15, 0.05], atol=0.015)
