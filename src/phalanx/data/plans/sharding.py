"""Sharding an epoch over ranks: equal counts by a stated policy, costs that finish together, resuming.

Everything here is arrays of one epoch; `BatchPlan.shard` and `BatchPlan.remaining` apply it to plans.
"""

import dataclasses
import heapq
from enum import StrEnum

import numpy as np
from jaxtyping import Float64, Int32, Int64
from pydantic import Field

from phalanx.config import FrozenModel
from phalanx.data.plans.arrays import EpochBatches
from phalanx.data.plans.epoch import spread_order


class ShardPolicy(StrEnum):
    """What is done where batches do not divide by the ranks; each rank gets the same number in any case."""

    DROP = "drop"
    """The last few batches of the epoch are left out."""
    REPEAT = "repeat"
    """The first few batches of the epoch come twice."""
    PAD = "pad"
    """Nothing is lost or repeated: the batches with the most rows are halved until the number divides. Only
    where every batch is down to one row are the first few repeated, because no rank can train on none."""


class ShardSpec(FrozenModel):
    """How an epoch is dealt to ranks; with the plan it decides every rank's batches."""

    world_size: int = Field(default=1, ge=1)
    """Ranks in all."""
    policy: ShardPolicy = ShardPolicy.PAD
    """How equal counts come about."""
    balance: bool = False
    """Whether each step's batches cost about the same."""
    model_width: int | None = Field(default=None, ge=1)
    """Hidden size of the transformer whose FLOPs are balanced; None: attention alone."""

    @classmethod
    def of(
        cls, world_size: "int | ShardSpec", policy: ShardPolicy | str, balance: bool, model_width: int | None
    ) -> "ShardSpec":
        """The spec itself, where one is given for the number of ranks, or one from all of its parts."""
        if isinstance(world_size, ShardSpec):
            return world_size
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        if model_width is not None and model_width < 1:
            raise ValueError(f"model_width must be at least 1, got {model_width}")
        return cls(
            world_size=world_size, policy=ShardPolicy(policy), balance=balance, model_width=model_width
        )


class ShardInfo(ShardSpec):
    """Which part of a plan a shard is."""

    rank: int
    """From 0."""
    plan_fingerprint: str
    """The whole plan's."""


class ShardBalance(FrozenModel):
    """How much longer than the ideal ranks work, in attention cost or, for a model width, in FLOPs."""

    by_rank: float
    """The busiest rank's cost over the mean: ranks that wait for each other at the end of the epoch."""
    by_step: float
    """The same where ranks wait for each other after every step."""
    steps: int
    """Batches of each rank."""


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedEpoch:
    """An epoch of all ranks: rank r does batch `sequence[step * world_size + r]` in each step."""

    batches: EpochBatches
    """The epoch's batches, after some were halved."""
    sequence: Int64[np.ndarray, " steps_times_ranks"]
    """Batches in the order of their steps."""
    world_size: int

    def shard(self, rank: int) -> EpochBatches:
        """The batches of one rank, in its order."""
        return self.batches.take(self.sequence[rank :: self.world_size])

    def remaining(self, steps: int) -> EpochBatches:
        """What no rank has done after this many steps, each batch once; dropped batches come last."""
        if not 0 <= steps * self.world_size <= len(self.sequence):
            raise ValueError(f"each rank has {len(self.sequence) // self.world_size} batches, not {steps}")
        done = np.zeros(len(self.batches), bool)
        done[self.sequence[: steps * self.world_size]] = True
        later = np.concatenate([self.sequence[steps * self.world_size :], np.arange(len(self.batches))])
        _, first = np.unique(later, return_index=True)
        later = later[np.sort(first)]
        return self.batches.take(later[~done[later]])


def shard_epoch(
    batches: EpochBatches,
    lengths: Int32[np.ndarray, " samples"],
    spec: ShardSpec,
    *,
    pad_to_longest: bool,
    seed: int,
) -> ShardedEpoch:
    """Deal an epoch's batches to ranks; `lengths` are those of the samples in the batches' order.

    Unbalanced, step s takes the next `world_size` batches of the epoch. Balanced, batches of like cost form a
    step, the dearest of which goes to the least loaded rank, and the steps are shuffled.
    """
    count, world_size = len(batches), spec.world_size
    extra = -count % world_size
    if spec.policy is ShardPolicy.DROP:
        if 0 < count < world_size:
            raise ValueError(
                f"an epoch of {count} batches cannot be dealt to {world_size} ranks under the policy 'drop', "
                f"which would leave none; use 'pad' or 'repeat', or fewer ranks"
            )
        sequence = np.arange(count - count % world_size)
    else:
        if spec.policy is ShardPolicy.PAD:
            batches = _split_largest(batches, lengths, extra, pad_to_longest)
        sequence = np.resize(np.arange(len(batches)), count + extra)
    if spec.balance and len(sequence):
        costs = batch_costs(batches, lengths, spec.model_width)
        sequence = _balanced(batches, costs, sequence, world_size, seed)
    return ShardedEpoch(batches, sequence, world_size)


