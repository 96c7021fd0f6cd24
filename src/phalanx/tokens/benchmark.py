"""How fast and how tight token batching is on this machine: one record for each figure, with its conditions.

The command line is in `phalanx.cli.bench`; other libraries are measured in the folder `benchmarks`; padding
against shuffling is in `shuffle_curve`.
"""

import asyncio
import dataclasses
import math
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Int32

from phalanx.core import engine
from phalanx.tokens.analysis.efficiency import suggest_bucket_edges
from phalanx.tokens.benchmark_facts import bin_facts, check_packs, conditions, peak_memory_mb, plan_facts
from phalanx.tokens.lengths.cache import LengthCache
from phalanx.tokens.lengths.table import Lengths, LengthTable
from phalanx.tokens.packing.config import PackingConfig, PackingMode
from phalanx.tokens.packing.layout import pack_lengths
from phalanx.tokens.packing.packed_batch import iter_packed_batches, pack_tokens
from phalanx.tokens.plans.builder import BatchPlanBuilder
from phalanx.tokens.plans.config import BatchingConfig, BatchingMode
from phalanx.tokens.plans.files import load_batch_plan, save_batch_plan
from phalanx.tokens.plans.plan import BatchPlan

Distribution = Literal["lognormal", "hard"]
Result = TypeVar("Result")

EDGES = (128, 256, 512, 1024)
OVERFLOW = 2048
BUDGET = 16_384
CAPACITY = 2048
RANKS = 8
MODEL_WIDTH = 2048
"""Hidden size of the model whose FLOPs are balanced."""
PACKS_AT_A_TIME = BUDGET // CAPACITY
STANDARD_SAMPLES = 1_000_000
"""The size that the targets speak of."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What a field of a record must reach at the standard size."""

    field: str
    at_most: float | None = None
    at_least: float | None = None

    def passed(self, record: dict[str, Any]) -> bool:
        """Whether the record reaches it."""
        value = record[self.field]
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


def draw_lengths(distribution: Distribution, samples: int) -> Int32[np.ndarray, " samples"]:
    """Log-normal lengths, mean about 300, clipped to 1..2048; or hard to pack: uniform from 300 to 1300."""
    rng = np.random.default_rng(0)
    if distribution == "hard":
        return rng.integers(300, 1301, samples).astype(np.int32)
    drawn = rng.lognormal(math.log(300) - 0.5, 1.0, samples)
    return np.clip(np.rint(drawn), 1, OVERFLOW).astype(np.int32)


def batching_config(mode: BatchingMode, **others: Any) -> BatchingConfig:
    """The settings that every plan here is made with."""
    make = BatchingConfig.predictable if mode is BatchingMode.PREDICTABLE else BatchingConfig.throughput
    return make(BUDGET, EDGES, OVERFLOW, seed=0, **others)


