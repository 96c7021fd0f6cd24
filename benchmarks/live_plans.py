"""How streaming plans hold up: memory, fill and mixture over many simulated samples, and kills with resumes.

Plans that are made beforehand are measured in `tokens.py`. Times are of this process's CPU, because others
may load the machine; every figure is a JSON line.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring.conditions import conditions
from measuring.memory import peak_mebibytes
from measuring.records import held_to
from simulated_source import SimulatedSource

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    LengthTable,
    Mixture,
    PackingConfig,
    StreamingPlan,
    StreamingPlanConfig,
)
from phalanx.data.plans.streaming_plan import StreamingState

WEIGHTS = {"web": 0.62, "code": 0.25, "books": 0.1, "chat": 0.03}
MEANS = {"web": 300.0, "code": 450.0, "books": 900.0, "chat": 120.0}
CAPACITY = 4096
MILLION = 1_000_000


def plan() -> StreamingPlan:
    """Four streams without end, of other lengths each."""
    sources = {name: SimulatedSource(seed, MEANS[name]) for seed, name in enumerate(WEIGHTS)}
    config = StreamingPlanConfig(packing=PackingConfig(max_length=CAPACITY), packs_per_batch=16)
    return StreamingPlan(sources, config, Mixture(weights=WEIGHTS))


def long_run(samples: int) -> Iterator[dict[str, Any]]:
    """Hand out batches until this many samples came: rate, memory, fill, and the mixture after a million."""
    batches = plan().batches()
    begin = time.process_time()
    seen = packs = tokens = 0
    after_million: float | None = None
    while seen < samples:
        batch = next(batches)
        seen += batch.batch_size
        packs += batch.num_packs
        tokens += batch.token_count
        if after_million is None and seen >= MILLION:
            after_million = mixture_error(batches.state)
    seconds = time.process_time() - begin
    facts = {
        "name": "long run",
        "samples": seen,
        "tokens": tokens,
        "cpu_seconds": round(seconds, 2),
        "samples_per_cpu_second": round(seen / seconds),
        "cpu_hours_for_1e9_extrapolated": round(1e9 / (seen / seconds) / 3600, 3),
        "peak_memory_mb": round(peak_mebibytes(), 1),
        "fill": round(tokens / (packs * CAPACITY), 5),
        "mixture_error_percent": mixture_error(batches.state),
        "mixture_error_percent_after_million": after_million,
        "state_bytes": len(json.dumps(batches.state_dict())),
    }
    targets = {"peak_memory_mb": {"at_most": 200.0}, "fill": {"at_least": 0.99}}
    if after_million is not None:
        targets["mixture_error_percent_after_million"] = {"at_most": 0.1}
    yield held_to({**facts, **conditions()}, targets)


def mixture_error(state: StreamingState) -> float:
    """The largest difference of a source's part of all tokens drawn from its weight, in percent of all."""
    tokens = state.tokens
    total = sum(tokens.values()) or 1
    return round(100 * max(abs(tokens[name] / total - weight) for name, weight in WEIGHTS.items()), 5)


def kills(count: int) -> Iterator[dict[str, Any]]:
    """Kill and resume over 8, 3 and 5 ranks: which samples are lost or repeated."""
    rng = np.random.default_rng(0)
    config = StreamingPlanConfig(
        packing=PackingConfig(max_length=512), packs_per_batch=2, packing_buffer_size=64
    )

    def fresh() -> StreamingPlan:
        sources = {name: SimulatedSource(seed, 60.0, 512) for seed, name in enumerate(WEIGHTS)}
        return StreamingPlan(sources, config, Mixture(weights=WEIGHTS))

    state = json.dumps(fresh().batches().state_dict())
    seen: set[str] = set()
    packs = repeated = 0
    begin = time.process_time()
    for world_size in itertools.islice(itertools.cycle((8, 3, 5)), count):
        steps = int(rng.integers(0, 4))
        states = set()
        for rank in range(world_size):
            process = fresh().batches(rank, world_size)
            process.load_state_dict(json.loads(state))
            for _ in range(steps):
                batch = next(process)
                members = set(batch.sample_ids)
                packs += batch.num_packs
                repeated += len(members & seen)
                seen |= members
            states.add(json.dumps(process.state_dict()))
            next(process)  # done after the checkpoint, and lost with the process
        (state,) = states
    expected = {
        sample_id
        for batch in itertools.islice(fresh().batches(), packs // config.packs_per_batch)
        for sample_id in batch.sample_ids
    }
    facts = {
        "name": "kills",
        "kills": count,
        "ranks": [8, 3, 5],
        "samples": len(seen),
        "lost": len(expected - seen),
        "repeated": repeated + len(seen - expected),
        "cpu_seconds": round(time.process_time() - begin, 2),
    }
    yield held_to({**facts, **conditions()}, {"lost": {"at_most": 0}, "repeated": {"at_most": 0}})


def growth(samples: int) -> Iterator[dict[str, Any]]:
    """CPU time a sample of plans made beforehand, at this size and at a tenth of it, and of fingerprints."""
    for mode in (BatchingConfig.throughput(16_384), BatchingConfig.predictable(16_384)):
        cost: dict[str, float] = {}
        shares = []
        for size in (samples // 10, samples):
            lengths = SimulatedSource(0).read(0, size).lengths
            times = []
            for _ in range(3):
                table = LengthTable.from_arrays([f"s{row}" for row in range(size)], lengths)
                begin = time.process_time()
                made = BatchPlanBuilder(table, mode).build()
                planned = time.process_time()
                made.full_hash  # noqa: B018 - computed when asked for
                times.append((planned - begin, time.process_time() - planned))
            plan_seconds, hash_seconds = (min(column) for column in zip(*times, strict=True))
            cost[str(size)] = round(plan_seconds / size * 1e9, 1)
            shares.append(round(hash_seconds / plan_seconds, 3))
        facts = {
            "name": f"growth {mode.mode}",
            "cpu_ns_per_sample": cost,
            "ratio": round(cost[str(samples)] / cost[str(samples // 10)], 3),
            "fingerprint_over_planning": max(shares),
        }
        targets = {"ratio": {"at_most": 1.3}, "fingerprint_over_planning": {"at_most": 1.0}}
        yield held_to({**facts, **conditions()}, targets)


def main() -> None:
    """One JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10 * MILLION, help="samples of the long run; 0: none")
    parser.add_argument("--kills", type=int, default=10_000, help="kills with resumes; 0: none")
    parser.add_argument("--growth", type=int, default=10 * MILLION, help="samples planned at most; 0: none")
    arguments = parser.parse_args()
    for figure, count in (
        (long_run, arguments.samples),
        (kills, arguments.kills),
        (growth, arguments.growth),
    ):
        if count:
            for record in figure(count):
                print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
