"""Batch plans and packing: samples or tokens per second, and padding efficiency.

The padding efficiency of a plan is the number of tokens divided by the number of slots in its padded batches.
"""

import ctypes
import math
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers import CHUK_LAZARUS, TRL
from benchmarks.suite import Suite, Workload
from benchmarks.timing import Measurement
from benchmarks.workers.token_lengths import (
    BUCKET_EDGES,
    MAX_LENGTH,
    SEED,
    TOKEN_BUDGET,
    lengths_by_id,
    random_lengths,
    random_tokens,
)
from phalanx.data import (
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    EpochPlan,
    LengthTable,
    PackingConfig,
    TokenBatch,
    iter_packed_batches,
    pack_lengths,
    pack_tokens,
)

suite = Suite("batch_planning", unit="samples/s", packages=("numpy",))

_SMOKE = {"num_samples": 500}
_POOL_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


def _config(mode: str, **settings: Any) -> BatchingConfig:
    make = {"buckets": BatchingConfig.predictable, "sorted": BatchingConfig.throughput}[mode]
    return make(TOKEN_BUDGET, BUCKET_EDGES, MAX_LENGTH, seed=SEED, **settings)


def _plan(lengths: Any, mode: str, **settings: Any) -> BatchPlan:
    if mode == "packed":
        packing = PackingConfig(max_length=MAX_LENGTH)
        return BatchPlanBuilder(lengths, _config("sorted"), packing=packing).build()
    return BatchPlanBuilder(lengths, _config(mode, **settings)).build()


@suite.case("plan-buckets", group="plan", smoke=_SMOKE, mode="buckets", input_type="dict")
@suite.case("plan-buckets-table", group="plan", smoke=_SMOKE, mode="buckets", input_type="table")
@suite.case("plan-sorted", group="plan", smoke=_SMOKE, mode="sorted", input_type="dict")
@suite.case("plan-packed", group="plan", smoke=_SMOKE, mode="packed", input_type="dict")
def plan(mode: str, input_type: str, num_samples: int = 1_000_000) -> Workload:
    """Build a plan of one epoch from a dictionary, as chuk-lazarus does, or from a table of lengths.

    The mode `buckets` pads to fixed bucket edges. `sorted` batches samples of similar length and pads to the
    longest one. `packed` packs samples into rows of 2,048 tokens.
    """
    lengths = random_lengths(num_samples)
    given = lengths_by_id(lengths) if input_type == "dict" else LengthTable.from_arrays(None, lengths)
    metrics = _plan(given, mode).compute_metrics(0)
    return Workload(
        lambda: _plan(given, mode), num_samples, {"padding_efficiency": round(metrics.efficiency, 5)}
    )


@suite.case("plan-buckets-ids", group="plan", smoke=_SMOKE, mode="buckets")
def plan_with_ids(mode: str, num_samples: int = 1_000_000) -> Workload:
    """Build a plan from a dictionary, and create all batches with their sample ids.

    chuk-lazarus does the same when it builds a plan. Phalanx creates batches and ids on access.
    """
    given = lengths_by_id(random_lengths(num_samples))

    def run() -> int:
        return sum(len(batch.sample_ids) for batch in _plan(given, mode).iter_epoch(0))

    if (num_planned := run()) != num_samples:
        raise AssertionError(f"the batches contain {num_planned} of {num_samples} samples")
    return Workload(run, num_samples)


suite.peer_case(
    "chuk-lazarus-plan-buckets",
    CHUK_LAZARUS,
    "chuk_lazarus_batching",
    group="plan",
    system="chuk-lazarus 0.4.1",
    work="plan",
    num_samples=1_000_000,
)


