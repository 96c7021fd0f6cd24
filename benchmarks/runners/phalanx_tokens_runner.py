"""Phalanx's token batching on the lengths that all contenders are given.

Runs in the interpreter that runs the comparison; see `token_work.py` for the options.
"""

import pathlib
import shutil
from typing import Any

import numpy as np
import token_facts
import token_work
import tokens

from phalanx.data import (
    BatchingMode,
    LengthCache,
    LengthTable,
    PackingConfig,
    iter_packed_batches,
    load_batch_plan,
    pack_lengths,
    pack_tokens,
    save_batch_plan,
    suggest_bucket_edges,
)

WORKS = (
    "plan_predictable",
    "plan_throughput",
    "assign_best_fit_decreasing",
    "assign_subset_sum",
    "materialize",
    "materialize_parts",
    "plan_save",
    "plan_load",
    "lengths_write",
    "lengths_read",
    "suggest_4",
    "suggest_8",
)


def main() -> None:
    arguments = token_work.parse_arguments("Phalanx runner", WORKS)
    lengths = token_facts.draw_lengths(arguments.distribution, arguments.samples)
    work, _, detail = arguments.work.partition("_")
    folder = pathlib.Path(arguments.folder, "phalanx")
    folder.mkdir(parents=True, exist_ok=True)
    amount = arguments.samples
    if work == "assign":
        call: Any = lambda: pack_lengths(lengths, token_facts.CAPACITY, detail)  # noqa: E731
        facts: Any = lambda bins: token_facts.bin_facts(bins, lengths)  # noqa: E731
    elif work == "materialize":
        call, facts, amount = _materialize(lengths, detail == "parts")
    elif work == "suggest":
        mapping = token_work.mapping_of(lengths)
        call = lambda: suggest_bucket_edges(mapping, int(detail), max_length=token_facts.OVERFLOW)  # noqa: E731
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
    config = tokens.batching_config(mode)
    # Each as its peer takes them: fairseq's way works on an array, chuk-lazarus on a dictionary.
    given: Any = (
        LengthTable.from_arrays(None, lengths) if detail == "throughput" else token_work.mapping_of(lengths)
    )

    def build() -> Any:
        return tokens.build_plan(given, config)

    if detail in ("predictable", "throughput"):
        return build, token_facts.plan_facts
    plan = build()

    def save() -> None:
        shutil.rmtree(target, ignore_errors=True)
        save_batch_plan(plan, target)

    save()
    size = {"bytes": sum(file.stat().st_size for file in target.iterdir())}
    return (save if detail == "save" else lambda: load_batch_plan(target)), lambda _: size


def _lengths(lengths: np.ndarray, path: pathlib.Path, *, read: bool) -> tuple[Any, Any]:
    ids = [f"s{row}" for row in range(len(lengths))]

    def write() -> None:
        path.unlink(missing_ok=True)
        with LengthCache.create(path, "none") as cache:
            cache.add_many(ids, lengths)

    if not read:
        return write, lambda _: {"bytes": path.stat().st_size}
    write()
    return (lambda: LengthCache.load(path)), lambda cache: {"entries": len(cache)}


def _materialize(lengths: np.ndarray, in_parts: bool) -> tuple[Any, Any, int]:
    drawn, offsets = token_facts.draw_tokens(lengths)
    config = PackingConfig(max_length=token_facts.CAPACITY)
    token_facts.check_packs(pack_tokens(drawn, offsets, config), drawn, offsets)

    def at_once() -> int:
        return len(pack_tokens(drawn, offsets, config))

    def parts() -> int:
        return sum(map(len, iter_packed_batches(drawn, offsets, config, tokens.PACKS_AT_A_TIME)))

    return (parts if in_parts else at_once), lambda bins: {"bins": bins, "tokens": len(drawn)}, len(drawn)


if __name__ == "__main__":
    main()
