"""The token batching module's description: each block of its offline part runs with only its imports changed.

Each test holds one block; what the block leaves out is supplied above it. The commands are in
`test_token_batching_commands.py`.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchPlan,
    BucketSpec,
    TokenBudgetBatchSampler,
)


@dataclasses.dataclass(frozen=True)
class Sample:
    id: str
    length: int
    num_loss_tokens: int


SAMPLES = [Sample(f"s{i}", 100 + i * 10, 10 + i) for i in range(50)]


@pytest.fixture
def lengths() -> dict[str, int]:
    return {sample.id: sample.length for sample in SAMPLES}


@pytest.fixture
def bucket_spec() -> BucketSpec:
    return BucketSpec(edges=(128, 256, 512), overflow_max=1024)


@pytest.fixture
def config() -> BatchingConfig:
    return BatchingConfig.predictable(token_budget=4096, bucket_edges=(128, 256, 512), seed=42)


@pytest.fixture
def sampler(lengths: dict[str, int], bucket_spec: BucketSpec) -> TokenBudgetBatchSampler:
    return TokenBudgetBatchSampler(lengths=lengths, bucket_spec=bucket_spec, token_budget=4096, seed=42)


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    from phalanx.compat.chuk_lazarus.data.batching import (
        BatchingConfig,
        BatchPlanBuilder,
        BucketSpec,
        TokenBudgetBatchSampler,
    )

    async def main():
        # Sample lengths (normally from tokenized data)
        lengths = {f"s{i}": 100 + i * 10 for i in range(50)}

        # Configure bucketing
        bucket_spec = BucketSpec(
            edges=(128, 256, 512),
            overflow_max=1024,
        )

        # Create sampler
        sampler = TokenBudgetBatchSampler(
            lengths=lengths,
            bucket_spec=bucket_spec,
            token_budget=2048,
            seed=42,
        )

        # Iterate batches
        async for batch in sampler.iter_epoch(epoch=0):
            print(f"Batch: {batch.batch_size} samples, {batch.max_length} max len")

    asyncio.run(main())

    lines = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[1]) for line in lines) == 50
    # 3 samples of up to 128, 13 of up to 256 and 26 of up to 512, in rows of 16, 8 and 4 at 2048 tokens;
    # 8 are longer, 2 to a batch.
    assert len(lines) == 1 + 2 + 7 + 4
    assert BatchingConfig is not None and BatchPlanBuilder is not None


def test_buckets() -> None:
    from phalanx.compat.chuk_lazarus.data.batching import BucketSpec, BucketStats

    # Define bucket boundaries
    bucket_spec = BucketSpec(
        edges=(128, 256, 512),  # Bucket boundaries
        overflow_max=1024,  # Max for overflow bucket
    )

    # Get bucket for a length
    bucket_id = bucket_spec.get_bucket(150)  # Returns 1 (129-256)

    # Get bucket range
    min_len, max_len = bucket_spec.get_bucket_range(bucket_id)

    # Check if overflow
    is_overflow = bucket_spec.is_overflow(bucket_id)

    assert (bucket_id, min_len, max_len, is_overflow) == (1, 129, 256, False)
    assert BucketStats(bucket_id=1, bucket_max_length=256).efficiency == 1.0


def test_length_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    samples = SAMPLES

    async def block() -> dict[str, int]:
        from phalanx.compat.chuk_lazarus.data.batching import LengthCache

        # Build cache
        async with LengthCache.create("lengths.jsonl", "tokenizer_v1") as cache:
            for sample in samples:
                await cache.add(sample.id, sample.length)

        # Load cache
        cache = await LengthCache.load("lengths.jsonl")

        # Get all lengths
        lengths = cache.get_all()  # Dict[str, int]
        assert isinstance(lengths, dict)
        return lengths

    assert asyncio.run(block()) == {sample.id: sample.length for sample in samples}
    first = (tmp_path / "lengths.jsonl").read_text().splitlines()[0]
    assert first == '{"sample_id":"s0","tokenizer_hash":"tokenizer_v1","length":100}'


def test_sampler(
    lengths: dict[str, int], bucket_spec: BucketSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    async def block() -> None:
        from phalanx.compat.chuk_lazarus.data.batching import BatchSpec, TokenBudgetBatchSampler

        sampler = TokenBudgetBatchSampler(
            lengths=lengths,  # Dict[str, int] from LengthCache
            bucket_spec=bucket_spec,
            token_budget=4096,  # Max tokens per batch
            seed=42,  # For reproducibility
        )

        # Get info
        print(f"Samples: {sampler.num_samples}")
        print(f"Est. batches/epoch: {sampler.estimate_batches_per_epoch()}")

        # Iterate epoch
        async for batch_spec in sampler.iter_epoch(epoch=0):
            print(f"Batch: {batch_spec.batch_size} samples")
            print(f"Max length: {batch_spec.max_length}")
            print(f"Sample IDs: {batch_spec.sample_ids}")
            assert isinstance(batch_spec, BatchSpec)

    asyncio.run(block())
    printed = capsys.readouterr().out
    assert printed.startswith("Samples: 50\nEst. batches/epoch: 8\n")
    assert printed.count("Max length:") == 8


def test_metrics(sampler: TokenBudgetBatchSampler, capsys: pytest.CaptureFixture[str]) -> None:
    samples = {sample.id: sample for sample in SAMPLES}

    from phalanx.compat.chuk_lazarus.data.batching import BatchMetrics

    # Compute metrics
    loss_tokens = {sample_id: sample.num_loss_tokens for sample_id, sample in samples.items()}
    metrics = sampler.compute_metrics(loss_tokens_per_sample=loss_tokens)

    # Summary
    print(metrics.summary())
    # {
    #     'total_samples': 100,
    #     'total_batches': 15,
    #     'efficiency': 0.66,
    #     'padding_waste': 0.34,
    #     ...
    # }

    # Per-bucket breakdown
    for bucket in metrics.bucket_summary():
        print(f"Bucket {bucket['bucket_id']}: {bucket['efficiency']}")

    assert isinstance(metrics, BatchMetrics)
    assert metrics.loss_tokens == sum(sample.num_loss_tokens for sample in SAMPLES)
    summary = metrics.summary()
    assert summary["total_samples"] == 50
    assert summary["efficiency"] + summary["padding_waste"] == pytest.approx(1)
    assert "Bucket 3:" in capsys.readouterr().out


def test_predictability(sampler: TokenBudgetBatchSampler, capsys: pytest.CaptureFixture[str]) -> None:
    batches = list(sampler.iter_batches(0))

    from phalanx.compat.chuk_lazarus.data.batching import (
        BatchingConfig,
        BatchingMode,
        PadPolicy,
        compute_batch_fingerprint,
        verify_batch_fingerprint,
    )

    # Create predictable config
    config = BatchingConfig.predictable(
        token_budget=4096,
        bucket_edges=(128, 256, 512),
        seed=42,
    )
    assert config.mode is BatchingMode.PREDICTABLE and config.pad_policy is PadPolicy.PAD_TO_BUCKET

    # Or throughput-optimized config
    config = BatchingConfig.throughput(
        token_budget=4096,
        bucket_edges=(128, 256, 512),
    )

    # Compute fingerprint for verification
    fingerprint = compute_batch_fingerprint(batches, config)
    print(f"Fingerprint: {fingerprint.fingerprint}")

    # Verify later runs match
    matches, error = verify_batch_fingerprint(batches, fingerprint)
    if not matches:
        print(f"Batching changed: {error}")

    assert matches and error is None
    batches.reverse()
    matches, error = verify_batch_fingerprint(batches, fingerprint)
    assert not matches and error is not None and error.startswith("order changed")
    assert len(capsys.readouterr().out.split()[1]) == 16


def test_packing(capsys: pytest.CaptureFixture[str]) -> None:
    from phalanx.compat.chuk_lazarus.data.batching import (
        PackingConfig,
        PackingMode,
        SequenceToPack,
        compute_packing_metrics,
        create_segment_attention_mask,
        pack_sequences,
    )

    # Prepare sequences
    sequences = [
        SequenceToPack(
            sample_id="s1",
            input_ids=[1, 2, 3, 4],
            loss_mask=[0, 0, 1, 1],
        ),
        # ... more sequences
        SequenceToPack(sample_id="s2", input_ids=[5, 6], loss_mask=[0, 1]),
    ]

    # Configure packing
    config = PackingConfig(
        mode=PackingMode.FIRST_FIT,
        max_length=512,
        pad_to_max=True,
    )

    # Pack sequences
    packed = pack_sequences(sequences, config, pad_token_id=0)

    # Each packed sequence has:
    for p in packed:
        print(f"Samples: {p.sample_ids}")
        print(f"Segments: {p.num_segments}")
        print(f"Efficiency: {p.efficiency:.1%}")

    # Create attention mask (block-diagonal)
    mask = create_segment_attention_mask(packed[0].segment_ids)
    # Shape: (seq_len, seq_len), blocks attention across segments

    # Compute packing metrics
    metrics = compute_packing_metrics(packed)
    print(f"Packing ratio: {metrics.packing_ratio:.2f}x")
    print(f"Token reduction: {1 - 1 / metrics.packing_ratio:.0%}")

    assert mask.shape == (512, 512) and int(mask.sum()) == (1 + 2 + 3 + 4) + (1 + 2)
    assert capsys.readouterr().out.splitlines() == [
        "Samples: ('s1', 's2')",
        "Segments: 2",
        "Efficiency: 1.2%",
        "Packing ratio: 2.00x",
        "Token reduction: 50%",
    ]


def test_batch_plan(
    lengths: dict[str, int],
    config: BatchingConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    world_size = 4
    shards: list[BatchPlan] = []
    resumed: list[tuple[int, int]] = []

    async def block() -> tuple[BatchPlan, BatchPlan]:
        from phalanx.compat.chuk_lazarus.data.batching import (
            BatchPlan,
            BatchPlanBuilder,
            load_batch_plan,
            save_batch_plan,
        )

        # Build plan
        builder = BatchPlanBuilder(
            lengths=lengths,
            batching_config=config,
            dataset_hash="my_dataset_v1",
            tokenizer_hash="tokenizer_v1",
        )

        plan = await builder.build(num_epochs=3)

        print(f"Total microbatches: {plan.total_microbatches}")
        print(f"Fingerprint: {plan.fingerprint}")

        # Save/load
        save_batch_plan(plan, "batch_plan/")
        loaded = load_batch_plan("batch_plan/")

        # Shard for distributed training
        for rank in range(world_size):
            shard = plan.shard(rank=rank, world_size=world_size)
            # Each worker gets non-overlapping batches
            shards.append(shard)

        # Resume from checkpoint
        for epoch, mb_idx, mb in plan.iter_from(epoch=1, microbatch_idx=5):
            # Continues from where training left off
            resumed.append((epoch, mb_idx))
            assert mb.index == mb_idx

        assert isinstance(plan, BatchPlan)
        return plan, loaded

    plan, loaded = asyncio.run(block())
    assert loaded.fingerprint == plan.fingerprint
    assert len({shard.total_microbatches for shard in shards}) == 1
    samples = [sample for shard in shards for batch in shard.iter_epoch(0) for sample in batch.samples]
    assert sorted(samples) == sorted(lengths)
    assert resumed[0] == (1, 5) and resumed[-1][0] == 2
    assert f"Fingerprint: {plan.fingerprint}" in capsys.readouterr().out


def test_batch_files(
    lengths: dict[str, int], config: BatchingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    from phalanx.compat.chuk_lazarus.data.batching import BatchPlanBuilder

    plan = BatchPlanBuilder(lengths, config).build_sync(num_epochs=1)
    samples: dict[str, Any] = {name: {"input_ids": [7] * length} for name, length in lengths.items()}
    seen: list[np.ndarray] = []
    model = seen.append

    from phalanx.compat.chuk_lazarus.data.batching import BatchReader, BatchWriter

    # Write batches to disk
    writer = BatchWriter(plan, samples, output_dir="./batches")
    writer.write_all()

    # Read batches back
    reader = BatchReader("./batches")
    for batch in reader.iter_epoch(0):
        model(batch["input_ids"])

    assert sum(int((array == 7).sum()) for array in seen) == sum(lengths.values())
    assert reader.fingerprint == plan.fingerprint == reader.plan.fingerprint


def test_analysis(
    lengths: dict[str, int], bucket_spec: BucketSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    from phalanx.compat.chuk_lazarus.data.batching import (
        OptimizationGoal,
        analyze_bucket_efficiency,
        compute_length_histogram,
        create_efficiency_report,
        suggest_bucket_edges,
    )

    # Compute length histogram
    histogram = compute_length_histogram(lengths, num_bins=15)
    print(histogram.to_ascii(width=50))
    print(f"P50: {histogram.p50}, P90: {histogram.p90}")

    # Analyze bucket efficiency
    analysis = analyze_bucket_efficiency(lengths, bucket_spec)
    print(f"Overall efficiency: {analysis.overall_efficiency:.1%}")
    print(analysis.to_ascii())

    # Get bucket edge suggestions
    suggestion = suggest_bucket_edges(
        lengths,
        num_buckets=4,
        goal=OptimizationGoal.MINIMIZE_WASTE,
    )
    print(f"Suggested edges: {suggestion.edges}")
    print(f"Estimated efficiency: {suggestion.estimated_efficiency:.1%}")

    # Create complete efficiency report
    report = create_efficiency_report(lengths, bucket_spec)
    print(report.to_ascii())
    for rec in report.recommendations:
        print(f"  - {rec}")

    printed = capsys.readouterr().out
    assert "P50: 340, P90: 540" in printed
    assert len(histogram.bins) == 15 and len(suggestion.edges) == 3
    assert suggestion.estimated_efficiency > analysis.overall_efficiency
    assert report.recommendations
