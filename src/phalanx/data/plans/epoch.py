"""One epoch's batches: the shuffle, and the batches that are cut from its buckets, its pools or its packs.

How samples choose their packs is in `phalanx.data.packing`; what each rank gets, in `sharding`.
"""

import numpy as np
from jaxtyping import Bool, Int8, Int16, Int32, Int64

from phalanx.data.packing import assign_packs
from phalanx.data.packing_config import PackingConfig
from phalanx.data.plans.arrays import EpochBatches, batch_offsets, batches_of, ragged_take
from phalanx.data.plans.batching_config import BatchingConfig, PadPolicy
from phalanx.data.plans.filter import SelectedSamples
from phalanx.native import native_module

_SLOTS = 32
"""Parts of the epoch over which batches of like size are spread."""
_BLOCK = 1 << 16
_SMALL = np.iinfo(np.int16).max
"""Lengths up to this are kept in two bytes while they are put in order."""
_MIXED = 8
"""Batches' worth of samples from which on there are at least two pools."""


def plan_epoch(
    filtered: SelectedSamples, epoch: int, *, interleave_buckets: bool | None = None
) -> EpochBatches:
    """The batches of one epoch, in the order in which they are fed."""
    config = filtered.config
    bits = np.random.PCG64(epoch_seed(config.seed, epoch))
    if filtered.packing is not None:
        batches, full = _cut_packs(filtered, filtered.packing, bits)
    elif config.is_predictable:
        batches, full = _cut_buckets(filtered, bits)
    else:
        batches, full = _cut_pools(filtered, bits)
    if config.drop_last:
        batches = batches.where(full)
    feed = spread_order(batches.counts, bits)
    interleave = config.interleave_buckets if interleave_buckets is None else interleave_buckets
    if not interleave:
        feed = feed[np.argsort(batches.bucket_ids[feed], kind="stable")]
    return batches.take(feed)


def epoch_seed(seed: int, epoch: int) -> int:
    """The 64-bit number that decides one epoch's order: a hash of seed and epoch, so that no two pairs share
    theirs by being neighbors (seed 42 in epoch 1, seed 43 in epoch 0)."""
    if epoch < 0:
        raise ValueError(f"epochs count from 0, got {epoch}")
    return int(np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(1, np.uint64)[0])


def random_order(
    count: int, bits: np.random.PCG64, values: Int16[np.ndarray, " count"] | None = None
) -> Int32[np.ndarray, " count"]:
    """A random permutation, from the bit generator's raw words, which stay the same in all NumPy versions.

    `values` are put into its order, in place: carried along they cost a fraction of looking them up, for
    which memory would be read all over. The high bits of a word are random and the low bits name the place,
    so one sort of plain numbers shuffles; a tie of the high bits (fewer than one in ten thousand at ten
    million) keeps its order.
    """
    low = np.uint64((1 << max(count - 1, 0).bit_length()) - 1)
    keys = np.asarray(bits.random_raw(count), np.uint64)
    # A block at a time, here and below: what lies in the cache costs less, and new memory a page fault each.
    for start in range(0, count, _BLOCK):
        block = keys[start : start + _BLOCK]
        block &= ~low
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    order = np.empty(count, np.int32)
    if (compiled := native_module()) is not None:
        compiled.sort_random_keys(keys, int(low), order, values)
        return order
    keys.sort()
    for start in range(0, count, _BLOCK):
        order[start : start + _BLOCK] = keys[start : start + _BLOCK] & low
    if values is not None:
        values[:] = values[order]
    return order


def _shuffled_lengths(
    filtered: SelectedSamples, bits: np.random.PCG64
) -> tuple[Int32[np.ndarray, " samples"], Int16[np.ndarray, " samples"] | Int32[np.ndarray, " samples"]]:
    """A random order of the kept samples, and their lengths in it."""
    if filtered.config.overflow_max > _SMALL:
        order = random_order(filtered.num_kept, bits)
        return order, filtered.lengths[order]
    lengths = filtered.lengths.astype(np.int16)
    return random_order(filtered.num_kept, bits, lengths), lengths