class Benchmark:
    """All figures for one number of samples; `run` yields a record as soon as it is measured."""

    def __init__(self, samples: int = STANDARD_SAMPLES, repeats: int = 5) -> None:
        if samples < 100:
            raise ValueError(f"a benchmark needs at least 100 samples, got {samples}")
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        self.samples = samples
        self.repeats = repeats
        self._table = _table(draw_lengths("lognormal", samples))

    def run(self) -> Iterator[dict[str, Any]]:
        """Every figure, in the order of the command's table."""
        yield from self.plans()
        yield from self.suggestions()
        yield from self.assignments()
        yield from self.materialised()
        with tempfile.TemporaryDirectory() as folder:
            yield from self.plan_files(pathlib.Path(folder))
            yield from self.length_caches(pathlib.Path(folder))
        yield from self.balance()
        yield from self.scaling()

    def plans(self) -> Iterator[dict[str, Any]]:
        """One-epoch plans in both modes: time, memory, efficiency, drift of length over the epoch."""
        floors = {BatchingMode.PREDICTABLE: 0.69, BatchingMode.THROUGHPUT: 0.97}
        for mode, floor in floors.items():
            config = batching_config(mode)
            call = partial(build_plan, self._table, config)
            seconds, plan = self._time(call)
            mapping = self._table.as_dict()
            begun = time.perf_counter()
            build_plan(mapping, config)
            from_mapping = time.perf_counter() - begun
            del mapping
            yield self._record(
                f"plan {mode}",
                seconds,
                {
                    "seconds_from_mapping": round(from_mapping, 4),
                    **plan_facts(plan),
                    "peak_memory_mb": peak_memory_mb(call),
                },
                Target("efficiency", at_least=floor),
                Target("drift", at_most=0.05),
            )

    def suggestions(self) -> Iterator[dict[str, Any]]:
        """Bucket edges by dynamic programming."""
        for buckets, optimum in ((4, 0.636), (8, 0.799)):
            call = partial(suggest_bucket_edges, self._table, buckets, max_length=OVERFLOW)
            seconds, found = self._time(call)
            facts = {"edges": list(found.edges), "efficiency": round(found.estimated_efficiency, 6)}
            target = Target("efficiency", at_least=optimum)
            yield self._record(f"suggest {buckets} buckets", seconds, facts, target)

    def assignments(self) -> Iterator[dict[str, Any]]:
        """Bins from lengths alone."""
        cases: tuple[tuple[Distribution, PackingMode, tuple[Target, ...]], ...] = (
            ("lognormal", PackingMode.BEST_FIT_DECREASING, (Target("over_bound", at_most=0.0001),)),
            ("hard", PackingMode.BEST_FIT_DECREASING, (Target("fill", at_least=0.9893),)),
            (
                "hard",
                PackingMode.HYBRID,
                (Target("fill", at_least=0.995), Target("seconds_worst", at_most=2.0)),
            ),
        )
        for distribution, mode, targets in cases:
            lengths = draw_lengths(distribution, self.samples)
            seconds, bins = self._time(partial(pack_lengths, lengths, CAPACITY, mode))
            facts = {
                "distribution": distribution,
                "compiled": engine.extension() is not None,
                **bin_facts(bins, lengths, CAPACITY),
            }
            yield self._record(f"assign {mode}", seconds, facts, *targets)

    def materialised(self) -> Iterator[dict[str, Any]]:
        """Packing with tokens: assignment, tokens, loss mask, segments, positions; every bin is checked.

        All packs at once, which takes new memory of 13 bytes a token, and a batch's worth at a time.
        """
        samples = max(100, self.samples // 10)
        lengths = draw_lengths("lognormal", samples)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        tokens = np.arange(offsets[-1], dtype=np.int32) % np.int32(50_000)
        config = PackingConfig(max_length=CAPACITY)
        check_packs(pack_tokens(tokens, offsets, config), tokens, offsets)

        def at_once() -> int:
            return len(pack_tokens(tokens, offsets, config))

        def in_parts() -> int:
            return sum(map(len, iter_packed_batches(tokens, offsets, config, PACKS_AT_A_TIME)))

        for name, call in (("pack tokens", at_once), ("pack tokens in parts", in_parts)):
            seconds, packs = self._time(call)
            facts = {
                "packed_samples": samples,
                "tokens": len(tokens),
                "bins": packs,
                "tokens_per_second": round(len(tokens) / statistics.median(seconds)),
            }
            yield self._record(name, seconds, facts)

    def plan_files(self, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
        """A plan saved and loaded; loading maps the arrays, and one batch is taken from them."""
        plan = build_plan(self._table, batching_config(BatchingMode.THROUGHPUT))
        target = folder / "plan"

        def save() -> None:
            shutil.rmtree(target, ignore_errors=True)
            save_batch_plan(plan, target)

        seconds, _ = self._time(save)
        size = sum(file.stat().st_size for file in target.iterdir())
        yield self._record("save plan", seconds, {"bytes": size}, Target("bytes", at_most=12_900_000))
        seconds, loaded = self._time(partial(load_batch_plan, target))
        assert loaded.total_microbatches == plan.total_microbatches
        yield self._record("load plan", seconds, {"bytes": size}, Target("seconds_median", at_most=0.05))

    def length_caches(self, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
        """Length caches written and read, as lines and in the binary form."""
        ids, lengths = list(self._table.ids), self._table.lengths

        async def write(path: pathlib.Path) -> None:
            async with LengthCache.create(path, "benchmark") as cache:
                await cache.add_many(ids, lengths)

        def rewrite(path: pathlib.Path) -> None:
            path.unlink(missing_ok=True)
            asyncio.run(write(path))

        def read(path: pathlib.Path) -> LengthCache:
            return asyncio.run(LengthCache.load(path))

        limits = {".jsonl": (1.5, 1.5), ".npz": (None, 0.01)}
        for suffix, (write_limit, read_limit) in limits.items():
            path = folder / f"lengths{suffix}"

            seconds, _ = self._time(partial(rewrite, path))
            facts = {"bytes": path.stat().st_size, "form": suffix[1:]}
            limit = [Target("seconds_median", at_most=write_limit)] if write_limit else []
            yield self._record("write lengths", seconds, facts, *limit)
            seconds, cache = self._time(partial(read, path))
            assert np.array_equal(cache.lengths, lengths)
            yield self._record("read lengths", seconds, facts, Target("seconds_median", at_most=read_limit))

    def balance(self) -> Iterator[dict[str, Any]]:
        """Eight ranks: how much longer than the ideal the slowest works, in a transformer's FLOPs."""
        config = batching_config(BatchingMode.THROUGHPUT)
        for name, packing in (("padded", None), ("packed", PackingConfig(max_length=CAPACITY))):
            plan = build_plan(self._table, config, packing)
            seconds, shards = self._time(partial(_shards, plan))
            found = plan.measure_balance(0, RANKS, "pad", balance=True, model_width=MODEL_WIDTH)
            plain = plan.measure_balance(0, RANKS, "pad", balance=False, model_width=MODEL_WIDTH)
            counts = {shard.total_microbatches for shard in shards}
            facts = {
                "ranks": RANKS,
                "model_width": MODEL_WIDTH,
                "rows": name,
                "slowest_over_ideal": round(found.by_rank, 6),
                "slowest_over_ideal_each_step": round(found.by_step, 6),
                "unbalanced": round(plain.by_rank, 6),
                "unbalanced_each_step": round(plain.by_step, 6),
                "equal_counts": len(counts) == 1,
                "largest_batch": max(
                    int(shard.epochs[0].batches.padded_tokens.max(initial=0)) for shard in shards
                ),
            }
            yield self._record(
                "shard for eight ranks",
                seconds,
                facts,
                Target("slowest_over_ideal_each_step", at_most=1.001),
                Target("equal_counts", at_least=1),
                Target("largest_batch", at_most=BUDGET),
            )

    def scaling(self) -> Iterator[dict[str, Any]]:
        """Throughput plans of a hundredth, of all and of ten times as many samples."""
        config = batching_config(BatchingMode.THROUGHPUT)
        for samples in (self.samples // 100, self.samples, self.samples * 10):
            table = LengthTable.from_arrays(None, draw_lengths("lognormal", samples))
            call = partial(build_plan, table, config)
            seconds, _ = self._time(call, min(self.repeats, 3))
            memory = peak_memory_mb(call)
            facts = {
                "planned_samples": samples,
                "nanoseconds_a_sample": round(1e9 * statistics.median(seconds) / samples, 1),
                "peak_memory_mb": memory,
                "bytes_a_sample": round(memory * 2**20 / samples, 1),
            }
            yield self._record("growth", seconds, facts)

    def _time(self, call: Callable[[], Result], repeats: int | None = None) -> tuple[list[float], Result]:
        """Seconds of each repeat, after one call that is not counted, and the last result."""
        result = call()
        seconds = []
        for _ in range(self.repeats if repeats is None else repeats):
            begun = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - begun)
        return seconds, result

    def _record(
        self, figure: str, seconds: list[float], facts: dict[str, Any], *targets: Target
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "benchmark": "tokens",
            "figure": figure,
            "samples": self.samples,
            "seconds_median": round(statistics.median(seconds), 6),
            "seconds_worst": round(max(seconds), 6),
            "repeats": len(seconds),
            **facts,
        }
        if targets and self.samples == STANDARD_SAMPLES:
            record["targets"] = {
                target.field: {
                    name: value
                    for name, value in (("at_most", target.at_most), ("at_least", target.at_least))
                    if value is not None
                }
                for target in targets
            }
            record["passed"] = all(target.passed(record) for target in targets)
        return {**record, **conditions()}


def build_plan(lengths: Lengths, config: BatchingConfig, packing: PackingConfig | None = None) -> BatchPlan:
    """A plan of one epoch."""
    return BatchPlanBuilder(lengths, config, packing=packing).build_now()


def _shards(plan: BatchPlan) -> list[BatchPlan]:
    return [plan.shard(rank, RANKS, "pad", balance=True, model_width=MODEL_WIDTH) for rank in range(RANKS)]


def _table(lengths: Int32[np.ndarray, " samples"]) -> LengthTable:
    return LengthTable.from_arrays([f"s{row}" for row in range(len(lengths))], lengths)
