"""A live plan's batches in PyTorch, and the state that goes on from there."""

import itertools
import json

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from phalanx.adapters.live_loader import LiveTokens  # noqa: E402
from phalanx.tokens import IterableSource, LivePlan, LivePlanConfig, PackingConfig  # noqa: E402


def live() -> LivePlan:
    def rows(start: int):
        return ({"input_ids": [n % 50 + 1] * (n % 7 + 2)} for n in itertools.count(start))

    config = LivePlanConfig(packing=PackingConfig(max_length=16), rows=3, pool_packs=8)
    return LivePlan({"web": IterableSource(rows), "code": IterableSource(rows)}, config)


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


def test_what_a_live_plan_cannot_do_is_said():
    with pytest.raises(ValueError, match="come padded"):
        LiveTokens(live(), attention="varlen")