def spread_order(
    sizes: Int64[np.ndarray, " batches"], bits: np.random.PCG64
) -> Int32[np.ndarray, " batches"]:
    """A random order in which batches of every size are spread evenly, so that nothing drifts over the epoch.

    Thirty-two batches of like size at a time are given, at random, one thirty-second of the epoch each, and
    any moment in it. Each batch still comes at any time with equal chance.
    """
    count = len(sizes)
    shuffled = random_order(count, bits)
    # By size, and among equal sizes at random.
    by_size = shuffled[_stable_order(sizes[shuffled])]
    slots = np.arange(count) % _SLOTS
    group_sizes = np.full(count, _SLOTS)
    if count % _SLOTS:
        group_sizes[-(count % _SLOTS) :] = count % _SLOTS
    # Inside a group the slots are shuffled: sort its random words.
    words = np.asarray(bits.random_raw(2 * count), np.uint64) >> np.uint64(11)
    whole = count - count % _SLOTS
    within = np.arange(count)
    within[:whole] += (
        np.argsort(words[:whole].reshape(-1, _SLOTS), axis=1, kind="stable") - np.arange(_SLOTS)
    ).reshape(-1)
    within[whole:] = whole + np.argsort(words[whole:count], kind="stable")
    moments = (slots + words[count:] * 2.0**-53) / group_sizes
    feed = np.argsort(moments)
    ordered = moments[feed]
    if (ordered[1:] == ordered[:-1]).any():  # which only a stable sort puts in a fixed order
        feed = np.argsort(moments, kind="stable")
    return by_size[within][feed]


def _stable_order(sizes: Int64[np.ndarray, " batches"]) -> Int64[np.ndarray, " batches"]:
    """From small to large; NumPy's stable sort of small numbers takes time in proportion to their count."""
    return np.argsort(sizes.astype(np.uint16) if sizes.max(initial=0) < 2**16 else sizes, kind="stable")


