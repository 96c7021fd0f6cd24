"""Phalanx's token batching on the lengths that all contenders are given.

Runs in the interpreter that runs the comparison; see `token_work.py` for the options.
"""

import asyncio
import pathlib
import shutil
from typing import Any

import numpy as np
import token_work

from phalanx.tokens import benchmark
from phalanx.tokens.analysis.efficiency import suggest_bucket_edges
from phalanx.tokens.benchmark_facts import check_packs, plan_facts
from phalanx.tokens.lengths.cache import LengthCache
from phalanx.tokens.lengths.table import LengthTable
from phalanx.tokens.packing.config import PackingConfig
from phalanx.tokens.packing.layout import pack_lengths
from phalanx.tokens.packing.packed_batch import iter_packed_batches, pack_tokens
from phalanx.tokens.plans.builder import BatchPlanBuilder
from phalanx.tokens.plans.config import BatchingMode
from phalanx.tokens.plans.files import load_batch_plan, save_batch_plan

WORKS = (
    "plan_predictable",
    "plan_throughput",
    "assign_best_fit_decreasing",
    "assign_hybrid",
    "materialise",
    "materialise_parts",
    "plan_save",
    "plan_load",
    "lengths_write",
    "lengths_read",
    "suggest_4",
    "suggest_8",
)


def main() -> None:
    arguments = token_work.parse_arguments("Phalanx runner", WORKS)
    lengths = token_work.lengths_of(arguments.distribution, arguments.samples)
    work, _, detail = arguments.work.partition("_")
    folder = pathlib.Path(arguments.folder, "phalanx")
    folder.mkdir(parents=True, exist_ok=True)
    amount = arguments.samples
    if work == "assign":
        call: Any = lambda: pack_lengths(lengths, token_work.CAPACITY, detail)  # noqa: E731
        facts: Any = lambda bins: token_work.packing_facts(bins, lengths)  # noqa: E731
    elif work == "materialise":
        call, facts, amount = _materialise(lengths, detail == "parts")
    elif work == "suggest":
        mapping = token_work.mapping_of(lengths)
        call = lambda: suggest_bucket_edges(mapping, int(detail), max_length=token_work.OVERFLOW)  # noqa: E731
        facts = lambda found: {  # noqa: E731
            "edges": list(found.edges),
            "efficiency": round(found.estimated_efficiency, 6),
        }
    elif work == "lengths":
        call, facts = _lengths(lengths, folder / "lengths.jsonl", read=detail == "read")
    else:
        call, facts = _plan(lengths, folder / "plan", detail)
    token_work.serve(call, facts, amount, arguments.seconds, "phalanx")


def _plan(lengths: np.ndarray, target: pathlib.Path, detail: str) -> tuple[Any, Any]:
    mode = BatchingMode.PREDICTABLE if detail == "predictable" else BatchingMode.THROUGHPUT
    config = benchmark.batching_config(mode)
    # Each as its peer takes them: fairseq's way works on an array, chuk-lazarus on a dictionary.
    given: Any = (
        LengthTable.from_arrays(None, lengths) if detail == "throughput" else token_work.mapping_of(lengths)
    )

    def build() -> Any:
        return BatchPlanBuilder(given, config, "lognormal", "none").build_now()

    if detail in ("predictable", "throughput"):
        return build, plan_facts
    plan = build()

    def save() -> None:
        shutil.rmtree(target, ignore_errors=True)
        save_batch_plan(plan, target)

    save()
    size = {"bytes": sum(file.stat().st_size for file in target.iterdir())}
    return (save if detail == "save" else lambda: load_batch_plan(target)), lambda _: size


def _lengths(lengths: np.ndarray, path: pathlib.Path, *, read: bool) -> tuple[Any, Any]:
    ids = [f"s{row}" for row in range(len(lengths))]

    async def write() -> None:
        path.unlink(missing_ok=True)
        async with LengthCache.create(path, "none") as cache:
            await cache.add_many(ids, lengths)

    if not read:
        return (lambda: asyncio.run(write())), lambda _: {"bytes": path.stat().st_size}
    asyncio.run(write())
    return (lambda: asyncio.run(LengthCache.load(path))), lambda cache: {"entries": len(cache)}


def _materialise(lengths: np.ndarray, in_parts: bool) -> tuple[Any, Any, int]:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens = np.arange(offsets[-1], dtype=np.int32) % np.int32(50_000)
    config = PackingConfig(max_length=token_work.CAPACITY)
    check_packs(pack_tokens(tokens, offsets, config), tokens, offsets)

    def at_once() -> int:
        return len(pack_tokens(tokens, offsets, config))

    def parts() -> int:
        return sum(map(len, iter_packed_batches(tokens, offsets, config, benchmark.PACKS_AT_A_TIME)))

    return (parts if in_parts else at_once), lambda bins: {"bins": bins, "tokens": len(tokens)}, len(tokens)


if __name__ == "__main__":
    main()
