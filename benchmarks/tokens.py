"""How fast and how tight token batching is: planning, packing, files, shards and growth.

Other libraries are measured in `compare_tokens.py`; `--curve` measures padding against shuffling instead, as
`shuffle_curve` has it.
"""

import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from measuring.conditions import conditions
from measuring.memory import peak_of_call
from measuring.options import options, positive, run_program
from measuring.records import VERDICT, Column, Targets, held_to, machine_line, tell
from measuring.timing import at_least_one, seconds_of, timed
from token_facts import (
    BUDGET,
    CAPACITY,
    EDGES,
    OVERFLOW,
    SEED,
    bin_facts,
    check_packs,
    draw_lengths,
    draw_tokens,
    plan_facts,
)

from phalanx.data import (
    BatchingConfig,
    BatchingMode,
    BatchPlan,
    BatchPlanBuilder,
    LengthCache,
    LengthTable,
    PackingConfig,
    PackingMode,
    iter_packed_batches,
    load_batch_plan,
    pack_lengths,
    pack_tokens,
    save_batch_plan,
    suggest_bucket_edges,
)
from phalanx.data.lengths import Lengths
from phalanx.native import is_native_available

Result = TypeVar("Result")

RANKS = 8
MODEL_WIDTH = 2048
"""Hidden size of the model whose FLOPs are balanced."""
PACKS_AT_A_TIME = BUDGET // CAPACITY
STANDARD_SAMPLES = 1_000_000
"""The size that the targets speak of."""


def batching_config(mode: BatchingMode, **others: Any) -> BatchingConfig:
    """The settings that every plan here is made with."""
    make = BatchingConfig.predictable if mode is BatchingMode.PREDICTABLE else BatchingConfig.throughput
    return make(BUDGET, EDGES, OVERFLOW, seed=SEED, **others)


