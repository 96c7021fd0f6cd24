"""A live plan's batches in PyTorch, and the state that goes on from there."""

import itertools
import json

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from phalanx.data import IterableSource, PackingConfig, StreamingPlan, StreamingPlanConfig  # noqa: E402
from phalanx.integrations.live_loader import LiveTokens  # noqa: E402


def live() -> StreamingPlan:
    def rows(start: int):
        return ({"input_ids": [n % 50 + 1] * (n % 7 + 2)} for n in itertools.count(start))

    config = StreamingPlanConfig(packing=PackingConfig(max_length=16), rows=3, pool_packs=8)
    return StreamingPlan({"web": IterableSource(rows), "code": IterableSource(rows)}, config)


def test_batches_are_packed_rows_and_the_state_brings_back_the_next():
    plan = live()
    loader = iter(DataLoader(LiveTokens(plan), batch_size=None))
    for step in range(20):
        batch = next(loader)
        assert batch["input_ids"].shape == (3, 16) and batch.index == step
        for name in batch.sample_ids:
            source, _, place = name.partition("/")
            assert source in ("web", "code") and int(place) % 50 + 1 in batch["input_ids"]
        first = (batch["position_ids"] == 0) | (batch["input_ids"] == 0)
        assert ((batch["labels"] == -100) == first).all()
    again = live()
    again.load_state_dict(json.loads(json.dumps(plan.state_dict())))
    mine, theirs = next(loader), next(iter(LiveTokens(again)))
    assert mine.sample_ids == theirs.sample_ids and torch.equal(mine["input_ids"], theirs["input_ids"])


def test_varlen_batches_hold_the_same_samples_without_padding():
    padded, flat = iter(LiveTokens(live())), iter(LiveTokens(live(), attention="varlen"))
    for _ in range(12):
        rows, row = next(padded), next(flat)
        assert row.sample_ids == rows.sample_ids and row.sample_rows == rows.sample_rows
        assert "attention_mask" not in row and "use_cache" not in row
        real = rows["input_ids"] != 0
        for name in ("input_ids", "labels", "position_ids"):
            assert torch.equal(row[name], rows[name][real][None])
        ends = row["cu_seqlens"].tolist()
        lengths = [after - before for before, after in itertools.pairwise(ends)]
        assert lengths == [int(name.partition("/")[2]) % 7 + 2 for name in row.sample_ids]
        assert row["cu_seqlens"].dtype == torch.int32 and row["max_seqlen"] == max(lengths)
        assert row["position_ids"][0, ends[:-1]].tolist() == [0] * len(lengths)


def test_samples_are_aligned_and_true_lengths_stay_known():
    plain, aligned = (
        next(iter(LiveTokens(live(), attention="varlen", align=align, pad_id=99))) for align in (1, 4)
    )
    true, padded = aligned["cu_seqlens"].tolist(), aligned["cu_seqlens_padded"].tolist()
    assert true == plain["cu_seqlens"].tolist() and "cu_seqlens_padded" not in plain
    for sample, (begin, end) in enumerate(itertools.pairwise(padded)):
        length = true[sample + 1] - true[sample]
        assert (end - begin) % 4 == 0 and 0 <= end - begin - length < 4
        here = slice(true[sample], true[sample + 1])
        assert torch.equal(aligned["input_ids"][0, begin : begin + length], plain["input_ids"][0, here])
        assert (aligned["input_ids"][0, begin + length : end] == 99).all()
        assert (aligned["labels"][0, begin + length : end] == -100).all()
        assert aligned["position_ids"][0, begin:end].tolist() == list(range(end - begin))
    assert aligned["max_seqlen"] == 8


def test_what_a_live_plan_cannot_do_is_said():
    with pytest.raises(ValueError, match="aligned with attention='varlen' only"):
        LiveTokens(live(), align=4)
    with pytest.raises(ValueError, match="align must be at least 1, got 0"):
        LiveTokens(live(), attention="varlen", align=0)
