"""Calls that both chuk-lazarus and Phalanx support, with their results as plain values."""

import asyncio
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pydantic

LENGTHS = {f"s{n}": 5 + 37 * n % 900 for n in range(60)}
SAMPLES = {name: {"input_ids": [1 + n % 7 for n in range(size)]} for name, size in LENGTHS.items()}
EDGES = (128, 256, 512)


def plain(value: Any) -> Any:
    """Convert a result to plain Python values, so that classes do not matter."""
    if isinstance(value, pydantic.BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(item) for item in value]
        return sorted(items, key=str) if isinstance(value, set | frozenset) else items
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return round(value, 9)
    return value.value if hasattr(value, "value") and not callable(value.value) else value


def sequences(b: Any) -> list[Any]:
    return [
        b.SequenceToPack(sample_id=f"s{n}", input_ids=[n + 1] * size, loss_mask=[0] + [1] * (size - 1))
        for n, size in enumerate((5, 3, 6, 2, 4))
    ]


def stream_samples(s: Any) -> list[Any]:
    return [
        s.StreamSample(
            sample_id=f"g{n}",
            dataset_id="d",
            input_ids=tuple(range(n + 3)),
            loss_mask=(1,) * (n + 3),
            source=s.SampleSource.GYM if n % 2 else s.SampleSource.OFFLINE,
            difficulty=n / 10,
            reward=float(n % 3),
            success=bool(n % 2),
        )
        for n in range(6)
    ]