class Benchmark:
    """All figures for one number of samples; `run` yields a record as soon as it is measured."""

    def __init__(self, samples: int = STANDARD_SAMPLES, repeats: int = 5) -> None:
        if samples < 100:
            raise ValueError(f"a benchmark needs at least 100 samples, got {samples}")
        at_least_one(repeats=repeats)
        self.samples = samples
        self.repeats = repeats
        self._table = _table(draw_lengths("lognormal", samples))

    def run(self) -> Iterator[dict[str, Any]]:
        """Every figure, in the order of the command's table."""
        yield from self.plans()
        yield from self.suggestions()
        yield from self.assignments()
        yield from self.packed_tokens()
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
            from_mapping = seconds_of(partial(build_plan, mapping, config))
            del mapping
            yield self._record(
                f"plan {mode}",
                seconds,
                {
                    "seconds_from_mapping": round(from_mapping, 4),
                    **plan_facts(plan),
                    "peak_memory_mb": peak_of_call(call),
                },
                {"efficiency": {"at_least": floor}, "drift": {"at_most": 0.05}},
            )

    def suggestions(self) -> Iterator[dict[str, Any]]:
        """Bucket edges by dynamic programming."""
        for buckets, optimum in ((4, 0.636), (8, 0.799)):
            call = partial(suggest_bucket_edges, self._table, buckets, max_length=OVERFLOW)
            seconds, found = self._time(call)
            facts = {"edges": list(found.edges), "efficiency": round(found.estimated_efficiency, 6)}
            targets = {"efficiency": {"at_least": optimum}}
            yield self._record(f"suggest {buckets} buckets", seconds, facts, targets)

    def assignments(self) -> Iterator[dict[str, Any]]:
        """Bins from lengths alone."""
        cases: tuple[tuple[str, PackingMode, Targets], ...] = (
            ("lognormal", PackingMode.BEST_FIT_DECREASING, {"over_bound": {"at_most": 0.0001}}),
            ("hard", PackingMode.BEST_FIT_DECREASING, {"fill": {"at_least": 0.9893}}),
            (
                "hard",
                PackingMode.SUBSET_SUM,
                {"fill": {"at_least": 0.995}, "seconds_worst": {"at_most": 2.0}},
            ),
        )
        for distribution, mode, targets in cases:
            lengths = draw_lengths(distribution, self.samples)
            seconds, bins = self._time(partial(pack_lengths, lengths, CAPACITY, mode))
            facts = {
                "distribution": distribution,
                "compiled": is_native_available(),
                **bin_facts(bins, lengths),
            }
            yield self._record(f"assign {mode}", seconds, facts, targets)

    def packed_tokens(self) -> Iterator[dict[str, Any]]:
        """Packing with tokens: assignment, tokens, loss mask, segments, positions; every bin is checked.

        All packs at once, which takes new memory of 13 bytes a token, and a batch's worth at a time.
        """
        samples = max(100, self.samples // 10)
        lengths = draw_lengths("lognormal", samples)
        tokens, offsets = draw_tokens(lengths)
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
        yield self._record("save plan", seconds, {"bytes": size}, {"bytes": {"at_most": 12_900_000}})
        seconds, loaded = self._time(partial(load_batch_plan, target))
        assert loaded.num_batches == plan.num_batches
        yield self._record("load plan", seconds, {"bytes": size}, {"seconds_median": {"at_most": 0.05}})

    def length_caches(self, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
        """Length caches written and read, as lines and in the binary form."""
        ids, lengths = list(self._table.ids), self._table.lengths

        def rewrite(path: pathlib.Path) -> None:
            path.unlink(missing_ok=True)
            with LengthCache.create(path, "benchmark") as cache:
                cache.add_many(ids, lengths)

        limits = {".jsonl": (1.5, 1.5), ".npz": (None, 0.01)}
        for suffix, (write_limit, read_limit) in limits.items():
            path = folder / f"lengths{suffix}"

            seconds, _ = self._time(partial(rewrite, path))
            facts = {"bytes": path.stat().st_size, "form": suffix[1:]}
            targets = {"seconds_median": {"at_most": write_limit}} if write_limit else {}
            yield self._record("write lengths", seconds, facts, targets)
            seconds, cache = self._time(partial(LengthCache.load, path))
            assert np.array_equal(cache.lengths, lengths)
            yield self._record("read lengths", seconds, facts, {"seconds_median": {"at_most": read_limit}})

    def balance(self) -> Iterator[dict[str, Any]]:
        """Eight ranks: how much longer than the ideal the slowest works, in a transformer's FLOPs."""
        config = batching_config(BatchingMode.THROUGHPUT)
        for name, packing in (("padded", None), ("packed", PackingConfig(max_length=CAPACITY))):
            plan = build_plan(self._table, config, packing)
            seconds, shards = self._time(partial(_shards, plan))
            found = plan.measure_balance(0, RANKS, balance=True, d_model=MODEL_WIDTH)
            plain = plan.measure_balance(0, RANKS, balance=False, d_model=MODEL_WIDTH)
            counts = {shard.num_batches for shard in shards}
            facts = {
                "ranks": RANKS,
                "d_model": MODEL_WIDTH,
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
            targets: Targets = {
                "slowest_over_ideal_each_step": {"at_most": 1.001},
                "equal_counts": {"at_least": 1},
                "largest_batch": {"at_most": BUDGET},
            }
            yield self._record("shard for eight ranks", seconds, facts, targets)

    def scaling(self) -> Iterator[dict[str, Any]]:
        """Throughput plans of a hundredth, of all and of ten times as many samples."""
        config = batching_config(BatchingMode.THROUGHPUT)
        for samples in (self.samples // 100, self.samples, self.samples * 10):
            table = LengthTable.from_arrays(None, draw_lengths("lognormal", samples))
            call = partial(build_plan, table, config)
            seconds, _ = self._time(call, min(self.repeats, 3))
            memory = peak_of_call(call)
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
            result, lasted = timed(call)
            seconds.append(lasted)
        return seconds, result

    def _record(
        self, figure: str, seconds: list[float], facts: dict[str, Any], targets: Targets | None = None
    ) -> dict[str, Any]:
        record = {
            "benchmark": "tokens",
            "figure": figure,
            "samples": self.samples,
            "seconds_median": round(statistics.median(seconds), 6),
            "seconds_worst": round(max(seconds), 6),
            "repeats": len(seconds),
            **facts,
        }
        judged = targets if targets and self.samples == STANDARD_SAMPLES else {}
        return {**held_to(record, judged), **conditions("numpy")}


def build_plan(lengths: Lengths, config: BatchingConfig, packing: PackingConfig | None = None) -> BatchPlan:
    """A plan of one epoch."""
    return BatchPlanBuilder(lengths, config, packing=packing).build()


def _shards(plan: BatchPlan) -> list[BatchPlan]:
    return [plan.shard(rank, RANKS, balance=True, d_model=MODEL_WIDTH) for rank in range(RANKS)]


def _table(lengths: np.ndarray) -> LengthTable:
    return LengthTable.from_arrays([f"s{row}" for row in range(len(lengths))], lengths)


_FACTS = (
    "distribution",
    "form",
    "rows",
    "planned_samples",
    "efficiency",
    "fill",
    "over_bound",
    "drift",
    "slowest_over_ideal",
    "tokens_per_second",
    "peak_memory_mb",
    "bytes",
)
"""What a row shows beside its times, where the record has it."""

_COLUMNS = (
    Column("figure", lambda record: record["figure"]),
    Column("median s", lambda record: f"{record['seconds_median']:.4f}", number=True),
    Column("worst s", lambda record: f"{record['seconds_worst']:.4f}", number=True),
    Column("facts", lambda record: ", ".join(f"{name} {record[name]}" for name in _FACTS if name in record)),
    VERDICT,
)


def _footer(records: list[dict[str, Any]]) -> list[str]:
    return [f"{records[-1]['samples']:,} samples, {machine_line(records[-1], 'numpy')}"]


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = options(__doc__)
    parser.add_argument(
        "--samples", type=positive, default=STANDARD_SAMPLES, help="to plan and pack [1000000]"
    )
    parser.add_argument("--peers", action="store_true", help="then run compare_tokens.py")
    parser.add_argument("--curve", type=pathlib.Path, help="draw padding against shuffling to this SVG file")
    asked = parser.parse_args(given)
    if asked.curve is not None:
        if asked.peers:
            parser.error("--curve and --peers are measured separately: give one of them")
        import shuffle_curve

        return shuffle_curve.tell_curve(asked.samples, asked.curve, asked.json)
    try:
        benchmark = Benchmark(asked.samples, asked.repeats)
    except ValueError as error:
        parser.error(str(error))
    tell(benchmark.run(), asked.json, "Token batches", _COLUMNS, _footer)
    if not asked.peers:
        return 0
    passed_on = ["--json"] if asked.json else []
    return run_program("compare_tokens.py", "--repeats", str(asked.repeats), *passed_on)


if __name__ == "__main__":
    sys.exit(main())
