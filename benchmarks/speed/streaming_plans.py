"""Streaming plans: samples per second, padding efficiency, and accuracy of the mixture of four sources.

The sources only provide lengths, so that planning alone is measured.
"""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.machine import peak_memory_mb, reset_peak_memory
from benchmarks.simulated_source import SimulatedSource
from benchmarks.suite import Suite, Workload
from benchmarks.timing import Measurement
from phalanx.data import MixtureConfig, PackingConfig, StreamingPlan, StreamingPlanConfig

suite = Suite("streaming_plans", unit="samples/s", packages=("numpy",))

WEIGHTS = {"web": 0.62, "code": 0.25, "books": 0.1, "chat": 0.03}
MEAN_LENGTHS = {"web": 300.0, "code": 450.0, "books": 900.0, "chat": 120.0}
MAX_LENGTH = 4096


def _plan() -> StreamingPlan:
    sources = {name: SimulatedSource(seed, MEAN_LENGTHS[name]) for seed, name in enumerate(WEIGHTS)}
    config = StreamingPlanConfig(packing=PackingConfig(max_length=MAX_LENGTH), packs_per_batch=16)
    return StreamingPlan(sources, config, MixtureConfig(weights=WEIGHTS))


@suite.case("packed-mixture", smoke={"num_samples": 1_000})
def packed_mixture(num_samples: int = 1_000_000) -> Workload:
    """Pack samples of four sources, which are mixed by weight, into batches of 16 rows."""

    def run() -> None:
        batches = _plan().batches()
        count = 0
        while count < num_samples:
            count += next(batches).num_samples

    return Workload(run, num_samples)


@suite.experiment("quality")
def quality(smoke: bool) -> Iterator[Measurement]:
    """Measure padding efficiency, mixture error, memory and the size of the state after many samples."""
    num_samples = 20_000 if smoke else 10_000_000
    reset_peak_memory()
    before = peak_memory_mb()
    batches = _plan().batches()
    count = rows = tokens = 0
    while count < num_samples:
        batch = next(batches)
        count, rows, tokens = count + batch.num_samples, rows + batch.num_rows, tokens + batch.token_count
    drawn = batches.state.tokens
    total = sum(drawn.values())
    error = max(abs(drawn[name] / total - weight) for name, weight in WEIGHTS.items())
    settings: dict[str, Any] = {"num_samples": count, "num_tokens": tokens, "weights": WEIGHTS}

    def measurement(name: str, unit: str, value: float) -> Measurement:
        return Measurement(name, "phalanx", unit, [value], settings=settings)

    yield measurement("padding-efficiency", "%", 100 * tokens / (rows * MAX_LENGTH))
    yield measurement("mixture-error", "%", 100 * error)
    yield measurement("memory", "MB", peak_memory_mb() - before)
    yield measurement("state-size", "bytes", len(json.dumps(batches.state_dict())))
