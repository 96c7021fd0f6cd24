"""The language model: what a token sees, where it stands, and what its loss depends on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import PackingConfig, pack_tokens
from phalanx.lm.attention import apply_rotary, rotary_angles
from phalanx.lm.flops import train_flops
from phalanx.lm.generation import generate
from phalanx.lm.model import LanguageModel, LanguageModelConfig
from phalanx.training.lm import update
from phalanx.training.lm.batches import TokenBatch
from phalanx.training.lm.config import OptimizerConfig
from phalanx.training.lm.update import LMTrainer, SFTState, losses

CONFIG = LanguageModelConfig(vocab_size=11, d_model=8, num_layers=2, num_heads=2, d_ff=8)
WIDTH = 12
measure = jax.jit(losses)


@functools.partial(jax.jit, static_argnums=0)
def made(config: LanguageModelConfig, key: jax.Array) -> LanguageModel:
    return LanguageModel(config, key=key)


@functools.cache
def model() -> LanguageModel:
    return made(CONFIG, jax.random.key(1))


@functools.cache
def begun() -> SFTState:
    """What AdamW starts with, on the host, where nobody can use it up; its settings do not matter."""
    return jax.device_get(jax.jit(LMTrainer(CONFIG, OptimizerConfig()).start)(jax.random.key(0)))


def rows(samples: list[list[int]], masks: list[list[int]] | None = None, packed: bool = True) -> TokenBatch:
    """Samples packed into rows, or each in a row of its own; always four rows."""
    masks = [[1] * len(sample) for sample in samples] if masks is None else masks
    together = [list(range(len(samples)))] if packed else [[i] for i in range(len(samples))]
    parts = [
        pack_tokens(
            np.concatenate([samples[i] for i in group]),
            np.cumsum([0, *(len(samples[i]) for i in group)]),
            PackingConfig(max_length=WIDTH),
            loss_mask=np.concatenate([masks[i] for i in group]),
        )
        for group in together
    ]
    names = ("input_ids", "loss_mask", "segment_ids", "position_ids")
    arrays = [np.concatenate([getattr(part, name) for part in parts]).astype(np.int32) for name in names]
    return TokenBatch(*(np.pad(array, ((0, 4 - len(array)), (0, 0))) for array in arrays))


def test_rotated_vectors_meet_by_their_distance_alone() -> None:
    queries, keys = np.random.default_rng(0).standard_normal((2, 1, 1, 8), np.float32)
    turn = jax.jit(lambda vectors, places: apply_rotary(vectors, rotary_angles(places, 8, 100.0)))

    def product(first: int, second: int) -> float:
        a = turn(queries, np.array([first], np.int32))
        b = turn(keys, np.array([second], np.int32))
        return float(np.sum(np.asarray(a) * np.asarray(b)))

    assert product(7, 3) == pytest.approx(product(14, 10), abs=1e-5)
    assert product(7, 3) != pytest.approx(product(7, 6), abs=1e-3)


samples_of = st.lists(st.lists(st.integers(1, 10), min_size=2, max_size=5), min_size=2, max_size=4)


@settings(max_examples=15, deadline=None)
@given(samples=samples_of, data=st.data())
def test_changing_one_packed_sample_never_changes_anothers_loss(
    samples: list[list[int]], data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(samples) - 1))
    # Only the others count in the loss, so it must not move at all.
    masks = [[0 if i == changed else 1] * len(sample) for i, sample in enumerate(samples)]
    other = [
        data.draw(st.lists(st.integers(1, 10), min_size=len(s), max_size=len(s))) if i == changed else s
        for i, s in enumerate(samples)
    ]
    before, after = measure(model(), rows(samples, masks)), measure(model(), rows(other, masks))
    assert float(before.loss) == float(after.loss)
    assert int(before.tokens) == sum(len(s) - 1 for i, s in enumerate(samples) if i != changed)


@settings(max_examples=15, deadline=None)
@given(samples=samples_of)
def test_packed_samples_have_the_loss_that_they_have_each_in_a_row_of_its_own(
    samples: list[list[int]],
) -> None:
    packed, alone = measure(model(), rows(samples)), measure(model(), rows(samples, packed=False))
    assert int(packed.tokens) == int(alone.tokens)
    assert float(packed.loss) == pytest.approx(float(alone.loss), rel=1e-4)
    assert float(packed.accuracy) == pytest.approx(float(alone.accuracy))


def test_the_loss_is_the_mean_over_the_tokens_that_the_mask_names() -> None:
    tokens = [3, 5, 7, 9]
    whole = jax.jit(lambda *given: jax.nn.log_softmax(model()(*given)))
    logs = np.asarray(whole(*np.array([tokens, [1] * 4, range(4)], np.int32)), np.float64)
    expected = -(logs[1, 7] + logs[2, 9]) / 2
    found = measure(model(), rows([tokens], [[1, 0, 1, 1]]))
    assert float(found.loss) == pytest.approx(expected, rel=1e-4)
    assert int(found.tokens) == 2


def test_a_new_model_is_about_as_good_as_guessing() -> None:
    wide = made(CONFIG.model_copy(update={"d_model": 64}), jax.random.key(0))
    assert float(measure(wide, rows([[1, 2, 3, 4, 5], [9, 7, 5, 3, 1]])).loss) == pytest.approx(
        np.log(CONFIG.vocab_size), abs=0.6
    )


def test_a_batch_of_padding_has_no_loss_and_moves_nothing_but_the_count() -> None:
    trainer = LMTrainer(CONFIG, OptimizerConfig(weight_decay=0.0, num_updates=5))
    kept = begun().params
    empty = TokenBatch(*(np.zeros((4, WIDTH), np.int32) for _ in range(4)))
    after, metrics = trainer.update(begun(), empty)
    assert (float(metrics["loss"]), int(metrics["loss_tokens"]), int(after.update)) == (0.0, 0, 1)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, after.params), kept)


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_a_model_learns_one_sentence_by_heart_and_says_it(method: str) -> None:
    trainer = LMTrainer(CONFIG, OptimizerConfig(method=method, learning_rate=0.02, num_updates=60, warmup=5))
    learner = jax.jit(trainer.start)(jax.random.key(0))
    sentence = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    batch = rows([sentence])
    first = float(trainer.measure(learner, batch).loss)
    for _ in range(60):
        learner, metrics = trainer.update(learner, batch)
    assert float(metrics["loss"]) < 0.2 * first
    learned = trainer.model(learner)
    assert generate(learned, sentence[:3], 7) == sentence[3:]
    assert generate(learned, sentence[:3], 9, stop_token_id=9) == [4, 5, 6, 7, 8]


def test_the_cache_writes_what_the_whole_model_would() -> None:
    prompt, new = [4, 9, 2], 6
    whole = jax.jit(lambda tokens: model()(tokens, jnp.ones(WIDTH, jnp.int32), jnp.arange(WIDTH)))
    written = list(prompt)
    for _ in range(new):
        row = np.zeros(WIDTH, np.int32)
        row[: len(written)] = written
        written.append(int(np.argmax(np.asarray(whole(row))[len(written) - 1])))
    assert generate(model(), prompt, new) == written[len(prompt) :]


def test_what_is_drawn_depends_on_the_key_and_on_nothing_else() -> None:
    said = [generate(model(), [1, 2], 8, temperature=1.0, key=jax.random.key(k)) for k in (0, 0, 1, 2, 3)]
    assert said[0] == said[1]
    assert len({tuple(words) for words in said[1:]}) > 1
    assert all(0 <= word < 11 for words in said for word in words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [11]}, "token 11, but the model's tokens are 0 to 10"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"temperature": 1.0}, "needs a key"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(model(), **{"prompt_ids": [1], "max_new_tokens": 2, **arguments})


def test_heads_that_cannot_be_rotated_in_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"d_model must be a multiple of 2 \* num_heads"):
        LanguageModelConfig(d_model=12, num_heads=4)


def test_a_large_vocabulary_is_looked_up_and_embeds_alike() -> None:
    large, small = made(CONFIG.model_copy(update={"vocab_size": 2000}), jax.random.key(0)), model()
    embed = jax.jit(lambda model, tokens: model.embed(tokens))
    for one, tokens, tolerance in ((large, [0, 7, 1999], 1e-6), (small, [0, 7], 1e-5)):
        found = embed(one, np.array(tokens, np.int32))
        np.testing.assert_allclose(found, np.asarray(one.embedding)[tokens], rtol=tolerance)


def test_several_batches_move_a_model_as_one_batch_with_all_their_rows_does() -> None:
    trainer = LMTrainer(CONFIG, OptimizerConfig(num_updates=5))
    # Of unequal counts, so that a mean of means would not do.
    first, second = rows([[1, 2, 3, 4, 5]]), rows([[9, 7], [6, 5, 4]])
    whole = TokenBatch(*(np.concatenate(parts) for parts in zip(first, second, strict=True)))
    large, expected = trainer.update(begun(), whole)
    small, metrics = trainer.update_on(begun(), [first, second])
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
    for a, b in zip(jax.tree.leaves(small.params), jax.tree.leaves(large.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_rows_taken_in_turns_move_a_model_as_rows_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows([[1, 2, 3, 4, 5], [9, 7], [6, 5, 4], [2]])
    moved = []
    for together, turns in ((1, 4), (2 * batch.input_ids.shape[1], 2), (10**9, 1)):
        monkeypatch.setattr(update, "_TOGETHER", together)
        assert update._turns(*batch.input_ids.shape) == turns
        trainer = LMTrainer(CONFIG, OptimizerConfig(num_updates=5))
        moved.append(trainer.update(begun(), batch))
    for found in moved[:2]:
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(moved[2]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("fall", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_the_learning_rate_rises_and_falls_as_it_is_told(fall: str, middle: float, end: float) -> None:
    config = OptimizerConfig(num_updates=110, warmup=10, learning_rate=1.0, learning_rate_end=0.1, fall=fall)
    rate = config.schedule()
    assert [float(rate(at)) for at in (0, 10, 60, 110)] == pytest.approx([0.1, 1.0, middle, end], abs=1e-3)


def test_computing_in_bfloat16_keeps_float32_weights_and_nearly_the_loss() -> None:
    short = CONFIG.model_copy(update={"dtype": "bfloat16"})
    half = made(short, jax.random.key(1))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half)} == {"float32"}
    batch = rows([[1, 2, 3, 4, 5], [9, 7, 5, 3, 1]])
    assert float(measure(half, batch).loss) == pytest.approx(float(measure(model(), batch).loss), rel=0.02)
    assert len(generate(half, [1, 2], 3)) == 3


def test_the_arithmetic_of_an_update_counts_attention_within_segments_alone() -> None:
    weights = 2 * (8 * 3 * 8 + 8 * 8 + 8 * 16 + 8 * 8) + 2 * 11 * 8
    whole, packed = (np.array([ids], np.int32) for ids in ([1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 0]))
    # Each of n tokens sees half of the n in the mean; a query and a value of all heads have 8 numbers each.
    assert train_flops(CONFIG, whole) == 6 * (6 * weights + 2 * 8 * 36)
    assert train_flops(CONFIG, packed) == 6 * (6 * weights + 2 * 8 * (9 + 4 + 1))
