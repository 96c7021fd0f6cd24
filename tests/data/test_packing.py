"""Packing samples into objects and arrays, and the policies for overlong samples."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from phalanx.compat.chuk_lazarus.data.batching.planning import (
    PackedSequence,
    PackingConfig,
    SequenceToPack,
    compute_packing_metrics,
    pack_sequences,
)
from phalanx.data import (
    OverlongPolicy,
    PackingMode,
    TokenBatch,
    assign_packs,
    iter_packed_batches,
    pack_tokens,
)
from phalanx.data.metrics import compute_packing_metrics as compute_layout_metrics

PAD, SEPARATOR = 0, 99


def sequences(*rows: list[int]) -> list[SequenceToPack]:
    """Return samples s0, s1, ... with all tokens but the first in the loss."""
    return [
        SequenceToPack(sample_id=f"s{i}", input_ids=row, loss_mask=[0] + [1] * (len(row) - 1))
        for i, row in enumerate(rows)
    ]


def flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.concatenate([np.zeros(0, np.int32), *(np.asarray(row, np.int32) for row in rows)])
    return tokens, np.cumsum([0, *(len(row) for row in rows)])


def ids(packs: list[PackedSequence]) -> list[list[int]]:
    return [pack.input_ids.tolist() for pack in packs]


def test_three_samples_fill_two_packs() -> None:
    packs = pack_sequences(sequences([1, 2, 3], [4, 5, 6, 7], [8]), PackingConfig(max_length=4))
    assert ids(packs) == [[4, 5, 6, 7], [1, 2, 3, 8]]
    assert [pack.sample_ids for pack in packs] == [("s1",), ("s0", "s2")]
    last = packs[1]
    assert last.loss_mask.tolist() == [0, 1, 1, 0]
    assert last.segment_ids.tolist() == [1, 1, 1, 2]
    assert last.position_ids.tolist() == [0, 1, 2, 0]
    assert last.cu_seqlens.tolist() == [0, 3, 4]
    assert last.cu_seqlens.dtype == np.int32
    assert (last.num_segments, last.total_tokens, last.padding_tokens, last.efficiency) == (2, 4, 0, 1.0)


def test_padding_has_segment_id_0_and_no_loss() -> None:
    (pack,) = pack_sequences(sequences([1, 2], [3]), PackingConfig(max_length=6), pad_token_id=7)
    assert pack.input_ids.tolist() == [1, 2, 3, 7, 7, 7]
    assert pack.segment_ids.tolist() == [1, 1, 2, 0, 0, 0]
    assert pack.loss_mask.tolist() == [0, 1, 0, 0, 0, 0]
    assert pack.position_ids.tolist() == [0, 1, 0, 0, 0, 0]
    assert pack.cu_seqlens.tolist() == [0, 2, 3]
    assert (pack.length, pack.padding_tokens, pack.efficiency) == (6, 3, 0.5)


def test_separator_belongs_to_the_preceding_segment() -> None:
    config = PackingConfig(max_length=8, add_separator=True, separator_token_id=SEPARATOR)
    (pack,) = pack_sequences(sequences([1, 2], [3], [4, 5]), config)
    assert pack.input_ids.tolist() == [1, 2, SEPARATOR, 3, SEPARATOR, 4, 5, PAD]
    assert pack.segment_ids.tolist() == [1, 1, 1, 2, 2, 3, 3, 0]
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 0]
    # The second sample has no token in the loss, so only the first separator is in the loss.
    assert pack.loss_mask.tolist() == [0, 1, 1, 0, 0, 0, 1, 0]
    (without_loss,) = pack_sequences(
        sequences([1, 2], [3], [4, 5]),
        PackingConfig(max_length=8, separator_token_id=SEPARATOR, separator_loss=False),
    )
    assert without_loss.loss_mask.tolist() == [0, 1, 0, 0, 0, 0, 1, 0]
    assert pack.cu_seqlens.tolist() == [0, 3, 5, 7]
    assert (pack.total_tokens, pack.separator_tokens, pack.padding_tokens) == (5, 2, 1)
    assert pack.sample_lengths == (2, 1, 2)


def test_separators_are_added_only_between_samples() -> None:
    config = PackingConfig(max_length=4, separator_token_id=SEPARATOR)
    assert ids(pack_sequences(sequences([1, 2], [3]), config)) == [[1, 2, SEPARATOR, 3]]
    assert ids(pack_sequences(sequences([1, 2], [3, 4]), config)) == [[1, 2, PAD, PAD], [3, 4, PAD, PAD]]
    assert ids(pack_sequences(sequences([1, 2, 3, 4]), config)) == [[1, 2, 3, 4]]


def test_add_separator_requires_separator_token_id() -> None:
    with pytest.raises(ValidationError, match="add_separator needs separator_token_id"):
        PackingConfig(add_separator=True)


def test_loss_mask_of_wrong_length_raises_error() -> None:
    with pytest.raises(ValidationError, match="sample 'a': 3 input_ids but 2 entries in loss_mask"):
        SequenceToPack(sample_id="a", input_ids=[1, 2, 3], loss_mask=[1, 1])
    with pytest.raises(ValueError, match="loss_mask must have 3 entries, one per token, got 2"):
        pack_tokens(np.arange(3), [0, 3], PackingConfig(), loss_mask=np.ones(2, np.int8))


@pytest.mark.parametrize(
    ("input_ids", "loss_mask", "message"),
    [
        ([], [], "sample 'a': a sample needs at least one token"),
        ([1], [2], r"loss_mask\[0\] must be 0 or 1"),
        ([1.5], [1], "input_ids must be a list of integers"),
        ([[1]], [1], "input_ids must be a list of integers"),
        ([2**31], [1], "input_ids must be between 0 and 2147483647"),
    ],
)
def test_invalid_sequence_is_rejected(input_ids: list[int], loss_mask: list[int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SequenceToPack(sample_id="a", input_ids=input_ids, loss_mask=loss_mask)


def test_duplicate_sample_id_raises_error() -> None:
    with pytest.raises(ValueError, match="samples 0 and 2 have the same id 's0'"):
        pack_sequences([*sequences([1], [2]), *sequences([3])])


def test_packs_are_not_padded_without_pad_to_max() -> None:
    config = PackingConfig(max_length=4, pad_to_max=False)
    packs = pack_sequences(sequences([1, 2, 3], [4, 5, 6]), config)
    assert ids(packs) == [[1, 2, 3], [4, 5, 6]]
    assert [pack.padding_tokens for pack in packs] == [0, 0]
    batch = pack_tokens(*flat([[1, 2, 3], [4, 5]]), config)
    assert batch.input_ids.tolist() == [[1, 2, 3], [4, 5, 0]]


class TestOverlong:
    rows = ([1, 2], [3, 4, 5, 6, 7], [8])

    def test_overlong_sample_raises_error_by_default(self) -> None:
        with pytest.raises(ValueError, match=r"sample 1 \('s1'\) has 5 tokens, more than max_length 2"):
            pack_sequences(sequences(*self.rows), PackingConfig(max_length=2))

    def test_skipped_sample_is_reported_with_its_reason(self) -> None:
        packs = pack_sequences(sequences(*self.rows), PackingConfig(max_length=2, overlong="skip"))
        assert ids(packs) == [[1, 2], [8, PAD]]
        (skipped,) = packs.skipped
        assert (skipped.sample_id, skipped.length) == ("s1", 5)
        assert skipped.reason == "longer than max_length 2"

    def test_truncation_keeps_the_first_tokens(self) -> None:
        packs = pack_sequences(sequences(*self.rows), PackingConfig(max_length=2, overlong="truncate"))
        assert ids(packs) == [[1, 2], [3, 4], [8, PAD]]
        assert packs[1].loss_mask.tolist() == [0, 1]
        assert packs.skipped == ()

    def test_split_parts_are_segments_with_offsets(self) -> None:
        packs = pack_sequences(sequences(*self.rows), PackingConfig(max_length=2, overlong="split"))
        assert ids(packs) == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert [pack.sample_ids for pack in packs] == [("s0",), ("s1",), ("s1",), ("s1", "s2")]
        assert [pack.sample_offsets for pack in packs] == [(0,), (0,), (2,), (4, 0)]
        assert packs[2].loss_mask.tolist() == [1, 1]
        assert packs[3].segment_ids.tolist() == [1, 2]

    def test_sample_of_maximum_length_is_unchanged(self) -> None:
        for policy in OverlongPolicy:
            packs = pack_sequences(sequences([1, 2]), PackingConfig(max_length=2, overlong=policy))
            assert ids(packs) == [[1, 2]]


def test_metrics_count_packs_and_tokens() -> None:
    config = PackingConfig(max_length=5, separator_token_id=SEPARATOR)
    rows = [[1, 2, 3], [4], [5, 6, 7]]
    expected = {
        "num_packs": 2,
        "num_segments": 3,
        "total_tokens": 7,
        "separator_tokens": 1,
        "padding_tokens": 2,
        "loss_tokens": 5,
        "num_skipped": 0,
        "packed_tokens": 10,
        "packing_ratio": 1.5,
        "efficiency": 0.7,
        "loss_efficiency": 0.5,
    }
    metrics = compute_packing_metrics(pack_sequences(sequences(*rows), config))
    assert {name: getattr(metrics, name) for name in expected} == expected
    batch = pack_tokens(*flat(rows), config, loss_mask=np.asarray([0, 1, 1, 0, 0, 1, 1]))
    summary = compute_layout_metrics(batch.layout, batch.loss_mask).summary()
    assert {**summary, "num_batches": 0, "mean_batch_size": 0.0} == metrics.summary()


def test_empty_input_has_no_packs() -> None:
    assert pack_sequences([]) == []
    assert compute_packing_metrics([]).num_packs == 0
    batch = pack_tokens(np.zeros(0, np.int32), [0], PackingConfig(max_length=4))
    assert batch.input_ids.shape == (0, 4)


def test_pack_is_restored_from_json() -> None:
    (pack,) = pack_sequences(sequences([1, 2], [3]), PackingConfig(max_length=4))
    restored = PackedSequence.model_validate_json(pack.model_dump_json())
    assert restored == pack
    assert pack != pack_sequences(sequences([1, 2], [4]), PackingConfig(max_length=4))[0]


def test_cu_seqlens_exclude_padding() -> None:
    batch = pack_tokens(*flat([[1, 2, 3], [4, 5], [6]]), PackingConfig(max_length=4))
    assert batch.segment_ids.tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    assert batch.cu_seqlens(0).tolist() == [0, 3, 4]
    assert batch.cu_seqlens(1).tolist() == [0, 2]


def test_layout_can_be_filled_in_parts() -> None:
    rows = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    config = PackingConfig(max_length=4)
    layout = assign_packs([len(row) for row in rows], config)
    complete = pack_tokens(*flat(rows), config)
    parts = [pack_tokens(*flat(rows), config, layout=layout.slice_rows(i, i + 1)) for i in range(len(layout))]
    assert np.concatenate([part.input_ids for part in parts]).tolist() == complete.input_ids.tolist()
    assert [part.input_ids.tolist() for part in iter_packed_batches(*flat(rows), config, 2)] == [
        [[7, 8, 9, 10], [1, 2, 3, 6]],
        [[4, 5, 0, 0]],
    ]
    with pytest.raises(ValueError, match="packs_per_batch must be at least 1, got 0"):
        iter_packed_batches(*flat(rows), config, 0)


def test_layout_of_other_samples_is_rejected() -> None:
    config = PackingConfig(max_length=4)
    tokens, offsets = flat([[1, 2], [3]])
    with pytest.raises(ValueError, match="computed for samples of other lengths"):
        pack_tokens(tokens, offsets, config, layout=assign_packs([1, 2], config))
    with pytest.raises(ValueError, match="has sample 2, but there are only 2"):
        pack_tokens(tokens, offsets, config, layout=assign_packs([1, 1, 1], config))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 1, 3], "offsets must ascend between 0 and 3"),
        ([0, 4], "offsets must ascend between 0 and 3"),
        ([-1, 3], "offsets must ascend between 0 and 3"),
        ([], "offsets must ascend between 0 and 3"),
        ([0, 0, 3], "sample 0: length must be a positive integer, got 0"),
    ],
)
def test_invalid_offsets_are_rejected(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_tokens(np.arange(3), offsets, PackingConfig())


def test_tokens_above_32_bits_are_rejected() -> None:
    with pytest.raises(ValueError, match="tokens must be between 0 and 2147483647, got 2147483648"):
        pack_tokens(np.asarray([1, 2**31]), [0, 2], PackingConfig())
    small = pack_tokens(np.asarray([1, 65535], np.uint16), [0, 2], PackingConfig(max_length=2))
    assert small.input_ids.tolist() == [[1, 65535]]


def unpack(batch: TokenBatch, rows: int) -> list[list[int]]:
    """Reconstruct the samples of a batch from segment ids and positions."""
    samples: list[list[int]] = [[] for _ in range(rows)]
    for pack in range(len(batch)):
        part = batch.layout.slice_rows(pack, pack + 1)
        for number, (sample, length) in enumerate(zip(part.samples, part.lengths, strict=True), start=1):
            in_segment = batch.segment_ids[pack] == number
            assert batch.position_ids[pack][in_segment].tolist() == list(range(in_segment.sum()))
            samples[sample] += batch.input_ids[pack][in_segment][:length].tolist()
    return samples


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), max_size=25),
    mode=st.sampled_from(list(PackingMode)),
    max_length=st.integers(4, 16),
    separator=st.booleans(),
)
def test_splitting_preserves_all_tokens(
    lengths: list[int], mode: PackingMode, max_length: int, separator: bool
) -> None:
    config = PackingConfig(
        mode=mode,
        max_length=max_length,
        add_separator=separator,
        separator_token_id=SEPARATOR,
        separator_loss=False,
        overlong=OverlongPolicy.SPLIT,
    )
    ends = np.cumsum([0, *lengths]).tolist()
    rows = [list(range(1000 + start, 1000 + end)) for start, end in itertools.pairwise(ends)]
    batch = pack_tokens(*flat(rows), config, pad_id=PAD)
    found = unpack(batch, len(rows))
    assert [sorted(sample) for sample in found] == rows
    real = batch.input_ids >= 1000
    assert real.sum() == batch.loss_mask.sum() == sum(lengths)
    assert ((batch.input_ids == PAD) == (batch.segment_ids == 0)).all()
    assert (batch.input_ids == SEPARATOR).sum() == (
        sum(np.diff(batch.layout.offsets) - 1) if separator else 0
    )


def test_compiled_code_rejects_segments_out_of_range() -> None:
    compiled = pytest.importorskip("phalanx._native")
    outputs = [np.zeros((1, 4), kind) for kind in (np.int32, np.int8, np.int32, np.int32)]
    tokens = np.arange(1, 7, dtype=np.int32)
    for starts, lengths, offsets in [
        ([4], [3], [0, 1]),
        ([-1], [2], [0, 1]),
        ([0], [5], [0, 1]),
        ([0], [2], [0, 2]),
        ([0, 1], [2, 3], [0, 2]),
    ]:
        with pytest.raises(ValueError):
            compiled.fill_packs(
                tokens,
                None,
                np.asarray(starts, np.int64),
                np.asarray(lengths, np.int32),
                np.asarray(offsets, np.int64),
                None,
                0,
                *outputs,
            )
    assert not any(output.any() for output in outputs)
