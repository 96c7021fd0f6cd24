"""Attention masks separate segments, so a packed batch has the loss of its separate samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    PackingConfig,
    PackingMode,
    TokenBatch,
    create_segment_attention_mask,
    cu_seqlens,
    pack_tokens,
)

VOCAB_SIZE, D_MODEL, MAX_LENGTH = 11, 8, 24


def test_bidirectional_mask_is_block_diagonal() -> None:
    mask = create_segment_attention_mask([1, 1, 2], causal=False)
    assert mask.dtype == bool
    assert mask.astype(int).tolist() == [
        [1, 1, 0],
        [1, 1, 0],
        [0, 0, 1],
    ]


def test_causal_mask_allows_only_earlier_positions() -> None:
    assert create_segment_attention_mask([1, 1, 2, 2]).astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 1],
    ]


def test_padding_neither_attends_nor_is_attended_to() -> None:
    mask = create_segment_attention_mask([1, 1, 0, 0], causal=False)
    assert not mask[2:].any() and not mask[:, 2:].any()


def test_padding_can_attend_to_itself() -> None:
    mask = create_segment_attention_mask([1, 1, 2, 0], causal=True, padding_sees_itself=True)
    assert mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    mask = create_segment_attention_mask([1, 0, 0], padding_sees_itself=True)
    assert mask.astype(int).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_batched_masks_equal_masks_of_single_rows() -> None:
    rows = np.asarray([[1, 1, 2], [1, 2, 0]])
    masks = create_segment_attention_mask(rows, causal=True)
    assert masks.shape == (2, 3, 3)
    assert [create_segment_attention_mask(row, causal=True).tolist() for row in rows] == masks.tolist()


@pytest.mark.parametrize("causal", [False, True])
def test_jitted_mask_equals_the_numpy_mask(causal: bool) -> None:
    rows = np.asarray([[1, 1, 2, 0], [1, 2, 3, 3]], np.int32)
    masks = jax.jit(create_segment_attention_mask, static_argnames="causal")(jnp.asarray(rows), causal=causal)
    assert isinstance(masks, jax.Array) and masks.dtype == bool
    assert masks.tolist() == create_segment_attention_mask(rows, causal=causal).tolist()


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_zero_based_segment_ids_are_rejected(array) -> None:
    with pytest.raises(ValueError, match=r"segment_ids has a 0 before .* count from 0, add 1"):
        create_segment_attention_mask(array([0, 0, 1, 1]))
    with pytest.raises(ValueError, match=r"segment_ids\[1\] has a 0 before another segment"):
        create_segment_attention_mask(array([[1, 1, 2], [0, 1, 1]]))


def test_row_of_zeros_is_rejected_unless_it_is_in_a_batch() -> None:
    with pytest.raises(ValueError, match="segment_ids has only zeros"):
        create_segment_attention_mask([0, 0, 0, 0])
    assert not create_segment_attention_mask(np.asarray([[1, 1], [0, 0]]))[1].any()


def test_float_segment_ids_are_rejected() -> None:
    with pytest.raises(ValueError, match="segment_ids must be integers"):
        create_segment_attention_mask([0.5, 1.0])


def test_cu_seqlens_has_the_boundaries_of_the_segments() -> None:
    assert cu_seqlens([1, 1, 2, 3, 3, 0, 0]).tolist() == [0, 2, 3, 5]
    assert cu_seqlens([1, 1]).tolist() == [0, 2]
    assert cu_seqlens([0, 0]).tolist() == [0]
    assert cu_seqlens([1]).dtype == np.int32


def test_cu_seqlens_rejects_padding_before_a_segment() -> None:
    with pytest.raises(ValueError, match=r"padding \(0\) at its end"):
        cu_seqlens([1, 0, 2])


class Model:
    """A model with one attention block. It uses float64, so that the sums agree closely."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0).normal
        self.tokens, self.positions = draw(size=(VOCAB_SIZE, D_MODEL)), draw(size=(MAX_LENGTH, D_MODEL))
        self.query, self.key, self.value = draw(size=(3, D_MODEL, D_MODEL)) / np.sqrt(D_MODEL)
        self.head = draw(size=(D_MODEL, VOCAB_SIZE))

    def losses(self, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the loss of each token given the previous ones. The first token has loss 0."""
        x = self.tokens[ids] + self.positions[positions]
        scores = np.where(mask, x @ self.query @ (x @ self.key).T / np.sqrt(D_MODEL), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        x = x + weights / weights.sum(axis=-1, keepdims=True) @ (x @ self.value)
        logits = x @ self.head
        logits = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return np.append(0.0, -logits[np.arange(len(ids) - 1), ids[1:]])

    def packed_loss(self, batch: TokenBatch, *, attend_to_all: bool = False) -> float:
        total = 0.0
        for pack in range(len(batch)):
            segments = batch.segment_ids[pack]
            if attend_to_all:
                segments = np.ones_like(segments)
            mask = create_segment_attention_mask(segments, causal=True, padding_sees_itself=True)
            losses = self.losses(batch.input_ids[pack], batch.position_ids[pack], mask)
            total += float((losses * batch.loss_mask[pack])[batch.position_ids[pack] > 0].sum())
        return total

    def loss(self, rows: list[np.ndarray], masks: list[np.ndarray]) -> float:
        return sum(
            float((self.losses(row, np.arange(len(row)), np.tri(len(row), dtype=bool)) * mask)[1:].sum())
            for row, mask in zip(rows, masks, strict=True)
        )


MODEL = Model()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, MAX_LENGTH), min_size=1, max_size=8),
    mode=st.sampled_from(list(PackingMode)),
    separator=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_packed_loss_equals_unpacked_loss(
    lengths: list[int], mode: PackingMode, separator: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, VOCAB_SIZE, length) for length in lengths]
    masks = [rng.integers(0, 2, length) for length in lengths]
    config = PackingConfig(
        mode=mode, max_length=MAX_LENGTH, separator_token_id=3 if separator else None, separator_loss=False
    )
    batch = pack_tokens(
        np.concatenate(rows),
        np.cumsum([0, *lengths]),
        config,
        loss_mask=np.concatenate(masks),
        pad_id=5,
    )
    assert MODEL.packed_loss(batch) == pytest.approx(MODEL.loss(rows, masks), rel=1e-9, abs=1e-9)


def test_loss_differs_if_segments_attend_to_each_other() -> None:
    rows = [np.asarray([1, 2, 3]), np.asarray([4, 5, 6])]
    masks = [np.ones(3, int), np.ones(3, int)]
    batch = pack_tokens(np.concatenate(rows), [0, 3, 6], PackingConfig(max_length=6))
    assert MODEL.packed_loss(batch) == pytest.approx(MODEL.loss(rows, masks))
    assert abs(MODEL.packed_loss(batch, attend_to_all=True) - MODEL.loss(rows, masks)) > 0.01
