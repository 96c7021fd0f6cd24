"""Random lengths and configs for property tests of batch plans."""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from phalanx.data import (
    BatchingConfig,
    BatchingMode,
    BatchPlan,
    BatchPlanBuilder,
    LengthTable,
    OverlongPolicy,
    PackingConfig,
    PackingMode,
    PadPolicy,
)


def lognormal_lengths(count: int) -> LengthTable:
    """Draw lengths from the log-normal distribution that published comparisons use."""
    draws = np.random.default_rng(0).lognormal(np.log(300) - 0.5, 1.0, count)
    return LengthTable.from_arrays(None, np.clip(np.rint(draws), 1, 2048).astype(np.int32))


@st.composite
def length_maps(draw: st.DrawFn, min_size: int = 0, max_size: int = 60) -> dict[str, int]:
    """Draw lengths by id. They lie on both sides of the bucket edges and token budgets below."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=min_size, max_size=max_size))
    return {f"s{row}": length for row, length in enumerate(lengths)}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Arguments of a plan.

    Strategies draw recipes and tests build the plans, because type checking uses `random`, which Hypothesis
    does not allow in a strategy.
    """

    lengths: dict[str, int]
    batching: dict[str, Any]
    packing: dict[str, Any] | None = None

    @property
    def config(self) -> BatchingConfig:
        return BatchingConfig(**self.batching)

    def plan(self, num_epochs: int = 1) -> BatchPlan:
        packing = None if self.packing is None else PackingConfig(**self.packing)
        return BatchPlanBuilder(self.lengths, self.config, packing=packing).build(num_epochs)


@st.composite
def settings_of_batching(draw: st.DrawFn, drop_last: bool | None = None) -> dict[str, Any]:
    """Draw small buckets and budgets. Some budgets are below an edge, and some samples fit no bucket."""
    return {
        "mode": draw(st.sampled_from(BatchingMode)),
        "pad_policy": draw(st.sampled_from(PadPolicy)),
        "token_budget": draw(st.integers(6, 90)),
        "bucket_edges": draw(st.sampled_from([(4,), (4, 8), (5, 10, 20)])),
        "max_sample_length": draw(st.sampled_from([24, 32])),
        "seed": draw(st.integers(0, 5)),
        "drop_last": draw(st.booleans()) if drop_last is None else drop_last,
        "interleave_buckets": draw(st.booleans()),
        "pool_batches": draw(st.integers(1, 6)),
    }


@st.composite
def settings_of_packing(draw: st.DrawFn, token_budget: int) -> dict[str, Any] | None:
    """Draw None or a packing config that fits the budget."""
    if draw(st.booleans()):
        return None
    separate = draw(st.booleans())
    return {
        "mode": draw(st.sampled_from(PackingMode)),
        "max_length": draw(st.integers(3, token_budget)),
        "pad_to_max": draw(st.booleans()),
        "separator_token_id": 0 if separate else None,
        "overlong": draw(st.sampled_from([OverlongPolicy.SKIP, OverlongPolicy.TRUNCATE])),
    }


@st.composite
def recipes(draw: st.DrawFn, min_size: int = 0, drop_last: bool | None = None, packed: bool = True) -> Recipe:
    """Draw recipes of any mode. Some of them use packing unless `packed` is false."""
    batching = draw(settings_of_batching(drop_last))
    packing = draw(settings_of_packing(batching["token_budget"])) if packed else None
    return Recipe(draw(length_maps(min_size)), batching, packing)


def small_plan(num_epochs: int = 1, samples: int = 50, packing: PackingConfig | None = None) -> BatchPlan:
    """Build a plan of samples with the lengths 100, 110, 120, ..."""
    lengths = {f"s{row}": 100 + 10 * row for row in range(samples)}
    config = BatchingConfig.predictable(
        token_budget=2048, bucket_edges=(128, 256, 512), max_sample_length=1024
    )
    return BatchPlanBuilder(lengths, config, "data_v1", "tokenizer_v1", packing).build(num_epochs)


def sample_lists(plan: BatchPlan, epoch: int = 0) -> list[tuple[str, ...]]:
    """Return the sample ids of each batch of an epoch."""
    return [batch.sample_ids for batch in plan.iter_epoch(epoch)]
