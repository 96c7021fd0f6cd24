"""Division of batches among ranks, with load balancing and resumption on a different number of ranks."""

import dataclasses
import heapq
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Float64, Int32, Int64
from pydantic import Field

from phalanx.config import Config, FrozenModel, load_config
from phalanx.data.plans.epoch import EpochBatches, interleave_by_size
from phalanx.ragged import sum_groups


class RemainderPolicy(StrEnum):
    """Policy for epochs in which the number of batches is not divisible by the number of ranks."""

    DROP = "drop"
    """Leave out the last batches of the epoch, so that the number of batches becomes divisible by the number
    of ranks."""
    REPEAT = "repeat"
    """Repeat the first batches of the epoch, so that the number of batches becomes divisible by the number of
    ranks."""
    SPLIT = "split"
    """Split the batches with the most rows in half until the number of batches is divisible by the number of
    ranks. Usually, no sample is dropped or repeated. However, batches with a single row cannot be split. If
    no other batches are left, the first batches are repeated, because no rank can train on an empty batch."""


class ShardingConfig(Config):
    """Sharding settings. Together with the plan, they determine the batches of every rank."""

    world_size: int = Field(default=1, ge=1)
    """Number of ranks."""
    policy: RemainderPolicy = RemainderPolicy.SPLIT
    """What to do if the number of batches is not divisible by the number of ranks."""
    balance: bool = False
    """Give all ranks batches of about the same cost in each step."""
    d_model: int | None = Field(default=None, ge=1)
    """Hidden size of the transformer, used to include matrix products in the estimated cost of a batch. If it
    is None, the estimate includes only attention."""

    @classmethod
    def resolve(cls, world_size: "int | ShardingConfig", **settings: Any) -> "ShardingConfig":
        """Return `world_size` if it is a `ShardingConfig`. Otherwise, create one with the given settings.

        Raises:
            ValueError: If `world_size` is a `ShardingConfig` and there are settings, or if a setting is
                unknown or invalid.
        """
        if not isinstance(world_size, ShardingConfig):
            return load_config(cls, settings={"world_size": world_size, **settings})
        if settings:
            raise ValueError(
                f"{', '.join(settings)} cannot be combined with a ShardingConfig; set all settings in the "
                f"ShardingConfig, or pass a number of ranks instead"
            )
        return world_size

    def check_rank(self, rank: int) -> None:
        """Raise `ValueError` unless `rank` is between 0 and `world_size - 1`."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank must be between 0 and {self.world_size - 1}, got {rank}")


class ShardInfo(ShardingConfig):
    """Description of a shard: its sharding settings, its rank, and the fingerprint of the complete plan."""

    rank: int
    """Rank to which the shard belongs, counted from 0."""
    plan_fingerprint: str
    """Fingerprint of the complete plan."""


class ShardBalance(FrozenModel):
    """Measures of how evenly the work is divided among ranks. A value of 1 means perfect balance."""

    by_rank: float
    """Total cost of the busiest rank, divided by the mean total cost of a rank. If ranks wait for each other
    only at the end of the epoch, the epoch takes this many times as long as with perfect balance."""
    by_step: float
    """The highest cost on any rank in a step, summed over all steps and divided by the mean total cost of a
    rank. If ranks wait for each other after every step, the epoch takes this many times as long as with
    perfect balance."""


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedEpoch:
    """The batches of an epoch, assigned to ranks.

    In step `s`, rank `r` has batch `sequence[s * world_size + r]`.
    """

    batches: EpochBatches
    """Batches of the epoch, some of which may have been split."""
    sequence: Int64[np.ndarray, " steps_times_ranks"]
    """Batch indices in step-major order: the batch of every rank for step 0, then for step 1, and so on."""
    world_size: int

    def shard(self, rank: int) -> EpochBatches:
        """Return the batches of one rank."""
        return self.batches.take(self.sequence[rank :: self.world_size])

    def measure_balance(
        self, lengths: Int32[np.ndarray, " samples"], d_model: int | None = None
    ) -> ShardBalance:
        """Measure how evenly the cost of the epoch is divided among ranks.

        Args:
            lengths: Lengths of the samples, in the order in which they appear in `batches`.
            d_model: Hidden size of the transformer, as in `ShardingConfig`.
        """
        costs = batch_costs(self.batches, lengths, d_model)[self.sequence].reshape(-1, self.world_size)
        ideal = float(costs.sum()) / self.world_size
        if not ideal:
            return ShardBalance(by_rank=1.0, by_step=1.0)
        by_rank, by_step = float(costs.sum(axis=0).max()), float(costs.max(axis=1).sum())
        return ShardBalance(by_rank=by_rank / ideal, by_step=by_step / ideal)

    def remaining(self, steps: int) -> EpochBatches:
        """Return the batches that no rank has processed after `steps` steps.

        Batches that the `drop` policy leaves out are included. They come last.
        """
        if not 0 <= steps * self.world_size <= len(self.sequence):
            raise ValueError(
                f"step must be between 0 and {len(self.sequence) // self.world_size}, got {steps}"
            )
        done = np.zeros(len(self.batches), bool)
        done[self.sequence[: steps * self.world_size]] = True
        later = np.concatenate([self.sequence[steps * self.world_size :], np.arange(len(self.batches))])
        _, first = np.unique(later, return_index=True)
        later = later[np.sort(first)]
        return self.batches.take(later[~done[later]])


def shard_epoch(
    batches: EpochBatches,
    lengths: Int32[np.ndarray, " samples"],
    spec: ShardingConfig,
    *,
    pad_to_longest: bool,
    seed: int,
) -> ShardedEpoch:
    """Divide the batches of an epoch among ranks.

    Without balancing, each step takes the next `world_size` batches. With balancing, each step consists of
    batches of similar cost, and the steps are shuffled. A single rank keeps the order of the epoch.

    Args:
        batches: Batches of the epoch.
        lengths: Lengths of the samples, in the order in which they appear in the batches.
        spec: Sharding settings.
        pad_to_longest: Pad each part of a split batch to its own longest sample. Otherwise, the parts keep
            the row length of the batch.
        seed: Seed of the epoch, used to shuffle balanced steps.
    """
    count, world_size = len(batches), spec.world_size
    extra = -count % world_size
    if spec.policy is RemainderPolicy.DROP:
        if 0 < count < world_size:
            raise ValueError(
                f"an epoch of {count} batches cannot be divided among {world_size} ranks with policy 'drop', "
                f"because no batch would be left; use 'split' or 'repeat', or fewer ranks"
            )
        sequence = np.arange(count - count % world_size)
    else:
        if spec.policy is RemainderPolicy.SPLIT:
            batches = _split_largest(batches, lengths, extra, pad_to_longest)
        sequence = np.resize(np.arange(len(batches)), count + extra)
    if spec.balance and world_size > 1 and len(sequence):
        costs = batch_costs(batches, lengths, spec.d_model)
        steps = sequence[balance_ranks(costs[sequence], world_size)].reshape(-1, world_size)
        bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(world_size,)))
        sequence = steps[interleave_by_size(batches.counts[steps[:, 0]], bits)].ravel()
    return ShardedEpoch(batches, sequence, world_size)


def batch_costs(
    batches: EpochBatches, lengths: Int32[np.ndarray, " samples"], d_model: int | None = None
) -> Float64[np.ndarray, " batches"]:
    """Return the estimated cost of each batch. The unit is the cost of attention for one pair of positions.

    The cost of attention is the number of rows times the square of the padded row length. Tokens of packed
    samples attend only to tokens of the same sample, so their cost is the sum of the squared sample lengths.
    With `d_model`, `6 * d_model` is added for every token including padding, because the matrix products of a
    transformer layer take `24 * d_model**2` FLOPs per token, and attention takes `4 * d_model` FLOPs per
    pair.
    """
    if batches.pack_offsets is not None:
        costs = batches.batch_sums(lengths.astype(np.int64) ** 2).astype(np.float64)
    else:
        costs = batches.row_counts * batches.max_lens.astype(np.float64) ** 2
    if d_model is None:
        return costs
    return costs + 6.0 * d_model * batches.row_counts * batches.max_lens


def pack_costs(
    lengths: Int32[np.ndarray, " samples"],
    offsets: Int64[np.ndarray, " packs_and_one"],
    d_model: int | None = None,
) -> Float64[np.ndarray, " packs"]:
    """Return the estimated cost of each pack. Unlike in `batch_costs`, padding is not counted."""
    exact = lengths.astype(np.int64)
    costs = exact**2 if d_model is None else exact**2 + 6 * d_model * exact
    return sum_groups(costs, offsets).astype(np.float64)


def balance_ranks(costs: Float64[np.ndarray, " items"], world_size: int) -> Int64[np.ndarray, " items"]:
    """Return item indices in an order that balances the cost per rank within each step and over all steps.

    A step is a group of `world_size` consecutive items, one for each rank. Items are sorted by
    descending cost and divided into steps. Within each step, the most expensive item is assigned to the rank
    with the lowest total cost so far, the second most expensive item to the next rank, and so on. Steps are
    processed in descending order of the difference between their highest and lowest cost, but keep their
    position in the result. If the number of items is not a multiple of `world_size`, the cheapest items are
    left over and come last.
    """
    by_cost = np.argsort(-costs, kind="stable")
    divisible = len(costs) - len(costs) % world_size
    groups = by_cost[:divisible].reshape(-1, world_size)
    group_costs = costs[groups]
    spread = group_costs[:, 0] - group_costs[:, -1]
    loads = np.zeros(world_size)
    for group in np.argsort(-spread, kind="stable")[: np.count_nonzero(spread)].tolist():
        ranks = np.argsort(loads, kind="stable")
        groups[group, ranks] = groups[group].copy()
        loads[ranks] += group_costs[group]
    return np.concatenate([groups.ravel(), by_cost[divisible:]])


def _split_largest(
    batches: EpochBatches, lengths: Int32[np.ndarray, " samples"], extra: int, pad_to_longest: bool
) -> EpochBatches:
    """Repeatedly split the batch with the most rows into two halves.

    Stop when there are `extra` additional batches, or when every batch has a single row.
    """
    if not extra or not len(batches):
        return batches
    rows = batches.row_counts
    largest = np.argsort(-rows, kind="stable")[:extra]
    starts = batches.row_offsets
    heap = [(-int(rows[batch]), int(starts[batch]), int(batch)) for batch in largest]
    heapq.heapify(heap)
    cuts: list[tuple[int, int]] = []
    while heap and heap[0][0] < -1 and len(cuts) < extra:
        negative_rows, start, batch = heapq.heappop(heap)
        first = -negative_rows - (-negative_rows) // 2
        cuts.append((start + first, batch))
        heapq.heappush(heap, (-first, start, batch))
        heapq.heappush(heap, (negative_rows + first, start + first, batch))
    cuts.sort()
    positions = np.array([row for row, _ in cuts], np.int64)
    if batches.pack_offsets is not None:
        positions = batches.pack_offsets[positions]
    owners = np.array([batch for _, batch in cuts], np.int64)
    source = np.insert(np.arange(len(batches)), owners, owners)
    offsets = np.insert(batches.offsets, owners + 1, positions)
    max_lens = batches.max_lens[source]
    if pad_to_longest and batches.pack_offsets is None:
        for batch in np.flatnonzero(np.isin(source, owners)).tolist():
            max_lens[batch] = lengths[offsets[batch] : offsets[batch + 1]].max()
    return EpochBatches(batches.order, offsets, batches.bucket_ids[source], max_lens, batches.pack_offsets)
