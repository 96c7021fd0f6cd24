"""The language model: attention, positions, loss, training steps and generation."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import PackingConfig, TokenBatch, pack_tokens
from phalanx.data.collation import TOKEN_ARRAYS
from phalanx.lm.attention import apply_rotary, rotary_angles
from phalanx.lm.flops import train_flops
from phalanx.lm.generation import generate
from phalanx.lm.model import LanguageModel, LanguageModelConfig
from phalanx.training import SFT, OptimizerConfig, SFTConfig, SFTData, sft, sft_loss
from phalanx.training.algorithm import TrainState
from phalanx.training.optimizer import lr_schedule

pytestmark = pytest.mark.slow

CONFIG = LanguageModelConfig(vocab_size=11, d_model=8, num_layers=2, num_heads=2, d_ff=8)
WIDTH = 12


def measure(model: LanguageModel, batch: TokenBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the mean loss, the accuracy and the number of tokens."""
    return measure_arrays(model, batch.arrays())


@jax.jit
def measure_arrays(model: LanguageModel, arrays: sft.TokenArrays) -> tuple[jax.Array, jax.Array, jax.Array]:
    sums = sft_loss(model, arrays)
    count = jnp.maximum(sums.num_tokens, 1)
    return sums.loss / count, sums.num_correct / count, sums.num_tokens


@functools.partial(jax.jit, static_argnums=0)
def create_model(config: LanguageModelConfig, key: jax.Array) -> LanguageModel:
    return LanguageModel(config, key=key)


@functools.cache
def model() -> LanguageModel:
    return create_model(CONFIG, jax.random.key(1))


@functools.cache
def initial_state() -> TrainState:
    """Return the initial state on the host, so that training steps cannot donate it."""
    return jax.device_get(jax.jit(trainer().init)(jax.random.key(0)))


def trainer(num_updates: int = 5, **optimizer: object) -> SFT:
    config = SFTConfig(num_updates=num_updates, model=CONFIG, optimizer=OptimizerConfig(**optimizer))
    return SFT(config, SFTData())


def rows(samples: list[list[int]], masks: list[list[int]] | None = None, packed: bool = True) -> TokenBatch:
    """Pack samples into rows, or put each sample in its own row; the result has four rows."""
    masks = [[1] * len(sample) for sample in samples] if masks is None else masks
    groups = [list(range(len(samples)))] if packed else [[i] for i in range(len(samples))]
    parts = [
        pack_tokens(
            np.concatenate([samples[i] for i in group]),
            np.cumsum([0, *(len(samples[i]) for i in group)]),
            PackingConfig(max_length=WIDTH),
            loss_mask=np.concatenate([masks[i] for i in group]),
        )
        for group in groups
    ]
    return stack_rows(parts).pad_rows(4)


def stack_rows(batches: list[TokenBatch]) -> TokenBatch:
    arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in TOKEN_ARRAYS}
    return dataclasses.replace(batches[0], **arrays)


def test_rotary_products_depend_only_on_the_distance() -> None:
    queries, keys = np.random.default_rng(0).standard_normal((2, 1, 1, 8), np.float32)
    rotate = jax.jit(lambda vectors, positions: apply_rotary(vectors, rotary_angles(positions, 8, 100.0)))

    def product(first: int, second: int) -> float:
        a = rotate(queries, np.array([first], np.int32))
        b = rotate(keys, np.array([second], np.int32))
        return float(np.sum(np.asarray(a) * np.asarray(b)))

    assert product(7, 3) == pytest.approx(product(14, 10), abs=1e-5)
    assert product(7, 3) != pytest.approx(product(7, 6), abs=1e-3)


sample_lists = st.lists(st.lists(st.integers(1, 10), min_size=2, max_size=5), min_size=2, max_size=4)


