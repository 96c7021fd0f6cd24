"""chuk-lazarus 0.4.1: plans, plan files, length caches and suggested edges, as its documentation has them.

Its package imports MLX at the top; its batching module does without, so the packages above are stood in for.
See `token_work.py` for the options.
"""

import asyncio
import importlib.util
import pathlib
import shutil
import sys
import types
from typing import Any

import token_facts
import token_work

WORKS = ("plan", "plan_save", "plan_load", "lengths_write", "lengths_read", "suggest_4", "suggest_8")


def _stand_in() -> None:
    spec = importlib.util.find_spec("chuk_lazarus")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = pathlib.Path(next(iter(spec.submodule_search_locations)))
    for name, folder in (("chuk_lazarus", root), ("chuk_lazarus.data", root / "data")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def main() -> None:
    arguments = token_work.parse_arguments("chuk-lazarus runner", WORKS)
    _stand_in()
    from chuk_lazarus.data import batching

    lengths = token_facts.draw_lengths(arguments.distribution, arguments.samples)
    mapping = token_work.mapping_of(lengths)
    folder = pathlib.Path(arguments.folder, "lazarus")
    folder.mkdir(parents=True, exist_ok=True)
    real = int(lengths.sum())

    def plan() -> Any:
        config = batching.BatchingConfig(
            token_budget=token_facts.BUDGET,
            bucket_edges=token_facts.EDGES,
            overflow_max=token_facts.OVERFLOW,
            seed=token_facts.SEED,
        )
        builder = batching.BatchPlanBuilder(mapping, config, "lognormal", "none")
        return asyncio.run(builder.build(num_epochs=1))

    def plan_facts(made: Any) -> dict[str, Any]:
        batches = list(made.iter_epoch(0))
        edges = (*token_facts.EDGES, token_facts.OVERFLOW)
        padded = sum(edges[batch.bucket_id] * len(batch.samples) for batch in batches)
        tenth = max(1, len(batches) // 10)
        first, last = (
            sum(mapping[i] for b in part for i in b.samples) / sum(len(b.samples) for b in part)
            for part in (batches[:tenth], batches[-tenth:])
        )
        return {
            "batches": len(batches),
            "efficiency": round(real / padded, 6),
            "drift": round(abs(last - first) / (real / len(mapping)), 4),
        }

    def size(path: pathlib.Path) -> int:
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    async def write_lengths() -> None:
        async with batching.LengthCache.create(folder / "lengths.jsonl", "none") as cache:
            for sample_id, length in mapping.items():
                await cache.add(sample_id, length)

    def suggest(buckets: int) -> Any:
        return batching.suggest_bucket_edges(
            mapping,
            num_buckets=buckets,
            goal=batching.OptimizationGoal.MINIMIZE_WASTE,
            max_length=token_facts.OVERFLOW,
        )

    def suggest_facts(suggestion: Any) -> dict[str, Any]:
        uppers = [*suggestion.edges, suggestion.overflow_max]
        padded = sum(next(upper for upper in uppers if length <= upper) for length in lengths.tolist())
        return {"edges": list(suggestion.edges), "efficiency": round(real / padded, 6)}

    if arguments.work == "plan":
        call, facts = plan, plan_facts
    elif arguments.work in ("plan_save", "plan_load"):
        made, target = plan(), folder / "plan"
        shutil.rmtree(target, ignore_errors=True)
        batching.save_batch_plan(made, target)
        if arguments.work == "plan_save":
            call = lambda: batching.save_batch_plan(made, target)  # noqa: E731
        else:
            call = lambda: batching.load_batch_plan(target)  # noqa: E731
        facts = lambda _: {"bytes": size(target)}  # noqa: E731
    elif arguments.work == "lengths_write":
        call = lambda: asyncio.run(write_lengths())  # noqa: E731
        facts = lambda _: {"bytes": size(folder)}  # noqa: E731
    elif arguments.work == "lengths_read":
        asyncio.run(write_lengths())
        call = lambda: asyncio.run(batching.LengthCache.load(folder / "lengths.jsonl"))  # noqa: E731
        facts = lambda cache: {"entries": len(cache)}  # noqa: E731
    else:
        buckets = int(arguments.work.rpartition("_")[2])
        call, facts = (lambda: suggest(buckets)), suggest_facts
    token_work.serve(call, facts, arguments.samples, arguments.seconds, "chuk-lazarus")


if __name__ == "__main__":
    main()
