"""The sampler: budgets, orders, seeds, skipped samples, and its use by a DataLoader."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx import native
from phalanx.data import BatchingConfig, BatchingMode, BucketSpec, PadPolicy, TokenBudgetBatchSampler
from phalanx.data.plans.epoch import epoch_seed, interleave_by_size, random_order
from tests.helpers.length_cases import lognormal_lengths, recipes

SEED_LENGTHS = {f"s{row}": length for row, length in enumerate(range(100, 600, 10))}
SPEC = BucketSpec(edges=(128, 256, 512), max_sample_length=1024)
EDGES = (128, 256, 512, 1024)


def create_sampler(lengths=SEED_LENGTHS, spec=SPEC, token_budget=2048, **settings):
    return TokenBudgetBatchSampler(lengths, spec, token_budget, **settings)


def create_sampler_in_mode(mode, lengths=SEED_LENGTHS, **settings):
    config = BatchingConfig(mode=mode, **{"token_budget": 2048, **settings})
    return TokenBudgetBatchSampler.from_config(lengths, config)


def create_throughput_sampler(lengths, token_budget, **settings):
    return create_sampler_in_mode(BatchingMode.THROUGHPUT, lengths, token_budget=token_budget, **settings)


def ids(batches):
    return [batch.sample_ids for batch in batches]


@settings(max_examples=150, deadline=None)
@given(recipes(packed=False), st.integers(0, 3))
def test_batches_respect_the_budget_and_contain_every_sample_once(recipe, epoch):
    lengths, config = recipe.lengths, recipe.config
    sampler = TokenBudgetBatchSampler.from_config(lengths, config)
    batches = list(sampler.iter_batches(epoch))
    seen = list(itertools.chain.from_iterable(ids(batches)))
    skipped = {sample.sample_id for sample in sampler.skipped}
    dropped = set(lengths) - {*seen, *skipped}
    assert len({*seen, *skipped}) == len(seen) + len(skipped)
    assert bool(dropped) <= config.drop_last
    for batch in batches:
        assert batch.num_samples >= 1
        assert batch.padded_token_count <= config.token_budget
        assert batch.lengths == tuple(lengths[sample] for sample in batch.sample_ids)
        assert batch.token_count == sum(batch.lengths)
        longest = max(batch.lengths)
        assert batch.bucket_id == config.bucket_spec.get_bucket(longest) or config.is_predictable
        pads_to_bucket = config.pad_policy is PadPolicy.PAD_TO_BUCKET
        assert batch.max_length == (config.bucket_widths[batch.bucket_id] if pads_to_bucket else longest)
    for sample in sampler.skipped:
        assert sample.length > min(config.max_sample_length, config.token_budget)


@settings(max_examples=60, deadline=None)
@given(recipes(packed=False), st.integers(0, 3))
def test_equal_seeds_and_epochs_give_equal_batches(recipe, epoch):
    once = TokenBudgetBatchSampler.from_config(recipe.lengths, recipe.config)
    again = TokenBudgetBatchSampler.from_config(dict(recipe.lengths), recipe.config)
    assert list(once.iter_batches(epoch)) == list(again.iter_batches(epoch))


@pytest.mark.parametrize("mode", BatchingMode)
def test_epochs_use_different_batches(mode):
    sampler = create_sampler_in_mode(mode)
    assert len({tuple(ids(sampler.iter_batches(epoch))) for epoch in range(4)}) == 4


@pytest.mark.parametrize("mode", BatchingMode)
def test_next_epoch_differs_from_the_next_seed(mode):
    first, second = (create_sampler_in_mode(mode, seed=seed) for seed in (42, 43))
    assert ids(first.iter_batches(1)) != ids(second.iter_batches(0))


def test_seed_and_epoch_are_hashed_together():
    seeds = [epoch_seed(seed, epoch) for seed in (0, 1, 42, 2**32, 2**32 + 1) for epoch in range(20)]
    assert len(set(seeds)) == 100
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        epoch_seed(42, -1)


def test_random_order_sorts_indices_by_raw_random_numbers():
    # The raw numbers of a bit generator are equal in all NumPy versions; `permutation` may change.
    keys = np.random.PCG64(0).random_raw(8).tolist()
    assert keys[:2] == [11749869230777074271, 4976686463289251617]
    expected = sorted(range(8), key=lambda index: keys[index])
    assert random_order(8, np.random.PCG64(0)).tolist() == expected


@given(st.integers(0, 300), st.integers(0, 9))
def test_shuffles_are_permutations(count, seed):
    bits = np.random.PCG64(seed)
    assert sorted(random_order(count, bits).tolist()) == list(range(count))
    sizes = np.arange(count, dtype=np.int64) % 7
    assert sorted(interleave_by_size(sizes, bits).tolist()) == list(range(count))


def test_sort_random_keys_sorts_nonrandom_keys():
    if (kernels := native.native_module()) is None:
        pytest.skip("the compiled extension is not in use")
    positions = np.random.default_rng(0).permutation(5000).astype(np.uint64)
    for keys in (positions, positions | np.uint64(7 << 56), positions << np.uint64(40) | positions):
        order = np.empty(5000, np.int32)
        kernels.sort_random_keys(keys.copy(), 2**13 - 1, order)
        assert order.tolist() == list(range(5000))
    with pytest.raises(ValueError, match="same length"):
        kernels.sort_random_keys(np.zeros(3, np.uint64), 3, np.zeros(2, np.int32))


def test_gather_runs_copies_runs_and_rejects_invalid_ones():
    if (kernels := native.native_module()) is None:
        pytest.skip("the compiled extension is not in use")
    output = np.empty(5, np.int32)
    starts, ends = np.array([6, 2, 4, 0]), np.array([8, 4, 4, 1])
    kernels.gather_runs(np.arange(10, 18, dtype=np.int32), starts, ends, output)
    assert output.tolist() == [16, 17, 12, 13, 10]
    for start, end in ((-1, 1), (7, 9), (2, 1)):
        with pytest.raises(ValueError, match="outside of the values"):
            kernels.gather_runs(output, np.array([start]), np.array([end]), np.zeros(2, np.int32))
    for size in (1, 3):
        with pytest.raises(ValueError, match="total length of the runs"):
            kernels.gather_runs(output, np.array([0]), np.array([2]), np.zeros(size, np.int32))


def test_random_order_is_uniform():
    positions = np.zeros((5, 5), int)
    bits = np.random.PCG64(1)
    for _ in range(2000):
        positions[np.arange(5), random_order(5, bits)] += 1
    assert positions.min() > 330 and positions.max() < 470


def test_spread_order_is_uniform():
    bits, sizes = np.random.PCG64(2), np.arange(200, dtype=np.int64)
    means = np.mean([np.argsort(interleave_by_size(sizes, bits)) for _ in range(400)], axis=0)
    # The mean of 400 uniform positions in 0..199 has a standard deviation of 2.9.
    assert np.abs(means - 99.5).max() < 5 * 2.9


def test_overlong_samples_are_reported_with_the_reason():
    sampler = create_sampler({"a": 10, "b": 5000, "c": 20})
    assert sampler.num_samples == 2 and sampler.num_skipped == 1
    assert [(s.sample_id, s.length, s.reason) for s in sampler.skipped] == [
        ("b", 5000, "longer than max_sample_length 1024")
    ]


def test_samples_above_the_budget_are_skipped_and_reported():
    sampler = create_sampler({"a": 300, "b": 450, "c": 501}, token_budget=500)
    assert sorted((b.sample_ids, b.max_length) for b in sampler.iter_batches()) == [
        (("a",), 500),
        (("b",), 500),
    ]
    assert [(s.sample_id, s.reason) for s in sampler.skipped] == [("c", "longer than token_budget 500")]


def test_samples_below_min_length_are_reported():
    spec = BucketSpec(edges=(8,), max_sample_length=16, min_length=3)
    assert [s.reason for s in create_sampler({"a": 2, "b": 3}, spec).skipped] == ["shorter than min_length 3"]


def test_empty_lengths_have_no_batches():
    assert (
        list(create_sampler({}).iter_batches()) == []
        and create_sampler({}).compute_metrics().efficiency == 1.0
    )


def test_drop_last_drops_partial_batches():
    lengths = {f"s{i}": 100 for i in range(20)}  # 16 rows of 128 fit 2048
    assert sorted(b.num_samples for b in create_sampler(lengths).iter_batches()) == [4, 16]
    sampler = create_sampler(lengths, drop_last=True)
    assert [b.num_samples for b in sampler.iter_batches()] == [16]
    assert sampler.num_skipped == 0


def test_throughput_mode_drops_at_most_one_batch():
    sampler = create_throughput_sampler(lognormal_lengths(5000), 4096, drop_last=True)
    complete = create_throughput_sampler(lognormal_lengths(5000), 4096)
    assert len(complete) - len(sampler) in (0, 1)


def test_buckets_are_sorted_without_interleaving():
    buckets = [batch.bucket_id for batch in create_sampler().iter_batches(0, interleave_buckets=False)]
    assert buckets == sorted(buckets)
    mixed = [batch.bucket_id for batch in create_sampler().iter_batches(0)]
    assert mixed != sorted(mixed)


def test_batches_are_padded_to_bucket_max_lengths():
    config = BatchingConfig(
        mode="predictable",
        pad_policy="pad_to_bucket",
        token_budget=400,
        bucket_edges=(10, 20),
        max_sample_length=30,
        bucket_padded_lengths={0: 16, 2: 64},
    )
    sampler = TokenBudgetBatchSampler.from_config({"a": 3, "b": 15, "c": 25}, config)
    assert {b.sample_ids[0]: b.max_length for b in sampler.iter_batches()} == {"a": 16, "b": 20, "c": 64}


def test_predictable_mode_uses_all_buckets_and_reaches_expected_efficiency():
    sampler = create_sampler(lognormal_lengths(100_000), BucketSpec.default(), 16_384)
    assert sampler.compute_metrics().efficiency >= 0.69
    shapes = {(batch.max_length) for batch in sampler.iter_batches()}
    assert shapes == {*EDGES, 2048}


def test_throughput_mode_has_little_padding():
    sampler = create_throughput_sampler(lognormal_lengths(100_000), 16_384)
    assert sampler.compute_metrics().efficiency >= 0.97


def batch_mates(batches):
    """Return the other samples in the batch of each sample."""
    return {name: set(batch.sample_ids) - {name} for batch in batches for name in batch.sample_ids}


@pytest.mark.parametrize(
    ("samples", "budget", "min_efficiency"),
    [(500, 4096, 0.91), (500, 16_384, 0.72), (5_000, 4096, 0.98), (5_000, 16_384, 0.95)],
)
def test_small_datasets_use_different_batches_in_every_epoch(samples, budget, min_efficiency):
    sampler = create_throughput_sampler(lognormal_lengths(samples), budget)
    epochs = [list(sampler.iter_batches(epoch)) for epoch in range(2)]
    first, second = (
        {frozenset(batch.sample_ids) for batch in epoch if batch.num_samples > 1} for epoch in epochs
    )
    assert len(first & second) < 0.05 * len(first)
    old, new = map(batch_mates, epochs)
    overlaps = [
        len(old[name] & new[name]) / len(old[name] | new[name]) for name in old if old[name] | new[name]
    ]
    assert np.mean(overlaps) < 0.3
    assert sampler.compute_metrics().efficiency > min_efficiency


def test_larger_pools_reduce_padding():
    table = lognormal_lengths(50_000)
    efficiencies = [
        create_throughput_sampler(table, 16_384, pool_batches=pool).compute_metrics().efficiency
        for pool in (1, 8, 64, 512)
    ]
    assert efficiencies == sorted(efficiencies) and efficiencies[0] < 0.7 and efficiencies[-1] > 0.99


@pytest.mark.parametrize("mode", BatchingMode)
def test_lengths_do_not_drift_over_an_epoch(mode):
    table = lognormal_lengths(500_000)
    sampler = create_sampler_in_mode(mode, table, token_budget=16_384)
    for epoch in range(2):
        arrays = sampler.plan_epoch(epoch).batches
        sums, counts = arrays.batch_sums(table.lengths[arrays.order].astype(np.int64)), arrays.counts
        tenth = len(arrays) // 10
        first, last = (sums[part].sum() / counts[part].sum() for part in (slice(tenth), slice(-tenth, None)))
        assert abs(first / last - 1) < 0.05


def test_smaller_pools_change_batches_more_between_epochs():
    table = lognormal_lengths(20_000)

    def batch_mates(sampler, epoch):
        return {
            pair
            for rows in sampler.iter_batches(epoch)
            for pair in itertools.pairwise(sorted(rows.sample_ids))
        }

    def fraction_kept(pool):
        sampler = create_throughput_sampler(table, 16_384, pool_batches=pool)
        first = batch_mates(sampler, 0)
        return len(first & batch_mates(sampler, 1)) / len(first)

    # With about 90 pools, two samples are in the same pool again with probability 1/90.
    assert fraction_kept(4) < 0.02 < 0.2 < fraction_kept(1000)


@pytest.mark.parametrize("mode", BatchingMode)
def test_sampler_can_be_the_batch_sampler_of_a_data_loader(mode):
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):
        def __getitem__(self, row):
            return row

        def __len__(self):
            return len(SEED_LENGTHS)

    sampler = create_sampler_in_mode(mode)
    loader = torch.utils.data.DataLoader(Rows(), batch_sampler=sampler, collate_fn=list)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader) == len(sampler)
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(50))
        assert [tuple(f"s{row}" for row in batch) for batch in batches] == ids(sampler.iter_batches(epoch))
        epochs.append(batches)
    assert epochs[0] != epochs[1]


def test_sampler_can_yield_ids():
    lists = list(create_sampler(yields="ids"))
    assert [tuple(batch) for batch in lists] == ids(create_sampler().iter_batches())


def test_bucket_sizes_and_distribution_exclude_skipped_samples():
    sampler = create_sampler({"a": 100, "b": 128, "c": 300, "d": 9999})
    assert sampler.bucket_sizes == {0: 2, 1: 0, 2: 1, 3: 0}
    assert sampler.get_bucket_distribution()[0] == pytest.approx(2 / 3)
    assert sampler.estimate_batches_per_epoch() == len(list(sampler.iter_batches())) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token_budget": 0}, "token_budget"),
        ({"seed": -1}, "seed"),
        ({"pool_batches": 0}, "pool_batches"),
        ({"bucket_edges": (8, 4)}, "edges must be strictly ascending, but 4 follows 8"),
        (
            {"max_sample_length": 100},
            r"max_sample_length \(100\) must be greater than the last edge",
        ),
        (
            {"bucket_padded_lengths": {0: 100}},
            r"bucket_padded_lengths\[0\] must be at least 128, the maximum length of the bucket, go",
        ),
        ({"bucket_padded_lengths": {9: 100}}, "there is no bucket 9; buckets are 0 to 4"),
        (
            {"bucket_padded_lengths": {4: 5000}},
            r"bucket_padded_lengths\[4\] \(5000\) exceeds token_budget 4096",
        ),
        (
            {"bucket_padded_lengths": (200,)},
            "bucket_padded_lengths must have a value for each of 5 buckets, got 1",
        ),
        ({"min_length": 200}, r"min_length \(200\) must not exceed the first edge \(128\)"),
        ({"budget": 5}, "budget"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        BatchingConfig(**settings)


def test_presets_use_the_seed():
    assert BatchingConfig.throughput(token_budget=900, bucket_edges=(64, 300), seed=7).seed == 7
    predictable = BatchingConfig.predictable(token_budget=900, bucket_edges=(64, 300), seed=7)
    assert predictable.seed == 7 and predictable.is_predictable
    assert predictable.pad_policy is PadPolicy.PAD_TO_BUCKET
    assert BatchingConfig.throughput().pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH
    assert hash(predictable) == hash(predictable.model_copy())