@settings(max_examples=15, deadline=None)
@given(samples=sample_lists, data=st.data())
def test_packed_samples_do_not_affect_each_other(samples: list[list[int]], data: st.DataObject) -> None:
    changed = data.draw(st.integers(0, len(samples) - 1))
    # Only the other samples are in the loss, so it must not change at all.
    masks = [[0 if i == changed else 1] * len(sample) for i, sample in enumerate(samples)]
    other = [
        data.draw(st.lists(st.integers(1, 10), min_size=len(s), max_size=len(s))) if i == changed else s
        for i, s in enumerate(samples)
    ]
    before, after = measure(model(), rows(samples, masks)), measure(model(), rows(other, masks))
    assert float(before[0]) == float(after[0])
    assert int(before[2]) == sum(len(s) - 1 for i, s in enumerate(samples) if i != changed)


@settings(max_examples=15, deadline=None)
@given(samples=sample_lists)
def test_packed_and_separate_samples_have_the_same_loss(
    samples: list[list[int]],
) -> None:
    packed, separate = measure(model(), rows(samples)), measure(model(), rows(samples, packed=False))
    assert int(packed[2]) == int(separate[2])
    assert float(packed[0]) == pytest.approx(float(separate[0]), rel=1e-4)
    assert float(packed[1]) == pytest.approx(float(separate[1]))


def test_loss_is_the_mean_over_masked_tokens() -> None:
    tokens = [3, 5, 7, 9]
    full_log_probs = jax.jit(lambda *inputs: jax.nn.log_softmax(model()(*inputs)))
    log_probs = np.asarray(full_log_probs(*np.array([tokens, [1] * 4, range(4)], np.int32)), np.float64)
    expected = -(log_probs[1, 7] + log_probs[2, 9]) / 2
    found = measure(model(), rows([tokens], [[1, 0, 1, 1]]))
    assert float(found[0]) == pytest.approx(expected, rel=1e-4)
    assert int(found[2]) == 2


def test_new_model_predicts_nearly_uniformly() -> None:
    wide = create_model(CONFIG.model_copy(update={"d_model": 64}), jax.random.key(0))
    assert float(measure(wide, rows([[1, 2, 3, 4, 5], [9, 7, 5, 3, 1]]))[0]) == pytest.approx(
        np.log(CONFIG.vocab_size), abs=0.6
    )


def test_batch_of_padding_changes_only_the_step() -> None:
    params_before = initial_state().params
    batch = rows([[1]])
    empty = dataclasses.replace(batch, **{name: np.zeros_like(batch[name]) for name in TOKEN_ARRAYS})
    after, metrics = trainer().train_step(initial_state(), [empty])
    assert (float(metrics["loss"]), int(metrics["num_loss_tokens"]), int(after.step)) == (0.0, 0, 1)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, after.params), params_before)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_model_memorizes_one_sentence(name: str) -> None:
    algorithm = trainer(60, name=name, learning_rate=0.02, warmup_steps=5, weight_decay=0.01, b2=0.98)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    sentence = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    batch = rows([sentence])
    first = float(measure(algorithm.policy(state).model, batch)[0])
    for _ in range(60):
        state, metrics = algorithm.train_step(state, [batch])
    assert float(metrics["loss"]) < 0.2 * first
    learned = algorithm.policy(state).model
    assert generate(learned, sentence[:3], 7) == sentence[3:]
    assert generate(learned, sentence[:3], 9, stop_token_id=9) == [4, 5, 6, 7, 8]


def test_generation_with_cache_equals_full_model() -> None:
    prompt, new = [4, 9, 2], 6
    full_model = jax.jit(lambda tokens: model()(tokens, jnp.ones(WIDTH, jnp.int32), jnp.arange(WIDTH)))
    sequence = list(prompt)
    for _ in range(new):
        row = np.zeros(WIDTH, np.int32)
        row[: len(sequence)] = sequence
        sequence.append(int(np.argmax(np.asarray(full_model(row))[len(sequence) - 1])))
    assert generate(model(), prompt, new) == sequence[len(prompt) :]


