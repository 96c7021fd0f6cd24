"""Token batching through `chuk_lazarus.data`: buckets, lengths, batches, fingerprints, packing and plans."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data import (
    BatchFingerprint,
    BatchingConfig,
    BatchingMode,
    BatchMetrics,
    BatchPlan,
    BatchPlanBuilder,
    BatchReader,
    BatchSpec,
    BatchWriter,
    BucketSpec,
    BucketStats,
    LengthCache,
    LengthEntry,
    MicrobatchSpec,
    OptimizationGoal,
    PackingConfig,
    PackingMode,
    PadPolicy,
    SequenceToPack,
    TokenBudgetBatchSampler,
    analyze_bucket_efficiency,
    compute_batch_fingerprint,
    compute_batch_fingerprint_async,
    compute_length_histogram,
    compute_packing_metrics,
    create_efficiency_report,
    create_segment_attention_mask,
    load_batch_plan,
    load_batch_plan_async,
    load_fingerprint_async,
    pack_sequences,
    save_batch_plan,
    save_batch_plan_async,
    save_fingerprint_async,
    suggest_bucket_edges,
    verify_batch_fingerprint,
    verify_batch_fingerprint_async,
    visualize_buckets,
)

# 40 samples of 20, 33, ..., 527 tokens: 7, 7, 16 and 10 in the four buckets.
LENGTHS = {f"doc-{n:02}": 20 + 13 * n for n in range(40)}
EDGES, LONGEST, BUDGET = (100, 200, 400), 600, 1200
BUCKETS = BucketSpec(edges=EDGES, overflow_max=LONGEST)
TOKENS = sum(LENGTHS.values())


def make_sampler(**settings: Any) -> TokenBudgetBatchSampler:
    given = {"lengths": LENGTHS, "bucket_spec": BUCKETS, "token_budget": BUDGET, "seed": 5}
    return TokenBudgetBatchSampler(**given | settings)


def draw(epoch: int = 0, **settings: Any) -> list[BatchSpec]:
    async def collect() -> list[BatchSpec]:
        return [batch async for batch in make_sampler(**settings).iter_epoch(epoch=epoch)]

    return asyncio.run(collect())


def make_plan(num_epochs: int = 2) -> BatchPlan:
    config = BatchingConfig.predictable(token_budget=BUDGET, bucket_edges=EDGES, overflow_max=LONGEST, seed=5)
    builder = BatchPlanBuilder(
        lengths=LENGTHS, batching_config=config, dataset_hash="articles-3", tokenizer_hash="bpe-9"
    )
    return asyncio.run(builder.build(num_epochs=num_epochs))


# Buckets and lengths


@pytest.mark.parametrize(
    ("length", "bucket", "bounds", "is_overflow"),
    [
        (100, 0, (1, 100), False),
        (101, 1, (101, 200), False),
        (350, 2, (201, 400), False),
        (600, 3, (401, 600), True),
    ],
)
def test_length_determines_the_bucket(
    length: int, bucket: int, bounds: tuple[int, int], is_overflow: bool
) -> None:
    assert BUCKETS.get_bucket(length) == BUCKETS.get_bucket_id(length) == bucket
    assert BUCKETS.get_bucket_range(bucket) == bounds
    assert BUCKETS.is_overflow(bucket) is is_overflow


def test_bucket_statistics_are_counted_sample_by_sample() -> None:
    stats = BucketStats(bucket_id=1, max_length=50)
    stats.add_sample(40)
    stats.add_sample(20, padded_length=30)
    assert (stats.sample_count, stats.padding_tokens, stats.avg_length) == (2, 20, 30)
    with pytest.raises(ValueError, match="bucket 1: length must be between 1 and 50, got 51"):
        stats.add_sample(51)


def test_length_cache_is_written_and_read_asynchronously(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"

    async def run() -> tuple[LengthCache, list[LengthEntry]]:
        async with LengthCache.create(path, "bpe-9") as cache:
            for name in list(LENGTHS)[:10]:
                await cache.add(name, LENGTHS[name])
        async with await LengthCache.load_or_create(path, "bpe-9") as cache:
            rest = list(LENGTHS)[10:]
            await cache.add_many(rest, [LENGTHS[name] for name in rest])
        cache = await LengthCache.load(path)
        assert await cache.validate(["doc-00", "doc-99"]) == ({"doc-99"}, set(LENGTHS) - {"doc-00"})
        return cache, [entry async for entry in LengthCache.stream(path)]

    cache, entries = asyncio.run(run())
    assert cache.get_all() == {entry.sample_id: entry.length for entry in entries} == LENGTHS
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert json.loads(first) == {"sample_id": "doc-00", "tokenizer_hash": "bpe-9", "length": 20}
    assert first == entries[0].to_json()


# Batches and metrics


def test_batches_stay_within_the_token_budget() -> None:
    batches = draw()
    assert sorted(name for batch in batches for name in batch.sample_ids) == sorted(LENGTHS)
    # 12, 6, 3 and 2 rows of 100, 200, 400 and 600 tokens fit.
    assert len(batches) == 1 + 2 + 6 + 5
    for batch in batches:
        assert isinstance(batch, BatchSpec)
        assert batch.batch_size == len(batch.sample_ids) <= BUDGET // batch.max_length
        assert max(LENGTHS[name] for name in batch.sample_ids) <= batch.max_length


def test_batches_depend_only_on_seed_and_epoch() -> None:
    assert draw() == draw() != draw(epoch=1)
    assert draw() != draw(seed=6)


def test_sampler_knows_its_size() -> None:
    sampler = make_sampler()
    assert (sampler.num_samples, sampler.estimate_batches_per_epoch()) == (40, 14)
    assert sampler.bucket_sizes == {0: 7, 1: 7, 2: 16, 3: 10}


def test_metrics_measure_padding_and_loss_tokens() -> None:
    metrics = make_sampler().compute_metrics(loss_tokens_per_sample=dict.fromkeys(LENGTHS, 20))
    assert isinstance(metrics, BatchMetrics)
    padded = 7 * 100 + 7 * 200 + 16 * 400 + 10 * 600
    summary = metrics.summary()
    assert (summary["total_samples"], summary["total_batches"], summary["loss_tokens"]) == (40, 14, 800)
    assert (summary["total_tokens"], summary["padded_tokens"]) == (TOKENS, padded)
    assert summary["efficiency"] == pytest.approx(TOKENS / padded, abs=1e-4)
    assert summary["padding_waste"] == pytest.approx(1 - TOKENS / padded, abs=1e-4)
    rows = metrics.bucket_summary()
    assert [(row["bucket_id"], row["samples"], row["batches"]) for row in rows] == [
        (0, 7, 1),
        (1, 7, 2),
        (2, 16, 6),
        (3, 10, 5),
    ]
    tokens = [sum(n for n in LENGTHS.values() if low < n <= high) for low, high in ((0, 100), (100, 200))]
    assert [row["efficiency"] for row in rows[:2]] == [
        pytest.approx(tokens[0] / 700, abs=1e-4),
        pytest.approx(tokens[1] / 1400, abs=1e-4),
    ]


# Settings and fingerprints


def test_settings_have_two_modes() -> None:
    stable = BatchingConfig.predictable(token_budget=BUDGET, bucket_edges=EDGES, seed=5)
    fast = BatchingConfig.throughput(token_budget=BUDGET, bucket_edges=EDGES)
    assert (stable.mode, stable.pad_policy, stable.seed) == (
        BatchingMode.PREDICTABLE,
        PadPolicy.PAD_TO_BUCKET,
        5,
    )
    assert (fast.mode, fast.pad_policy) == (BatchingMode.THROUGHPUT, PadPolicy.PAD_TO_MAX_IN_BATCH)
    assert stable.get_pad_length(1) == 200 and fast.get_pad_length(1, 170) == 170
    with pytest.raises(ValueError, match="needs max_in_batch"):
        fast.get_pad_length(1)


def batches_of(*rows: Sequence[tuple[str, int]], width: int = 16) -> list[MicrobatchSpec]:
    """Create batches by hand from (id, length) pairs."""
    return [
        MicrobatchSpec(
            samples=tuple(name for name, _ in row),
            lengths=tuple(length for _, length in row),
            bucket_id=0,
            max_len=width,
            index=index,
        )
        for index, row in enumerate(rows)
    ]


A, B, C = ("a", 3), ("b", 9), ("c", 5)
ORIGINAL = batches_of([A, B], [C])
SETTINGS = BatchingConfig.predictable(token_budget=64, bucket_edges=(16,), seed=1)
FINGERPRINT = compute_batch_fingerprint(ORIGINAL, SETTINGS)


def test_fingerprint_describes_the_batches() -> None:
    assert len(FINGERPRINT.fingerprint) == 16 and FINGERPRINT.full_hash.startswith(FINGERPRINT.fingerprint)
    assert (FINGERPRINT.num_batches, FINGERPRINT.total_samples, FINGERPRINT.total_tokens) == (2, 3, 17)
    again = compute_batch_fingerprint(batches_of([A, B], [C]), SETTINGS)
    assert FINGERPRINT.matches(again) and FINGERPRINT.matches_config(again)
    assert not FINGERPRINT.matches_config(SETTINGS.model_copy(update={"seed": 2}))
    assert verify_batch_fingerprint(ORIGINAL, FINGERPRINT) == (True, None)
    assert verify_batch_fingerprint(ORIGINAL, FINGERPRINT, SETTINGS) == (True, None)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (batches_of([A, B]), "membership changed: expected 3 samples, found 2"),
        (batches_of([A, B], [("d", 5)]), "membership changed: expected 3 samples, found 3; the ids differ"),
        (batches_of([C], [A, B]), "order changed: the same 3 samples in a different order"),
        (batches_of([A], [B, C]), "order changed"),
        (batches_of([A], [B], [C]), "expected 2 batches, found 3"),
        (batches_of([A, B], [("c", 6)]), "lengths changed: .* expected 17 tokens and found 18"),
        (batches_of([A, B], [C], width=32), "expected 17 tokens and found 17, or other row lengths"),
    ],
)
def test_first_difference_from_a_fingerprint_is_named(batches: list[MicrobatchSpec], message: str) -> None:
    matches, difference = verify_batch_fingerprint(batches, FINGERPRINT)
    assert not matches and difference is not None
    assert re.search(message, difference)
    matches, difference = verify_batch_fingerprint(batches, FINGERPRINT.fingerprint, SETTINGS)
    assert not matches and f", not {FINGERPRINT.fingerprint}" in str(difference)


def test_other_settings_and_damaged_fingerprints_do_not_match() -> None:
    other = SETTINGS.model_copy(update={"token_budget": 65})
    assert verify_batch_fingerprint(ORIGINAL, FINGERPRINT, other) == (
        False,
        "config changed: the batches were built with other settings",
    )
    damaged = FINGERPRINT.model_copy(update={"full_hash": "0" * 64})
    assert "inconsistent" in str(verify_batch_fingerprint(ORIGINAL, damaged)[1])
    newer = FINGERPRINT.model_copy(update={"version": 99})
    assert "has version 99" in str(verify_batch_fingerprint(ORIGINAL, newer)[1])


@pytest.mark.parametrize("short", [FINGERPRINT.fingerprint, FINGERPRINT.full_hash])
def test_fingerprint_can_be_compared_as_text(short: str) -> None:
    assert verify_batch_fingerprint(ORIGINAL, short, SETTINGS) == (True, None)
    assert not verify_batch_fingerprint(ORIGINAL, short)[0]


def test_fingerprint_can_cover_the_first_batches_only() -> None:
    first = compute_batch_fingerprint(ORIGINAL, SETTINGS, n_batches=1)
    assert (first.num_batches, first.total_samples) == (1, 2)
    assert verify_batch_fingerprint(batches_of([A, B], [("z", 1)]), first, n_batches=1) == (True, None)


def test_fingerprints_of_streams_are_computed_saved_and_loaded_asynchronously(tmp_path: Path) -> None:
    seen: list[int] = []

    async def stream() -> AsyncIterator[MicrobatchSpec]:
        for batch in ORIGINAL:
            seen.append(batch.index)
            yield batch

    async def run() -> BatchFingerprint:
        assert await verify_batch_fingerprint_async(stream(), FINGERPRINT, SETTINGS) == (True, None)
        assert (await verify_batch_fingerprint_async(stream(), FINGERPRINT, n_batches=1))[0] is False
        assert (await compute_batch_fingerprint_async(stream(), n_batches=0)).num_batches == 0
        await save_fingerprint_async(
            await compute_batch_fingerprint_async(stream(), SETTINGS), tmp_path / "f.json"
        )
        return await load_fingerprint_async(tmp_path / "f.json")

    assert asyncio.run(run()) == FINGERPRINT
    # A limited number of batches is taken from the stream, and none for a limit of 0.
    assert seen == [0, 1, 0, 0, 1]


# Packing


def sequence(name: str, *tokens: int) -> SequenceToPack:
    return SequenceToPack(sample_id=name, input_ids=tokens, loss_mask=[0] + [1] * (len(tokens) - 1))


def test_sequences_are_packed_into_segments() -> None:
    config = PackingConfig(mode=PackingMode.FIRST_FIT, max_length=8, pad_to_max=True)
    sequences = [sequence("p", 11, 12, 13), sequence("q", 21, 22, 23, 24, 25, 26), sequence("r", 31, 32)]
    first, second = pack_sequences(sequences, config, pad_token_id=9)
    assert (first.sample_ids, second.sample_ids) == (("p", "r"), ("q",))
    assert first.input_ids.tolist() == [11, 12, 13, 31, 32, 9, 9, 9]
    assert first.segment_ids.tolist() == [1, 1, 1, 2, 2, 0, 0, 0]
    assert first.loss_mask.tolist() == [0, 1, 1, 0, 1, 0, 0, 0]
    assert (first.num_segments, first.efficiency, second.efficiency) == (2, 5 / 8, 6 / 8)
    assert first == pack_sequences(sequences, config, pad_token_id=9)[0] != second
    metrics = compute_packing_metrics([first, second])
    # Three samples in two rows, so padding to 8 tokens takes a third fewer tokens.
    assert metrics.packing_ratio == 1.5
    assert (metrics.num_packs, metrics.num_segments, metrics.packed_tokens) == (2, 3, 16)


def test_attention_stays_within_a_segment() -> None:
    mask = create_segment_attention_mask([1, 1, 2, 0])
    assert np.asarray(mask).astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_separators_must_be_given_as_a_token() -> None:
    config = PackingConfig(mode="first_fit", max_length=8, add_separator=True, separator_token_id=7)
    (packed,) = pack_sequences([sequence("p", 1, 2), sequence("q", 3, 4)], config)
    assert packed.input_ids.tolist()[:5] == [1, 2, 7, 3, 4] and packed.separator_tokens == 1
    with pytest.raises(ValueError, match="add_separator needs separator_token_id"):
        PackingConfig(add_separator=True)
    assert PackingConfig(add_separator=False, separator_token_id=7).separator_token_id is None


# Plans and batch files


def test_plan_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = make_plan()
    assert isinstance(plan, BatchPlan) and plan.total_microbatches == 2 * 14
    assert (plan.meta.dataset_hash, plan.meta.tokenizer_hash) == ("articles-3", "bpe-9")
    assert plan.fingerprint == make_plan().fingerprint != make_plan(3).fingerprint
    save_batch_plan(plan, tmp_path / "one")
    assert load_batch_plan(tmp_path / "one").fingerprint == plan.fingerprint

    async def copy() -> BatchPlan:
        await save_batch_plan_async(plan, tmp_path / "two")
        return await load_batch_plan_async(tmp_path / "two", verify=True)

    copied = asyncio.run(copy())
    assert list(copied.iter_epoch(1)) == list(plan.iter_epoch(1))


def test_ranks_share_the_samples_of_a_plan() -> None:
    shards = [make_plan().shard(rank=rank, world_size=3) for rank in range(3)]
    assert len({shard.total_microbatches for shard in shards}) == 1
    names = [name for shard in shards for batch in shard.iter_epoch(1) for name in batch.samples]
    assert sorted(names) == sorted(LENGTHS)


def test_plan_resumes_within_an_epoch() -> None:
    plan = make_plan()
    rest = list(plan.iter_from(epoch=0, microbatch_idx=11))
    assert [place[:2] for place in rest] == [(0, 11), (0, 12), (0, 13), *((1, n) for n in range(14))]
    assert [batch for _, _, batch in rest[3:]] == list(plan.iter_epoch(1))
    with pytest.raises(ValueError, match="microbatch_idx must be between 0 and 14 in epoch 1, got 15"):
        plan.iter_from(1, 15)


def test_batch_files_contain_all_tokens(tmp_path: Path) -> None:
    plan = make_plan(1)
    samples = {name: {"input_ids": [n + 1] * LENGTHS[name]} for n, name in enumerate(LENGTHS)}
    BatchWriter(plan, samples, output_dir=tmp_path / "npz").write_all()
    reader = BatchReader(tmp_path / "npz")
    assert reader.fingerprint == reader.plan.fingerprint == plan.fingerprint
    counts = np.zeros(41, int)
    for batch in reader.iter_epoch(0):
        counts += np.bincount(batch["input_ids"].ravel(), minlength=41)
        assert int(batch["loss_mask"].sum()) == sum(batch.lengths)
    assert counts[1:].tolist() == list(LENGTHS.values())


def test_batches_can_be_collated_by_a_function(tmp_path: Path) -> None:
    def collate(samples: Sequence[Any], width: int, pad_id: int) -> dict[str, np.ndarray]:
        tokens = np.full((len(samples), width), pad_id, np.int32)
        for row, sample in enumerate(samples):
            tokens[row, width - len(sample["input_ids"]) :] = sample["input_ids"]
        return {"input_ids": tokens, "loss_mask": (tokens != pad_id).astype(np.int8)}

    samples = {name: {"input_ids": [7] * length} for name, length in LENGTHS.items()}
    BatchWriter(make_plan(1), samples, tmp_path / "npz", collate_fn=collate, pad_id=3).write_all()
    for spec, batch in BatchReader(tmp_path / "npz").iter_epoch_specs(0):
        assert spec.samples == batch.sample_ids
        # Padding is on the left.
        assert (batch["input_ids"][:, -1] == 7).all()
        assert int((batch["input_ids"] == 3).sum()) == spec.padded_token_count - spec.token_count


# Analysis


def test_histogram_shows_the_distribution_of_lengths() -> None:
    histogram = compute_length_histogram(LENGTHS, num_bins=4)
    assert [one.count for one in histogram.bins] == [10] * 4
    assert (histogram.p50, histogram.p90) == (20 + 13 * 19, 20 + 13 * 35)
    assert histogram.to_ascii(width=12).count("|############|") == 4


def test_bucket_edges_are_analyzed_and_suggested() -> None:
    analysis = analyze_bucket_efficiency(LENGTHS, BUCKETS)
    assert analysis.overall_efficiency == pytest.approx(TOKENS / 14_500)
    assert "401-600" in analysis.to_ascii()
    suggestion = suggest_bucket_edges(LENGTHS, num_buckets=4, goal=OptimizationGoal.MINIMIZE_WASTE)
    # The fourth bucket ends at the longest sample.
    assert len(suggestion.edges) == 3 and suggestion.overflow_max == 527
    assert suggestion.estimated_efficiency > analysis.overall_efficiency
    better = BucketSpec(edges=suggestion.edges, overflow_max=suggestion.overflow_max)
    assert analyze_bucket_efficiency(LENGTHS, better).overall_efficiency == pytest.approx(
        suggestion.estimated_efficiency
    )


def test_report_recommends_changes() -> None:
    report = create_efficiency_report(LENGTHS, BUCKETS)
    assert any("Packing" in text for text in report.recommendations)
    assert "Recommendations" in report.to_ascii()


def test_chart_shows_each_bucket() -> None:
    spec = BucketSpec(edges=(10, 20, 30), overflow_max=40)
    title, *bars = visualize_buckets({"x": 5, "y": 10, "z": 28}, spec, width=10).splitlines()
    assert "efficiency" in title
    assert [bar.split("|")[1].count("#") for bar in bars] == [10, 0, 5, 0]
    assert [bar.split()[-1] for bar in bars] == ["75.0%", "empty", "93.3%", "empty"]