def _cut_buckets(
    filtered: SelectedSamples, bits: np.random.PCG64
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Bucket after bucket, cut into as many rows as fit the budget at the bucket's width."""
    config = filtered.config
    sizes = np.bincount(filtered.bucket_ids, minlength=len(config.bucket_widths))
    buckets = filtered.bucket_ids.astype(np.int16)
    shuffled = random_order(filtered.num_kept, bits, buckets)
    by_bucket = _by_bucket(shuffled, buckets.astype(filtered.bucket_ids.dtype), sizes)
    capacities = [config.token_budget // width for width in config.bucket_widths]
    numbers = [-(-int(size) // capacity) for size, capacity in zip(sizes, capacities, strict=True)]
    capacity = np.repeat(np.array(capacities, np.int64), numbers)
    counts = capacity.copy()
    last = np.cumsum(numbers)[sizes > 0] - 1
    counts[last] -= (np.array(numbers) * capacities - sizes)[sizes > 0]
    bucket_ids = np.repeat(np.arange(len(numbers), dtype=np.int16), numbers)
    widths = np.array(config.bucket_widths, np.int32)[bucket_ids]
    order = filtered.rows_at(by_bucket)
    batches = batches_of(order, counts, bucket_ids, widths)
    if config.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH and len(batches):
        widths = np.maximum.reduceat(filtered.lengths_at(by_bucket), batches.offsets[:-1])
        batches = batches_of(order, counts, bucket_ids, widths)
    return batches, counts == capacity


def _by_bucket(
    shuffled: Int32[np.ndarray, " samples"],
    bucket_ids: Int8[np.ndarray, " samples"] | Int16[np.ndarray, " samples"],
    sizes: Int64[np.ndarray, " buckets"],
) -> Int32[np.ndarray, " samples"]:
    """The shuffle, whose samples are in these buckets, bucket after bucket, in its order inside each."""
    order = np.empty(len(shuffled), np.int32)
    heads = (np.cumsum(sizes) - sizes).tolist()
    for start in range(0, len(shuffled), _BLOCK):
        block = shuffled[start : start + _BLOCK]
        buckets = bucket_ids[start : start + _BLOCK]
        # Stable on small keys is NumPy's radix sort.
        block = block[np.argsort(buckets, kind="stable")]
        begin = 0
        for bucket, count in enumerate(np.bincount(buckets, minlength=len(sizes)).tolist()):
            order[heads[bucket] : heads[bucket] + count] = block[begin : begin + count]
            heads[bucket] += count
            begin += count
    return order


def _cut_pools(
    filtered: SelectedSamples, bits: np.random.PCG64
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Pools of the shuffle, each sorted from long to short, so that a batch's first row tells its width.

    What is left at the end of each pool (its shortest samples, too few for a batch) is pooled again, until
    one pool holds the rest, so that at most one batch is not full.
    """
    config = filtered.config
    shuffled, kept_lengths = _shuffled_lengths(filtered, bits)
    pool = _pool_samples(config, filtered.lengths)
    # Written over from its front: a pool is read before what is cut from it comes to the same place.
    order, placed = shuffled, 0
    counts: list[int] = []
    longest: list[int] = []
    kept, full = shuffled, True
    while len(kept):
        left, left_lengths = [kept[:0]], [kept_lengths[:0]]
        done = len(counts)
        for start in range(0, len(kept), pool):
            # A pool at a time lies in the cache, whatever the size of the set.
            part, lengths = _longest_first(kept[start : start + pool], kept_lengths[start : start + pool])
            steps = memoryview(_steps(config, lengths))  # type: ignore[arg-type, unused-ignore]
            begin, end = 0, len(part)
            while begin < end and begin + steps[begin] <= end:
                counts.append(steps[begin])
                longest.append(int(lengths[begin]))
                begin += steps[begin]
            if begin < end and len(kept) <= pool:
                counts.append(end - begin)
                longest.append(int(lengths[begin]))
                full, begin = False, end
            order[placed : placed + begin] = part[:begin]
            placed += begin
            left.append(part[begin:])
            left_lengths.append(lengths[begin:])
        if len(counts) == done:
            pool *= 2  # no pool filled a batch
        kept, kept_lengths = np.concatenate(left), np.concatenate(left_lengths)
    widest = np.array(longest, np.int32)
    bucket_ids = config.bucket_spec.get_bucket_ids(widest)
    batches = batches_of(
        filtered.rows_at(order), np.array(counts, np.int64), bucket_ids, _widths(config, widest)
    )
    filled = np.ones(len(counts), bool)
    filled[len(counts) - 1 :] = full
    return batches, filled


def _cut_packs(
    filtered: SelectedSamples,
    packing: PackingConfig,
    bits: np.random.PCG64,
) -> tuple[EpochBatches, Bool[np.ndarray, " batches"]]:
    """Each pool of the shuffle packed by itself, the packs shuffled, as many to a batch as the budget allows.

    So packs are mixed anew in every epoch.
    """
    config = filtered.config
    shuffled, carried = _shuffled_lengths(filtered, bits)
    lengths = carried.astype(np.int32)
    places, counts, fills = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    pool = _pool_samples(config, lengths)
    for start in range(0, len(lengths), pool):
        layout = assign_packs(lengths[start : start + pool], packing)
        places.append(layout.samples.astype(np.int64) + start)
        counts.append(np.diff(layout.offsets))
        fills.append(layout.sums(layout.spans))
    offsets = batch_offsets(np.concatenate(counts))
    packs = random_order(len(offsets) - 1, bits)
    members, pack_offsets = ragged_take(offsets, packs)
    capacity = config.token_budget // packing.max_length
    starts = np.arange(0, len(packs), capacity)
    if packing.pad_to_max or not len(packs):
        widths = np.full(len(starts), packing.max_length, np.int32)
    else:
        widths = np.maximum.reduceat(np.concatenate(fills)[packs], starts).astype(np.int32)
    batches = EpochBatches(
        filtered.rows_at(shuffled[np.concatenate(places)[members]]),
        np.append(pack_offsets[starts], pack_offsets[-1]),
        config.bucket_spec.get_bucket_ids(widths),
        widths,
        pack_offsets,
    )
    return batches, starts + capacity <= len(packs)


def _pool_samples(config: BatchingConfig, lengths: Int32[np.ndarray, " samples"]) -> int:
    """How many samples a pool holds: `pool_batches` batches' worth at the mean length, at most half of all.

    One sorted pool of everything would give the same batches in every epoch. Only sets of a few batches,
    where half of them would be mostly padding, are one pool.
    """
    if len(lengths) == 0:
        return 1
    batch = config.token_budget / float(lengths.mean())
    pool = round(config.pool_batches * batch)
    if len(lengths) >= _MIXED * batch:
        pool = min(pool, -(-len(lengths) // 2))
    return max(1, pool)


def _widths(config: BatchingConfig, longest: Int32[np.ndarray, " any"]) -> Int32[np.ndarray, " any"]:
    """How wide a batch must be whose longest sample is this long."""
    if config.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH:
        return longest
    return np.array(config.bucket_widths, np.int32)[config.bucket_spec.get_bucket_ids(longest)]


def _steps(config: BatchingConfig, longest: Int32[np.ndarray, " any"]) -> Int32[np.ndarray, " any"]:
    """How many samples a batch takes that begins with this one."""
    return np.int32(config.token_budget) // _widths(config, longest)


def _longest_first(
    kept: Int32[np.ndarray, " pool"], lengths: Int16[np.ndarray, " pool"] | Int32[np.ndarray, " pool"]
) -> tuple[Int32[np.ndarray, " pool"], Int32[np.ndarray, " pool"]]:
    """The samples of a pool from long to short, and their lengths; equal lengths keep their order."""
    # Stable on small keys is NumPy's radix sort.
    keys = _SMALL - lengths if lengths.dtype == np.int16 else -lengths
    order = np.argsort(keys, kind="stable")
    return kept[order], lengths[order].astype(np.int32)
