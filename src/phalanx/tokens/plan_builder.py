"""Making batch plans from lengths and settings, and making them again to see whether they are the same.

What a plan is lives in `plan`, and what tells two plans apart in `plan_comparison`.
"""

import asyncio

from phalanx.tokens.admission import SkippedSample, admit
from phalanx.tokens.config import BatchingConfig
from phalanx.tokens.lengths import Lengths, as_length_table
from phalanx.tokens.ordering import epoch_seed, order_epoch
from phalanx.tokens.packing_config import OverlongPolicy, PackingConfig
from phalanx.tokens.plan import BatchPlan, BatchPlanMeta, EpochPlan
from phalanx.tokens.plan_comparison import PlanDifference, compare_plans


class BatchPlanBuilder:
    """Plans epochs of batches; lengths and settings are checked at once, batches made by `build`."""

    def __init__(
        self,
        lengths: Lengths,
        batching_config: BatchingConfig,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        packing: PackingConfig | None = None,
    ) -> None:
        self.table = as_length_table(lengths)
        self.batching_config = batching_config
        self.dataset_hash = dataset_hash
        self.tokenizer_hash = tokenizer_hash
        self.packing = packing
        self._admission = admit(self.table, batching_config, packing)

    @property
    def num_skipped(self) -> int:
        """Samples that fit no batch."""
        return self._admission.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every sample that fits no batch, with the reason."""
        return self._admission.skipped

    async def build(self, num_epochs: int = 1) -> BatchPlan:
        """`build_now` without blocking the event loop."""
        return await asyncio.to_thread(self.build_now, num_epochs)

    def build_now(self, num_epochs: int = 1) -> BatchPlan:
        """Plan epochs 0 to `num_epochs` - 1."""
        if num_epochs < 1:
            raise ValueError(f"a plan needs at least one epoch, got num_epochs={num_epochs}")
        return self._build(range(num_epochs))

    def _build(self, epochs: range) -> BatchPlan:
        cuts = self.packing is not None and self.packing.overlong is OverlongPolicy.TRUNCATE
        longest = self.packing.max_length if self.packing is not None and cuts else None
        seed = self.batching_config.seed
        plans = [
            EpochPlan(
                epoch, epoch_seed(seed, epoch), order_epoch(self._admission, epoch), self.table, longest
            )
            for epoch in epochs
        ]
        meta = BatchPlanMeta(
            dataset_hash=self.dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
            batching=self.batching_config,
            pack_config=self.packing,
            num_epochs=len(plans),
        )
        return BatchPlan(meta, self.table, tuple(plans))


def verify_batch_plan(plan: BatchPlan, lengths: Lengths) -> PlanDifference | None:
    """None if planning these lengths with the plan's own settings gives the plan again, else what differs.

    A shard is made again by sharding the plan made again. What `remaining` gives is not a plan of its own and
    cannot be made again: verify the whole plan instead.
    """
    meta = plan.meta
    builder = BatchPlanBuilder(
        lengths, meta.batching, meta.dataset_hash, meta.tokenizer_hash, meta.pack_config
    )
    first = plan.epochs[0].epoch if plan.epochs else 0
    again = builder._build(range(first, first + plan.num_epochs))
    if meta.shard is not None:
        again = again.shard(meta.shard.rank, meta.shard.world_size, meta.shard.policy, meta.shard.balance)
    return compare_plans(plan, again)