async def _collect(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def _cache(b: Any, path: pathlib.Path) -> Any:
    async with b.LengthCache.create(path, "v1") as cache:
        for name, length in LENGTHS.items():
            await cache.add(name, length)
    again = await b.LengthCache.load(path)
    entries = await _collect(b.LengthCache.stream(path))
    return [again.get_all(), again.get("s3"), again.is_complete({"s1"}), len(again), plain(entries[:2])]


def _plan(b: Any, **more: Any) -> Any:
    config = b.BatchingConfig(
        mode="predictable", pad_policy="pad_to_bucket", bucket_edges=EDGES, overflow_max=1024, drop_last=False
    )
    return asyncio.run(b.BatchPlanBuilder(LENGTHS, config, "d", "t", **more).build(num_epochs=2))


def _members(plan: Any) -> list[Any]:
    return [sorted(name for spec in plan.iter_epoch(epoch) for name in spec.samples) for epoch in (0, 1)]


def _buffer(s: Any, policy: str = "fifo", size: int = 4) -> Any:
    config = s.ReplayBufferConfig(max_size=size, eviction_policy=policy, seed=0)
    buffer = s.ReplayBuffer(config)
    buffer.add_batch(stream_samples(s))
    return buffer


def _written(b: Any, folder: pathlib.Path) -> Any:
    plan = _plan(b)
    b.BatchWriter(plan, SAMPLES, folder).write_all()
    reader = b.BatchReader(folder)
    batch = reader.get_batch(0, 0)
    total = sum(int((one["input_ids"] > 0).sum()) for one in reader.iter_epoch(0))
    return [reader.num_epochs, reader.fingerprint == plan.fingerprint, total, sorted(batch)[:2] != []]


def cases() -> Iterator[tuple[str, Callable[[Any, Any, pathlib.Path], Any]]]:
    """(name, what is called); each gives something that can be compared."""

    def spec(b: Any) -> Any:
        return b.BucketSpec(edges=EDGES, overflow_max=1024)

    yield (
        "BucketSpec",
        lambda b, s, f: [
            (spec(b).get_bucket_id(n), spec(b).should_skip(n)) for n in (1, 128, 129, 512, 513, 1024, 1025)
        ],
    )
    yield (
        "BucketSpec ranges",
        lambda b, s, f: [
            (spec(b).get_bucket_range(k), spec(b).get_bucket_max_length(k), spec(b).is_overflow(k))
            for k in range(4)
        ],
    )
    yield "BucketSpec.from_max_length", lambda b, s, f: b.BucketSpec.from_max_length(1000, 4).edges
    yield "BucketSpec.default", lambda b, s, f: b.BucketSpec.default()
    yield "BucketSpec edges that descend", lambda b, s, f: b.BucketSpec(edges=(5, 3), overflow_max=9)

    def stats(b: Any) -> Any:
        found = b.BucketStats(bucket_id=0, bucket_max_length=10)
        for length in (3, 9):
            found.add_sample(length)
        return [found.padding_tokens, found.padding_ratio, found.efficiency, found.avg_length]

    yield "BucketStats", lambda b, s, f: stats(b)
    yield (
        "LengthEntry",
        lambda b, s, f: json.loads(b.LengthEntry(sample_id="a", tokenizer_hash="t", length=3).to_json()),
    )
    yield "LengthCache", lambda b, s, f: asyncio.run(_cache(b, f / "lengths.jsonl"))

    def sampler(b: Any) -> Any:
        return b.TokenBudgetBatchSampler(LENGTHS, spec(b), token_budget=4096, seed=1)

    yield (
        "sampler",
        lambda b, s, f: [
            sampler(b).num_samples,
            sampler(b).num_skipped,
            sampler(b).bucket_sizes(),
            sampler(b).token_budget,
            sampler(b).get_bucket_distribution(),
            sampler(b).estimate_batches_per_epoch(),
        ],
    )

    def epoch(b: Any) -> Any:
        found = asyncio.run(_collect(sampler(b).iter_epoch(0)))
        return [
            sorted(name for batch in found for name in batch.sample_ids),
            max(batch.padded_token_count for batch in found) <= 4096,
            len(found),
        ]

    yield "sampler epoch", lambda b, s, f: epoch(b)
    yield (
        "sampler metrics",
        lambda b, s, f: (
            lambda m: [m.total_tokens, m.padded_tokens, m.padding_waste, m.efficiency, m.avg_batch_size]
        )(sampler(b).compute_metrics()),
    )

    def metrics(b: Any) -> Any:
        found = b.BatchMetrics()
        found.record_sample(0, 10, 4, 16)
        found.record_sample(1, 30, 30, 32)
        found.record_batch(0, 2)
        found.record_skip()
        found.record_time(2.0)
        return found

    yield (
        "BatchMetrics",
        lambda b, s, f: (
            lambda m: [
                m.padding_tokens,
                m.padding_waste,
                m.loss_efficiency,
                m.tokens_per_second,
                m.effective_tokens_per_second,
                m.samples_per_second,
                m.skip_rate,
                m.shape_histogram.bucket_fraction(0),
            ]
        )(metrics(b)),
    )
    yield "BatchMetrics.summary", lambda b, s, f: metrics(b).summary()
    yield (
        "BatchingConfig",
        lambda b, s, f: (
            lambda c: [c.token_budget, c.bucket_edges, c.overflow_max, c.seed, c.is_predictable, c.drop_last]
        )(b.BatchingConfig.predictable(4096, EDGES, 1024, 7)),
    )
    yield (
        "BatchingConfig pad",
        lambda b, s, f: [
            b.BatchingConfig.throughput(4096, EDGES, 1024).get_pad_length(0, 77),
            b.BatchingConfig.predictable(4096, EDGES, 1024).get_pad_length(0, 77),
        ],
    )

    def printed(b: Any, folder: pathlib.Path) -> Any:
        config = b.BatchingConfig.predictable(4096, EDGES, 1024)
        batches = asyncio.run(_collect(sampler(b).iter_epoch(0)))
        found = b.compute_batch_fingerprint(batches, config)
        b.save_fingerprint(found, str(folder / "print.json"))
        other = b.load_fingerprint(str(folder / "print.json"))
        same = b.verify_batch_fingerprint(batches, found, config)
        return [found.matches(other), found.num_batches, found.total_samples, same[0]]

    yield "fingerprint", lambda b, s, f: printed(b, f)

    def packed(b: Any, **how: Any) -> Any:
        found = b.pack_sequences(sequences(b), b.PackingConfig(max_length=8, **how))
        return [
            (list(p.sample_ids), p.length, p.num_segments, p.num_loss_tokens, plain(p.segment_ids))
            for p in found
        ]

    yield "pack_sequences", lambda b, s, f: packed(b)
    yield "pack_sequences first_fit", lambda b, s, f: packed(b, mode="first_fit")
    yield "pack_sequences greedy", lambda b, s, f: [row[:4] for row in packed(b, mode="greedy")]
    yield (
        "pack_sequences separator",
        lambda b, s, f: [
            row[:3] for row in packed(b, mode="first_fit", add_separator=True, separator_token_id=99)
        ],
    )
    yield (
        "overlong sample packed",
        lambda b, s, f: b.pack_sequences(
            [b.SequenceToPack(sample_id="a", input_ids=[1] * 9, loss_mask=[1] * 9)],
            b.PackingConfig(max_length=8),
        ),
    )
    yield (
        "unequal loss mask",
        lambda b, s, f: b.SequenceToPack(sample_id="a", input_ids=[1, 2], loss_mask=[1]),
    )
    yield (
        "create_segment_attention_mask",
        lambda b, s, f: b.create_segment_attention_mask([1, 1, 2], use_mlx=False),
    )
    yield (
        "compute_packing_metrics",
        lambda b, s, f: b.compute_packing_metrics(
            b.pack_sequences(sequences(b), b.PackingConfig(max_length=8, mode="first_fit"))
        ),
    )
    yield (
        "plan",
        lambda b, s, f: [
            _plan(b).num_epochs,
            _plan(b).total_microbatches,
            _members(_plan(b)),
            _plan(b).fingerprint == _plan(b).fingerprint,
            _plan(b).get_epoch(0).num_microbatches,
        ],
    )
    yield "plan from the middle", lambda b, s, f: len(list(_plan(b).iter_from(1, 2)))
    yield "plan shard", lambda b, s, f: [_plan(b).shard(r, 4).total_microbatches for r in range(4)]

    def saved(b: Any, folder: pathlib.Path) -> Any:
        plan = _plan(b)
        b.save_batch_plan(plan, folder / "plan")
        return b.load_batch_plan(folder / "plan").fingerprint == plan.fingerprint

    yield "plan saved", lambda b, s, f: saved(b, f)

    def by_hand(b: Any) -> Any:
        meta = b.BatchPlanMeta.create(
            dataset_hash="d",
            tokenizer_hash="t",
            batching_config=b.BatchingConfig.predictable(4096, EDGES, 1024),
            num_epochs=1,
        )
        plan = b.BatchPlan(meta=meta)
        batch = b.MicrobatchSpec(samples=("a", "b"), bucket_id=0, max_len=128, index=0)
        plan.add_epoch(b.EpochPlan(epoch=0, seed=1, microbatches=(batch,), total_samples=2, total_tokens=9))
        return [plan.total_microbatches, [spec.samples for spec in plan.iter_epoch(0)]]

    yield "plan by hand", lambda b, s, f: by_hand(b)
    yield "pad_sequences", lambda b, s, f: b.pad_sequences([[1, 2], [3]], 0, 3)
    yield (
        "default_collate",
        lambda b, s, f: {
            name: plain(value)
            for name, value in b.default_collate(
                [{"input_ids": [1, 2], "loss_mask": [0, 1]}, {"input_ids": [3], "loss_mask": [1]}], 4, 0
            ).items()
            if name in ("input_ids", "loss_mask")
        },
    )
    yield (
        "default_collate too long",
        lambda b, s, f: b.default_collate([{"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}], 2, 0)[
            "input_ids"
        ],
    )
    yield "batch files", lambda b, s, f: _written(b, f / "batches")
    yield (
        "compute_length_histogram",
        lambda b, s, f: (
            lambda h: [h.total_samples, h.min_length, h.max_length, h.mean_length, h.p50, h.p99]
        )(b.compute_length_histogram(LENGTHS, num_bins=8)),
    )
    yield (
        "analyze_bucket_efficiency",
        lambda b, s, f: (
            lambda a: [
                round(a.overall_efficiency, 6),
                [(one.sample_count, one.total_tokens, one.padded_tokens) for one in a.buckets],
            ]
        )(b.analyze_bucket_efficiency(LENGTHS, spec(b))),
    )
    yield (
        "suggest_bucket_edges",
        lambda b, s, f: (
            b.suggest_bucket_edges(
                LENGTHS, num_buckets=3, goal=b.OptimizationGoal.MINIMIZE_WASTE, max_length=1024
            ).edges
        ),
    )
    yield (
        "create_efficiency_report",
        lambda b, s, f: (lambda r: [r.total_samples, r.total_tokens, round(r.overall_efficiency, 6)])(
            b.create_efficiency_report(LENGTHS, spec(b))
        ),
    )

    yield (
        "StreamSample",
        lambda b, s, f: [
            (x.length, x.is_gym_sample, x.is_replay, x.with_replay().is_replay, x.with_replay().replay_count)
            for x in stream_samples(s)
        ],
    )

    def stream_metrics(s: Any) -> Any:
        found = s.StreamMetrics()
        for sample in stream_samples(s):
            found.record_sample(sample)
        found.record_filtered()
        found.record_episode(True)
        return found

    yield (
        "StreamMetrics",
        lambda b, s, f: (
            lambda m: [m.samples_total, m.filter_rate, m.success_rate, m.mean_length, m.mean_difficulty]
        )(stream_metrics(s)),
    )
    yield "StreamMetrics.to_dict", lambda b, s, f: sorted(stream_metrics(s).to_dict())
    for policy in ("fifo", "priority"):
        yield (
            f"ReplayBuffer {policy}",
            lambda b, s, f, policy=policy: (
                lambda r: [
                    r.size,
                    r.is_full,
                    r.can_sample,
                    r.total_added,
                    r.total_evicted,
                    sorted(x.sample_id for x in r.get_all()),
                    sorted(x.sample_id for x in r.filter(lambda x: x.length > 6)),
                    sorted(x.sample_id for x in r.filter_by_success(True)),
                    r.snapshot().get_lengths(),
                    r.update_priority("g5", 3.0),
                    r.update_priority("none", 3.0),
                ]
            )(_buffer(s, policy)),
        )
    yield (
        "ReplayBuffer means",
        lambda b, s, f: (lambda r: [r.mean_difficulty, r.mean_reward, r.success_rate])(_buffer(s, size=10)),
    )
    yield "ReplayBuffer.sample", lambda b, s, f: len({x.sample_id for x in _buffer(s, size=10).sample(3)})

    def offline(s: Any, folder: pathlib.Path) -> Any:
        path = folder / "data.jsonl"
        rows = [
            {"sample_id": f"o{n}", "input_ids": [1] * (n + 1), "loss_mask": [1] * (n + 1)} for n in range(9)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = [sample.sample_id for sample in s.OfflineDatasetStream(path, "x", 1, 6)]
        other = s.OfflineDatasetStream(path, dataset_id="x")
        return [found, other.count_samples(), [x.sample_id for x in other.peek(2)]]

    yield "OfflineDatasetStream", lambda b, s, f: offline(s, f)
    yield (
        "enums",
        lambda b, s, f: [
            [plain(member) for member in getattr(s, name)]
            for name in ("SampleSource", "EpisodeStatus", "StreamState", "BufferEvictionPolicy")
        ],
    )
    yield "PuzzleGame values", lambda b, s, f: [plain(member) for member in s.PuzzleGame]
    yield "PuzzleDifficulty", lambda b, s, f: [plain(member) for member in s.PuzzleDifficulty]