def batch_costs(
    batches: EpochBatches, lengths: Int32[np.ndarray, " samples"], model_width: int | None = None
) -> Float64[np.ndarray, " batches"]:
    """What each batch costs, in pairs of positions: for attention, rows times the padded length squared.

    Packed samples see only themselves, so there it is the sum of the squares of the samples' lengths. With a
    model's width (its hidden size) every padded token costs six times the width more: in a transformer layer
    the matrices take 24 width^2 operations a token, attention 4 width for each pair.
    """
    if batches.pack_offsets is not None:
        costs = batches.sums(lengths.astype(np.int64) ** 2).astype(np.float64)
    else:
        costs = batches.row_counts * batches.max_lens.astype(np.float64) ** 2
    if model_width is None:
        return costs
    return costs + 6.0 * model_width * batches.row_counts * batches.max_lens


def measure_balance(
    epoch: ShardedEpoch, lengths: Int32[np.ndarray, " samples"], model_width: int | None = None
) -> ShardBalance:
    """How evenly the ranks share the cost."""
    costs = batch_costs(epoch.batches, lengths, model_width)[epoch.sequence].reshape(-1, epoch.world_size)
    total = float(costs.sum())
    ideal = total / epoch.world_size if total else 1.0
    return ShardBalance(
        by_rank=float(costs.sum(axis=0).max()) / ideal if total else 1.0,
        by_step=float(costs.max(axis=1).sum()) / ideal if total else 1.0,
        steps=len(costs),
    )


def _balanced(
    batches: EpochBatches,
    costs: Float64[np.ndarray, " batches"],
    sequence: Int64[np.ndarray, " dealt"],
    world_size: int,
    seed: int,
) -> Int64[np.ndarray, " dealt"]:
    costs = costs[sequence]
    by_cost = np.argsort(-costs, kind="stable")
    steps, costs = sequence[by_cost].reshape(-1, world_size), costs[by_cost].reshape(-1, world_size)
    spread = costs[:, 0] - costs[:, -1]
    loads = np.zeros(world_size)
    # The step with the widest spread first; in each the dearest batch goes to the least loaded rank.
    for step in np.argsort(-spread, kind="stable")[: np.count_nonzero(spread)].tolist():
        ranks = np.argsort(loads, kind="stable")
        steps[step, ranks] = steps[step].copy()
        loads[ranks] += costs[step]
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(world_size,)))
    return steps[spread_order(batches.counts[steps[:, 0]], bits)].ravel()


def _split_largest(
    batches: EpochBatches, lengths: Int32[np.ndarray, " samples"], extra: int, pad_to_longest: bool
) -> EpochBatches:
    """As many batches more, by halving those with the most rows; fewer where all are down to one row."""
    if not extra or not len(batches):
        return batches
    rows = batches.row_counts
    largest = np.argsort(-rows, kind="stable")[:extra]
    starts = batches.pack_starts
    heap = [(-int(rows[batch]), int(starts[batch]), int(batch)) for batch in largest]
    heapq.heapify(heap)
    cuts: list[tuple[int, int]] = []
    while heap and heap[0][0] < -1 and len(cuts) < extra:
        held, start, batch = heapq.heappop(heap)
        first = -held - (-held) // 2
        cuts.append((start + first, batch))
        heapq.heappush(heap, (-first, start, batch))
        heapq.heappush(heap, (held + first, start + first, batch))
    cuts.sort()
    places = np.array([row for row, _ in cuts], np.int64)
    if batches.pack_offsets is not None:
        places = batches.pack_offsets[places]
    owners = np.array([batch for _, batch in cuts], np.int64)
    source = np.insert(np.arange(len(batches)), owners, owners)
    offsets = np.insert(batches.offsets, owners + 1, places)
    max_lens = batches.max_lens[source]
    if pad_to_longest and batches.pack_offsets is None:
        for batch in np.flatnonzero(np.isin(source, owners)).tolist():
            max_lens[batch] = lengths[offsets[batch] : offsets[batch + 1]].max()
    return EpochBatches(batches.order, offsets, batches.bucket_ids[source], max_lens, batches.pack_offsets)
