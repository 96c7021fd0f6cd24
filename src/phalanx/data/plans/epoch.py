"""Plans one epoch: selects and shuffles samples, and forms batches from buckets, pools or packs."""

import dataclasses
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, Int8, Int16, Int32, Int64

from phalanx.config import check_type
from phalanx.data.lengths import LengthTable, SkippedSample
from phalanx.data.packing import OverlongPolicy, PackingConfig, assign_packs
from phalanx.data.plans.batching_config import BatchingConfig, PadPolicy
from phalanx.native import require_native
from phalanx.ragged import counts_to_offsets, gather_groups, sum_groups

# Number of parts of the epoch over which batches of similar size are spread.
_NUM_SLOTS = 32
# Number of elements that are processed together, so that they stay in the cache.
_BLOCK = 1 << 16
# If a dataset has at least this many batches' worth of samples, it is divided into at least two pools.
_MIN_BATCHES_TO_DIVIDE = 8


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBatches:
    """Batches of an epoch as arrays.

    Batch `b` consists of the samples `order[offsets[b]:offsets[b + 1]]`, padded to `max_lens[b]`.
    """

    order: Int32[np.ndarray, " samples"]
    """Indices of the samples in the length table: those of batch 0, then those of batch 1, and so on."""
    offsets: Int64[np.ndarray, " batches_and_one"]
    """Position in `order` at which each batch starts, followed by the total number of samples."""
    bucket_ids: Int16[np.ndarray, " batches"]
    """Index of the bucket that the longest row of each batch belongs to."""
    max_lens: Int32[np.ndarray, " batches"]
    """Row length of each batch after padding, in tokens."""
    pack_offsets: Int64[np.ndarray, " packs_and_one"] | None = None
    """Position in `order` at which each pack starts, followed by the total number of samples. A pack is a row
    that may contain several samples. None if samples are not packed."""

    def __len__(self) -> int:
        return len(self.bucket_ids)

    @property
    def counts(self) -> Int64[np.ndarray, " batches"]:
        """Number of samples in each batch."""
        return np.diff(self.offsets)

    @property
    def row_offsets(self) -> Int64[np.ndarray, " batches_and_one"]:
        """Index of the first row of each batch, followed by the total number of rows.

        A row is a pack, or a single sample if samples are not packed.
        """
        if self.pack_offsets is None:
            return self.offsets
        return np.searchsorted(self.pack_offsets, self.offsets).astype(np.int64)

    @property
    def row_counts(self) -> Int64[np.ndarray, " batches"]:
        """Number of rows in each batch. A row is a pack, or a single sample if samples are not packed."""
        return np.diff(self.row_offsets)

    @property
    def padded_tokens(self) -> Int64[np.ndarray, " batches"]:
        """Number of tokens in each batch, including padding."""
        return self.row_counts * self.max_lens

    def take(self, indices: Int[np.ndarray, " chosen"]) -> "EpochBatches":
        """Return the batches with these indices, in this order. An index may occur more than once."""
        offsets = counts_to_offsets(self.counts[indices])
        order = np.empty(int(offsets[-1]), self.order.dtype)
        require_native("batch planning").gather_runs(
            np.ascontiguousarray(self.order), self.offsets[indices], self.offsets[1:][indices], order
        )
        pack_offsets = None
        if self.pack_offsets is not None:
            packs, _ = gather_groups(self.row_offsets, indices)
            pack_offsets = counts_to_offsets(np.diff(self.pack_offsets)[packs])
        return EpochBatches(order, offsets, self.bucket_ids[indices], self.max_lens[indices], pack_offsets)

    def batch_sums(self, values: Int64[np.ndarray, " samples"]) -> Int64[np.ndarray, " batches"]:
        """Return the sum of `values` over each batch.

        `values` has one element per sample, in the order of `order`.
        """
        return sum_groups(values, self.offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class KeptSamples:
    """The samples of a length table that fit in a batch ("kept" samples), and the batching settings."""

    table: LengthTable
    config: BatchingConfig
    packing: PackingConfig | None
    subset: Int32[np.ndarray, " kept"] | None
    """Table indices of the kept samples in ascending order. None if all samples are kept."""
    lengths: Int32[np.ndarray, " kept"]
    """Lengths of the kept samples, after truncation if the packing config truncates overlong samples."""

    @property
    def num_kept(self) -> int:
        """Number of kept samples."""
        return len(self.lengths)

    @property
    def num_skipped(self) -> int:
        """Number of skipped samples."""
        return len(self.table) - self.num_kept

    @cached_property
    def compact_lengths(self) -> Int16[np.ndarray, " kept"] | Int32[np.ndarray, " kept"]:
        """Lengths of the kept samples, as int16 if all values fit, and otherwise as int32.

        Random access to int16 is faster, because more of the lengths fit in the cache.
        """
        fits = self.config.max_sample_length <= np.iinfo(np.int16).max
        return self.lengths.astype(np.int16) if fits else self.lengths

    def gather_indices(self, positions: Int32[np.ndarray, " any"]) -> Int32[np.ndarray, " any"]:
        """Convert indices of kept samples to indices in the length table."""
        return positions if self.subset is None else self.subset[positions]

    @cached_property
    def bucket_ids(self) -> Int8[np.ndarray, " kept"] | Int16[np.ndarray, " kept"]:
        """Bucket index of each kept sample, as int8 if there are fewer than 128 buckets, else as int16."""
        spec = self.config.bucket_spec
        return spec.get_bucket_ids(self.lengths).astype(np.int8 if spec.num_buckets < 128 else np.int16)

    @cached_property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """The skipped samples, in the order of the length table, with the reason why each was skipped."""
        if self.subset is None:
            return ()
        rows = np.delete(np.arange(len(self.table)), self.subset).tolist()
        found = ((str(self.table.ids[row]), int(self.table.lengths[row])) for row in rows)
        return tuple(
            SkippedSample(sample_id=name, length=length, reason=self._skip_reason(length))
            for name, length in found
        )

    def _skip_reason(self, length: int) -> str:
        config = self.config
        if length < config.min_length:
            return f"shorter than min_length {config.min_length}"
        if length > config.max_sample_length:
            return f"longer than max_sample_length {config.max_sample_length}"
        if self.packing is not None:
            return f"longer than the packing max_length {self.packing.max_length}"
        return f"longer than token_budget {config.token_budget}"


def select_samples(
    table: LengthTable, config: BatchingConfig, packing: PackingConfig | None = None
) -> KeptSamples:
    """Select the samples that fit in a batch.

    With packing, `packing.overlong` decides whether samples that are longer than a row are skipped, truncated
    or rejected with `ValueError`. Plans cannot split samples, so `split` rejects such samples, too.
    """
    check_type(config, BatchingConfig, "batching_config")
    lengths = table.lengths
    row_length = config.token_budget
    if packing is not None:
        check_type(packing, PackingConfig, "packing")
        row_length = packing.max_length
        if row_length > config.token_budget:
            raise ValueError(
                f"the packing max_length {row_length} exceeds token_budget {config.token_budget}; increase "
                "token_budget or decrease max_length"
            )
        if packing.overlong in (OverlongPolicy.ERROR, OverlongPolicy.SPLIT):
            _reject_overlong(table, packing, config)
    truncate = packing is not None and packing.overlong is OverlongPolicy.TRUNCATE
    max_length = config.max_sample_length if truncate else min(config.max_sample_length, row_length)
    subset = None
    if len(lengths) and not config.min_length <= lengths.min() <= lengths.max() <= max_length:
        subset = np.flatnonzero((lengths >= config.min_length) & (lengths <= max_length)).astype(np.int32)
        lengths = lengths[subset]
    if truncate:
        lengths = np.minimum(lengths, np.int32(row_length))
    return KeptSamples(table, config, packing, subset, lengths)


def _reject_overlong(table: LengthTable, packing: PackingConfig, config: BatchingConfig) -> None:
    overlong = (table.lengths > packing.max_length) & (table.lengths <= config.max_sample_length)
    if not overlong.any():
        return
    index = int(np.argmax(overlong))
    is_split = packing.overlong is OverlongPolicy.SPLIT
    reason = "a plan cannot split samples" if is_split else "overlong='error' rejects it"
    raise ValueError(
        f"sample {index} ({table.ids[index]!r}) has {table.lengths[index]} tokens, more than the packing "
        f"max_length {packing.max_length}, and {reason}; choose overlong='skip' or 'truncate', or increase "
        f"max_length"
    )


def plan_epoch(selected: KeptSamples, epoch: int, *, interleave_buckets: bool | None = None) -> EpochBatches:
    """Plan the batches of one epoch, in training order.

    Args:
        selected: Samples that fit in a batch, and the batching settings.
        epoch: Epoch number. Together with the seed, it determines the shuffle.
        interleave_buckets: If not None, overrides `BatchingConfig.interleave_buckets`.
    """
    config = selected.config
    bits = np.random.PCG64(epoch_seed(config.seed, epoch))
    if selected.packing is not None:
        batches, is_full = _form_pack_batches(selected, selected.packing, bits)
    elif config.is_predictable:
        batches, is_full = _form_bucket_batches(selected, bits)
    else:
        batches, is_full = _form_pool_batches(selected, bits)
    if config.drop_last and not is_full.all():
        batches = batches.take(np.flatnonzero(is_full))
    order = interleave_by_size(batches.counts, bits)
    interleave = config.interleave_buckets if interleave_buckets is None else interleave_buckets
    if not interleave:
        order = order[np.argsort(batches.bucket_ids[order], kind="stable")]
    return batches.take(order)


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the 64-bit seed of an epoch.

    The seed is a hash of `seed` and `epoch`, so that pairs such as (42, 1) and (43, 0) get different seeds.
    """
    if epoch < 0:
        raise ValueError(f"epoch must be at least 0, got {epoch}")
    return int(np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(1, np.uint64)[0])


def random_order(
    count: int, bits: np.random.PCG64, values: Int16[np.ndarray, " count"] | None = None
) -> Int32[np.ndarray, " count"]:
    """Return a random permutation of `range(count)`, and apply it to `values` in place if they are given.

    The raw output of the bit generator is used, because it is the same in all NumPy versions. Each 64-bit key
    consists of random high bits and the index as low bits, so that sorting the keys shuffles the indices.
    Keys with equal high bits keep their order. Among ten million keys, fewer than one in ten thousand are
    affected. Moving `values` along with the keys is much faster than indexing them with the permutation
    afterward.
    """
    low = np.uint64((1 << max(count - 1, 0).bit_length()) - 1)
    keys = np.asarray(bits.random_raw(count), np.uint64)
    # In blocks that fit in the cache, which also avoids the page faults of a large temporary array.
    for start in range(0, count, _BLOCK):
        block = keys[start : start + _BLOCK]
        block &= ~low
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    order = np.empty(count, np.int32)
    require_native("batch planning").sort_random_keys(keys, int(low), order, values)
    return order


def interleave_by_size(
    sizes: Int64[np.ndarray, " batches"], bits: np.random.PCG64
) -> Int32[np.ndarray, " batches"]:
    """Return batch indices in a random order that spreads the batches of every size evenly over the epoch.

    Batches are sorted by size and divided into groups of 32. The epoch is divided into 32 equal parts, and
    each part gets one batch of every group, at a random position. Each batch is still equally likely to be at
    any position.

    Args:
        sizes: Size of each batch.
        bits: Source of randomness.
    """
    count = len(sizes)
    shuffled = random_order(count, bits)
    # By size, and in random order among equal sizes. NumPy's stable sort of 16-bit integers is a radix sort.
    keys = sizes.astype(np.uint16) if sizes.max(initial=0) < 2**16 else sizes
    by_size = shuffled[np.argsort(keys[shuffled], kind="stable")]
    slots = np.arange(count) % _NUM_SLOTS
    full = count - count % _NUM_SLOTS
    # Shuffle the slots within each group by sorting random integers. The last group may be smaller.
    random = np.asarray(bits.random_raw(2 * count), np.uint64) >> np.uint64(11)
    within_group = np.argsort(random[:full].reshape(-1, _NUM_SLOTS), axis=1, kind="stable")
    within = np.append(
        (within_group + np.arange(0, full, _NUM_SLOTS)[:, None]).ravel(),
        full + np.argsort(random[full:count], kind="stable"),
    )
    group_sizes = np.full(count, _NUM_SLOTS)
    group_sizes[full:] = count - full
    times = (slots + random[count:] * 2.0**-53) / group_sizes
    order = np.argsort(times)
    ordered = times[order]
    if (ordered[1:] == ordered[:-1]).any():  # only a stable sort orders ties deterministically
        order = np.argsort(times, kind="stable")
    return by_size[within][order]


def _shuffle_with_lengths(
    selected: KeptSamples, bits: np.random.PCG64
) -> tuple[Int32[np.ndarray, " samples"], Int16[np.ndarray, " samples"] | Int32[np.ndarray, " samples"]]:
    """Return a random order of the kept samples, and their lengths in this order."""
    lengths = selected.compact_lengths
    if lengths.dtype != np.int16:
        order = random_order(selected.num_kept, bits)
        return order, lengths[order]
    lengths = lengths.copy()
    return random_order(selected.num_kept, bits, lengths), lengths


def _form_bucket_batches(
    selected: KeptSamples, bits: np.random.PCG64
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Form batches of samples from the same bucket, with as many rows as the token budget allows.

    Returns:
        The batches, and for each batch whether it is full.
    """
    config = selected.config
    sizes = np.bincount(selected.bucket_ids, minlength=len(config.bucket_widths))
    buckets = selected.bucket_ids.astype(np.int16)
    shuffled = random_order(selected.num_kept, bits, buckets)
    by_bucket = _group_by_bucket(shuffled, buckets.astype(selected.bucket_ids.dtype), sizes)
    capacities = [config.token_budget // width for width in config.bucket_widths]
    num_batches = [-(-int(size) // capacity) for size, capacity in zip(sizes, capacities, strict=True)]
    capacity = np.repeat(np.array(capacities, np.int64), num_batches)
    counts = capacity.copy()
    last = np.cumsum(num_batches)[sizes > 0] - 1
    counts[last] -= (np.array(num_batches) * capacities - sizes)[sizes > 0]
    bucket_ids = np.repeat(np.arange(len(num_batches), dtype=np.int16), num_batches)
    widths = np.array(config.bucket_widths, np.int32)[bucket_ids]
    order = selected.gather_indices(by_bucket)
    batches = EpochBatches(order, counts_to_offsets(counts), bucket_ids, widths)
    if config.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH and len(batches):
        longest = np.maximum.reduceat(selected.compact_lengths[by_bucket], batches.offsets[:-1])
        batches = dataclasses.replace(batches, max_lens=longest.astype(np.int32))
    return batches, counts == capacity


def _group_by_bucket(
    shuffled: Int32[np.ndarray, " samples"],
    bucket_ids: Int8[np.ndarray, " samples"] | Int16[np.ndarray, " samples"],
    sizes: Int64[np.ndarray, " buckets"],
) -> Int32[np.ndarray, " samples"]:
    """Sort shuffled samples by bucket, keeping their order within each bucket."""
    order = np.empty(len(shuffled), np.int32)
    heads = (np.cumsum(sizes) - sizes).tolist()
    for start in range(0, len(shuffled), _BLOCK):
        block = shuffled[start : start + _BLOCK]
        buckets = bucket_ids[start : start + _BLOCK]
        # NumPy's stable sort of small integers is a radix sort.
        block = block[np.argsort(buckets, kind="stable")]
        begin = 0
        for bucket, count in enumerate(np.bincount(buckets, minlength=len(sizes)).tolist()):
            order[heads[bucket] : heads[bucket] + count] = block[begin : begin + count]
            heads[bucket] += count
            begin += count
    return order


def _form_pool_batches(
    selected: KeptSamples, bits: np.random.PCG64
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Form batches of samples with similar lengths from pools.

    A pool is a part of the shuffled samples that is sorted by descending length, so that the first row of a
    batch is its longest. The last samples of a pool may be too few for a full batch. The leftover samples of
    all pools are divided into new pools, until a single pool holds all leftover samples. Therefore at most
    one batch is not full.

    Returns:
        The batches, and for each batch whether it is full.
    """
    config = selected.config
    shuffled, remaining_lengths = _shuffle_with_lengths(selected, bits)
    pool_size = _pool_size(config, selected.lengths)
    # Overwritten from the front: each pool is read before its batches are written over it.
    order, placed = shuffled, 0
    counts: list[int] = []
    longest: list[int] = []
    remaining, all_full = shuffled, True
    while len(remaining):
        left, left_lengths = [remaining[:0]], [remaining_lengths[:0]]
        num_before = len(counts)
        for start in range(0, len(remaining), pool_size):
            # One pool at a time fits in the cache, regardless of the size of the dataset.
            lengths = remaining_lengths[start : start + pool_size]
            # NumPy's stable sort of 16-bit integers is a radix sort.
            by_length = np.argsort(-lengths, kind="stable")
            part = remaining[start : start + pool_size][by_length]
            lengths = lengths[by_length].astype(np.int32)
            capacities = memoryview(config.token_budget // _batch_widths(config, lengths))  # type: ignore[arg-type, unused-ignore]
            begin, end = 0, len(part)
            while begin < end and begin + capacities[begin] <= end:
                counts.append(capacities[begin])
                longest.append(int(lengths[begin]))
                begin += capacities[begin]
            if begin < end and len(remaining) <= pool_size:
                counts.append(end - begin)
                longest.append(int(lengths[begin]))
                all_full, begin = False, end
            order[placed : placed + begin] = part[:begin]
            placed += begin
            left.append(part[begin:])
            left_lengths.append(lengths[begin:])
        if len(counts) == num_before:
            pool_size *= 2  # no pool filled a batch
        remaining, remaining_lengths = np.concatenate(left), np.concatenate(left_lengths)
    max_lengths = np.array(longest, np.int32)
    batches = EpochBatches(
        selected.gather_indices(order),
        counts_to_offsets(np.array(counts, np.int64)),
        config.bucket_spec.get_bucket_ids(max_lengths),
        _batch_widths(config, max_lengths),
    )
    is_full = np.ones(len(counts), bool)
    is_full[len(counts) - 1 :] = all_full
    return batches, is_full


def _form_pack_batches(
    selected: KeptSamples,
    packing: PackingConfig,
    bits: np.random.PCG64,
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Form batches of packed rows.

    The shuffled samples are divided into pools, and the samples of each pool are packed into rows. Then the
    rows are shuffled and combined into batches within the token budget. Pools and rows differ in every
    epoch.

    Returns:
        The batches, and for each batch whether it is full.
    """
    config = selected.config
    shuffled, shuffled_lengths = _shuffle_with_lengths(selected, bits)
    lengths = shuffled_lengths.astype(np.int32)
    segments, counts, totals = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    pool_size = _pool_size(config, lengths)
    for start in range(0, len(lengths), pool_size):
        layout = assign_packs(lengths[start : start + pool_size], packing)
        segments.append(layout.samples.astype(np.int64) + start)
        counts.append(np.diff(layout.offsets))
        totals.append(layout.row_sums(layout.spans))
    offsets = counts_to_offsets(np.concatenate(counts))
    packs = random_order(len(offsets) - 1, bits)
    members, pack_offsets = gather_groups(offsets, packs)
    capacity = config.token_budget // packing.max_length
    starts = np.arange(0, len(packs), capacity)
    if packing.pad_to_max or not len(packs):
        widths = np.full(len(starts), packing.max_length, np.int32)
    else:
        widths = np.maximum.reduceat(np.concatenate(totals)[packs], starts).astype(np.int32)
    batches = EpochBatches(
        selected.gather_indices(shuffled[np.concatenate(segments)[members]]),
        np.append(pack_offsets[starts], pack_offsets[-1]),
        config.bucket_spec.get_bucket_ids(widths),
        widths,
        pack_offsets,
    )
    return batches, starts + capacity <= len(packs)


def _pool_size(config: BatchingConfig, lengths: Int32[np.ndarray, " samples"]) -> int:
    """Return the number of samples in a pool.

    A pool holds about `pool_batches` batches. There are at least two pools, because a single sorted pool
    would give the same batches in every epoch. The exception is a dataset with only a few batches, which
    forms a single pool, because smaller pools would need too much padding.
    """
    if len(lengths) == 0:
        return 1
    samples_per_batch = config.token_budget / float(lengths.mean())
    size = round(config.pool_batches * samples_per_batch)
    if len(lengths) >= _MIN_BATCHES_TO_DIVIDE * samples_per_batch:
        size = min(size, -(-len(lengths) // 2))
    return max(1, size)


def _batch_widths(
    config: BatchingConfig, max_lengths: Int32[np.ndarray, " any"]
) -> Int32[np.ndarray, " any"]:
    """Return the padded row length of each batch, given the length of its longest sample."""
    if config.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH:
        return max_lengths
    return np.array(config.bucket_widths, np.int32)[config.bucket_spec.get_bucket_ids(max_lengths)]