def test_samples_depend_only_on_the_key() -> None:
    completions = [
        generate(model(), [1, 2], 8, temperature=1.0, key=jax.random.key(k)) for k in (0, 0, 1, 2, 3)
    ]
    assert completions[0] == completions[1]
    assert len({tuple(completion) for completion in completions[1:]}) > 1
    assert all(0 <= token < 11 for completion in completions for token in completion)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [11]}, "token 11, but the model's tokens are 0 to 10"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "greater than or equal to 0"),
        ({"temperature": 1.0}, "needs a key"),
    ],
)
def test_invalid_generation_requests_are_rejected(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model(), **{"prompt_ids": [1], "max_new_tokens": 2, **arguments})


def test_odd_head_dimension_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"d_model must be a multiple of 2 \* num_heads"):
        LanguageModelConfig(d_model=12, num_heads=4)


def test_large_vocabulary_embeds_like_a_small_one() -> None:
    large, small = create_model(CONFIG.model_copy(update={"vocab_size": 2000}), jax.random.key(0)), model()
    embed = jax.jit(lambda model, tokens: model.embed(tokens))
    for one, tokens, tolerance in ((large, [0, 7, 1999], 1e-6), (small, [0, 7], 1e-5)):
        found = embed(one, np.array(tokens, np.int32))
        np.testing.assert_allclose(found, np.asarray(one.embedding)[tokens], rtol=tolerance)


def test_gradient_accumulation_equals_one_large_batch() -> None:
    # The batches have different numbers of tokens, so that a mean of means would be wrong.
    first, second = rows([[1, 2, 3, 4, 5]]), rows([[9, 7], [6, 5, 4]])
    large, expected = trainer().train_step(initial_state(), [stack_rows([first, second])])
    small, metrics = trainer().train_step(initial_state(), [first, second])
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
    for a, b in zip(jax.tree.leaves(small.params), jax.tree.leaves(large.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_gradients_do_not_depend_on_the_number_of_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows([[1, 2, 3, 4, 5], [9, 7], [6, 5, 4], [2]])
    params, structure = eqx.partition(model(), eqx.is_array)
    results = []
    for min_tokens, count in ((1, 4), (2 * batch.input_ids.shape[1], 2), (10**9, 1)):
        monkeypatch.setattr(sft, "_MIN_MICROBATCH_TOKENS", min_tokens)
        assert sft._num_microbatches(*batch.input_ids.shape) == count
        compute = jax.jit(lambda params: sft.loss_and_grads(params, structure, batch.arrays()))
        results.append(compute(params))
    for result in results[:2]:
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(results[2]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_learning_rate_follows_the_schedule(schedule: str, middle: float, end: float) -> None:
    config = OptimizerConfig(warmup_steps=10, learning_rate=1.0, end_learning_rate=0.1, lr_schedule=schedule)
    rate = lr_schedule(config, 110)
    assert [float(rate(at)) for at in (0, 10, 60, 110)] == pytest.approx([0.1, 1.0, middle, end], abs=1e-3)


def test_bfloat16_keeps_float32_parameters_and_a_similar_loss() -> None:
    bfloat16_config = CONFIG.model_copy(update={"dtype": "bfloat16"})
    bfloat16_model = create_model(bfloat16_config, jax.random.key(1))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(bfloat16_model)} == {"float32"}
    batch = rows([[1, 2, 3, 4, 5], [9, 7, 5, 3, 1]])
    assert float(measure(bfloat16_model, batch)[0]) == pytest.approx(
        float(measure(model(), batch)[0]), rel=0.02
    )
    assert len(generate(bfloat16_model, [1, 2], 3)) == 3


def test_flops_count_attention_within_segments_only() -> None:
    weights = 2 * (8 * 3 * 8 + 8 * 8 + 8 * 16 + 8 * 8) + 2 * 11 * 8
    one_segment, packed = (np.array([ids], np.int32) for ids in ([1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 0]))
    # A token attends to half of its segment on average; queries and values of all heads have 8 numbers each.
    assert train_flops(CONFIG, one_segment) == 6 * (6 * weights + 2 * 8 * 36)
    assert train_flops(CONFIG, packed) == 6 * (6 * weights + 2 * 8 * (9 + 4 + 1))
