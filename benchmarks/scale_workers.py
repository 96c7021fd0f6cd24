"""What one process of `scale_figures.py` does: prepare, say so, wait until all are told to go, measure.

Run as a program it speaks JSON lines: its settings come as an argument, its result goes to standard output.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before JAX is imported anywhere: it makes as many threads as the process may use cores.
if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    os.sched_setaffinity(0, asked["cores"])
    if asked.get("devices", 1) > 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={asked['devices']}"

Measure = Callable[[], dict[str, Any]]


def plan(settings: dict[str, Any]) -> Measure:
    """The whole plan from seed and lengths, and this rank's share of it."""
    from measuring.memory import peak_mebibytes
    from token_facts import draw_lengths
    from tokens import MODEL_WIDTH, batching_config, build_plan

    from phalanx.data import BatchingMode, LengthTable

    table = LengthTable.from_arrays(None, draw_lengths("lognormal", settings["samples"]))
    before = peak_mebibytes()

    def measure() -> dict[str, Any]:
        begun = time.perf_counter()
        whole = build_plan(table, batching_config(BatchingMode.THROUGHPUT))
        planned = time.perf_counter()
        fingerprint = whole.fingerprint
        digested = time.perf_counter()
        rank, ranks = settings["rank"], settings["ranks"]
        mine = whole.shard(rank, ranks, balance=True, d_model=MODEL_WIDTH)
        dealt = time.perf_counter()
        return {
            "fingerprint": fingerprint,
            "batches": mine.num_batches,
            "tokens": mine.get_epoch(0).total_tokens,
            "samples": mine.get_epoch(0).num_samples,
            "plan_seconds": planned - begun,
            "fingerprint_seconds": digested - planned,
            "shard_seconds": dealt - digested,
            "peak_megabytes": peak_mebibytes(),
            "megabytes_for_the_plan": peak_mebibytes() - before,
            "flop_balance": whole.measure_balance(0, ranks, d_model=MODEL_WIDTH).model_dump(),
        }

    return measure


def step(settings: dict[str, Any]) -> Measure:
    """Random ARC steps, as `arc.py` takes them."""
    from arc import Rollout, Workload

    rollout = Rollout.prepare(Workload(engine="native", batch=settings["batch"], steps=settings.get("steps")))
    calls = rollout.runs_per_repeat()

    def measure() -> dict[str, Any]:
        return {"rates": [rollout.rate(calls) for _ in range(settings["repeats"])]}

    return measure


def lengths(settings: dict[str, Any]) -> Measure:
    """A dataset's length cache, by this process, by several, or on Ray."""
    from phalanx.data import LengthCache, iter_lengths, load_tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "true" if settings["threads"] else "false"
    tokenizer, dataset, output = (settings[name] for name in ("tokenizer", "dataset", "output"))
    used = load_tokenizer(tokenizer)
    workers = settings["workers"]
    waited = 0.0

    def fill(cache: LengthCache) -> float:
        begun = first = time.perf_counter()
        with cache:
            batches = iter_lengths(dataset, used, workers=workers, use_ray=settings["on_ray"])
            for number, (ids, counted) in enumerate(batches):
                if not number:
                    first = time.perf_counter()
                cache.add_many(ids, counted)
        return first - begun

    def measure() -> dict[str, Any]:
        nonlocal waited
        begun = time.perf_counter()
        cache = LengthCache.create(output, used.tokenizer_hash)
        waited = fill(cache)
        return {
            "seconds": time.perf_counter() - begun,
            "seconds_to_first_batch": waited,
            "samples": len(cache),
            "tokens": int(cache.lengths.sum(dtype="int64")),
            "bytes": Path(dataset).stat().st_size if Path(dataset).is_file() else None,
        }

    return measure


WORKS: dict[str, Callable[[dict[str, Any]], Measure]] = {"plan": plan, "step": step, "lengths": lengths}


def main() -> None:
    """One work, as the settings have it."""
    settings = json.loads(sys.argv[1])
    measure = WORKS[settings["work"]](settings)
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