@suite.case("assign-lognormal", group="assign-lognormal", smoke=_SMOKE, distribution="lognormal")
@suite.case("assign-uniform", group="assign-uniform", smoke=_SMOKE, distribution="uniform")
@suite.case(
    "assign-uniform-subset-sum",
    group="assign-uniform",
    smoke=_SMOKE,
    distribution="uniform",
    mode="subset_sum",
)
def assign(distribution: str, num_samples: int = 1_000_000, mode: str = "best_fit_decreasing") -> Workload:
    """Assign samples to rows of 2,048 tokens, given only their lengths."""
    lengths = random_lengths(num_samples, distribution)
    info = _fill(pack_lengths(lengths, MAX_LENGTH, mode), lengths)
    return Workload(lambda: pack_lengths(lengths, MAX_LENGTH, mode), num_samples, info)


@suite.case(
    "c-assign-lognormal",
    group="assign-lognormal",
    system="best-fit decreasing in C",
    smoke=_SMOKE,
    distribution="lognormal",
)
@suite.case(
    "c-assign-uniform",
    group="assign-uniform",
    system="best-fit decreasing in C",
    smoke=_SMOKE,
    distribution="uniform",
)
def assign_c(distribution: str, num_samples: int = 1_000_000) -> Workload:
    """Do the same in a short C program, as a baseline."""
    lengths = random_lengths(num_samples, distribution)
    bins = np.empty(num_samples, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "bin_packing.so")
        source = pathlib.Path(__file__).parents[1] / "workers" / "bin_packing.c"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).best_fit_decreasing
    array = np.ctypeslib.ndpointer(np.int32, 1, flags="C")
    function.argtypes = [array, ctypes.c_int64, ctypes.c_int32, array]
    function.restype = ctypes.c_int64

    def run() -> None:
        if function(lengths, num_samples, MAX_LENGTH, bins) < 0:
            raise MemoryError("the C program ran out of memory")

    run()
    return Workload(run, num_samples, _fill(bins, lengths))


def _fill(bins: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    fill = np.bincount(bins, weights=lengths)
    if fill.max() > MAX_LENGTH or fill.min() < 1:
        raise AssertionError("a row is empty or too long")
    return {"num_rows": len(fill), "padding_efficiency": round(float(fill.mean()) / MAX_LENGTH, 5)}


@suite.case("pack", group="pack", unit="tokens/s", smoke=_SMOKE, num_samples=100_000)
@suite.case("pack-2000", group="pack-2000", unit="tokens/s", smoke=_SMOKE, num_samples=2_000)
@suite.case(
    "pack-2000-first-fit",
    group="pack-2000-first-fit",
    unit="tokens/s",
    smoke=_SMOKE,
    num_samples=2_000,
    mode="first_fit",
)
@suite.case(
    "pack-2000-best-fit",
    group="pack-2000-best-fit",
    unit="tokens/s",
    smoke=_SMOKE,
    num_samples=2_000,
    mode="best_fit",
)
def pack(num_samples: int, mode: str = "best_fit_decreasing") -> Workload:
    """Pack tokens into padded rows with segment ids, position ids and a loss mask."""
    lengths = random_lengths(num_samples)
    tokens, offsets = random_tokens(lengths)
    config = PackingConfig(max_length=MAX_LENGTH, mode=mode)
    batch = pack_tokens(tokens, offsets, config)
    _check(batch, tokens, offsets)
    info = {
        "num_tokens": len(tokens),
        "num_rows": len(batch),
        "padding_efficiency": round(len(tokens) / batch.input_ids.size, 5),
        "columns": list(batch.arrays()),
    }
    return Workload(lambda: pack_tokens(tokens, offsets, config), len(tokens), info)


@suite.case("pack-batches", group="pack", unit="tokens/s", smoke=_SMOKE, num_samples=100_000)
def pack_batches(num_samples: int, rows_per_batch: int = 8) -> Workload:
    """Pack the same rows, but return them in batches of eight, which needs less memory."""
    tokens, offsets = random_tokens(random_lengths(num_samples))
    config = PackingConfig(max_length=MAX_LENGTH)

    def run() -> None:
        for _ in iter_packed_batches(tokens, offsets, config, rows_per_batch):
            pass

    return Workload(run, len(tokens))


# No sample is longer than a row, so both strategies return the same rows.
for _id, _strategy, _batch_size, _batches in (
    ("trl-pack", "bfd", 0, "one batch"),
    ("trl-pack-default-batches", "bfd", 1000, "1,000 samples at a time"),
    ("trl-pack-split", "bfd_split", 0, "one batch"),
    ("trl-pack-split-default-batches", "bfd_split", 1000, "1,000 samples at a time"),
):
    suite.peer_case(
        _id,
        TRL,
        "trl_packing",
        group="pack",
        unit="tokens/s",
        system=f"TRL 1.16.0, `{_strategy}`, {_batches}",
        num_samples=100_000,
        strategy=_strategy,
        batch_size=_batch_size,
    )
# The packing algorithms of chuk-lazarus take quadratic time, so they are measured on fewer samples. Its mode
# `greedy` is first-fit decreasing.
for _mode, _group in (
    ("first_fit", "pack-2000-first-fit"),
    ("best_fit", "pack-2000-best-fit"),
    ("greedy", "pack-2000"),
):
    suite.peer_case(
        f"chuk-lazarus-pack-2000-{_mode.replace('_', '-')}",
        CHUK_LAZARUS,
        "chuk_lazarus_batching",
        group=_group,
        unit="tokens/s",
        system="chuk-lazarus 0.4.1",
        work="pack",
        mode=_mode,
        num_samples=2_000,
    )


def _check(batch: TokenBatch, tokens: np.ndarray, offsets: np.ndarray) -> None:
    """Check that each segment has the tokens of its sample and that no sample is missing."""
    layout, is_token = batch.layout, batch.segment_ids > 0
    if int(is_token.sum()) != len(tokens) or len(np.unique(layout.samples)) != len(offsets) - 1:
        raise AssertionError("samples are missing or repeated")
    starts = np.repeat(offsets[layout.samples], layout.lengths)
    if not np.array_equal(batch.input_ids[is_token], tokens[starts + batch.position_ids[is_token]]):
        raise AssertionError("a segment does not have the tokens of its sample")


@suite.experiment("padding")
def padding(smoke: bool) -> Iterator[Measurement]:
    """Measure the padding efficiency of each kind of plan."""
    num_samples = 500 if smoke else 1_000_000
    table = LengthTable.from_arrays(None, random_lengths(num_samples))
    for mode in ("buckets", "sorted", "packed"):
        efficiency = _plan(table, mode).compute_metrics(0).efficiency
        settings = {"num_samples": num_samples}
        yield Measurement(f"padding-{mode}", "phalanx", "%", [100 * efficiency], settings=settings)


@suite.experiment("shuffling")
def shuffling(smoke: bool) -> Iterator[Measurement]:
    """Measure padding efficiency and the variety of lengths in a batch for several pool sizes."""
    num_samples = 500 if smoke else 1_000_000
    table = LengthTable.from_arrays(None, random_lengths(num_samples))
    for size in _POOL_SIZES[:2] if smoke else _POOL_SIZES:
        built = _plan(table, "sorted", pool_batches=size)
        settings = {
            "num_samples": num_samples,
            "pool_batches": size,
            "relative_length_deviation": round(_relative_deviation(built.get_epoch(0)), 5),
        }
        efficiency = 100 * built.compute_metrics(0).efficiency
        yield Measurement(f"padding-pool-{size}", "phalanx", "%", [efficiency], settings=settings)


def _relative_deviation(epoch: EpochPlan) -> float:
    """Return the standard deviation of lengths within batches, divided by that of all samples."""
    lengths, counts = epoch.lengths.astype(np.float64), epoch.batches.counts
    means = np.add.reduceat(lengths, epoch.batches.offsets[:-1]) / counts
    within = float(((lengths - np.repeat(means, counts)) ** 2).mean())
    return math.sqrt(within / float(lengths.var()))
