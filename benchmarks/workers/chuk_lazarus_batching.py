"""Build batch plans with chuk-lazarus.

The package imports MLX, which its batching module does not need, so the module is imported without the
parent packages.
"""

import asyncio
import importlib.metadata
import importlib.util
import pathlib
import sys
import types

from benchmarks.workers import protocol
from benchmarks.workers.token_lengths import (
    BUCKET_EDGES,
    MAX_LENGTH,
    SEED,
    TOKEN_BUDGET,
    lengths_by_id,
    random_lengths,
)


def register_parent_packages():
    """Register empty parent packages, so that `chuk_lazarus.data.batching` can be imported without MLX."""
    spec = importlib.util.find_spec("chuk_lazarus")
    root = pathlib.Path(spec.submodule_search_locations[0])
    for name, folder in (("chuk_lazarus", root), ("chuk_lazarus.data", root / "data")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def main() -> None:
    settings = protocol.read_settings(__doc__)
    register_parent_packages()
    from chuk_lazarus.data import batching

    lengths = random_lengths(settings["num_samples"])
    by_id = lengths_by_id(lengths)
    config = batching.BatchingConfig(
        token_budget=TOKEN_BUDGET, bucket_edges=BUCKET_EDGES, overflow_max=MAX_LENGTH, seed=SEED
    )

    def plan():
        return asyncio.run(batching.BatchPlanBuilder(by_id, config, "lognormal", "none").build(num_epochs=1))

    def pack():
        return batching.pack_sequences(sequences, packing)

    if settings["work"] == "plan":
        edges = (*BUCKET_EDGES, MAX_LENGTH)
        batches = list(plan().iter_epoch(0))
        padded = sum(edges[batch.bucket_id] * len(batch.samples) for batch in batches)
        run, info = plan, {"num_batches": len(batches), "padding_efficiency": int(lengths.sum()) / padded}
    else:
        mode = batching.PackingMode(settings["mode"])
        packing = batching.PackingConfig(max_length=MAX_LENGTH, mode=mode)
        sequences = [
            batching.SequenceToPack(sample_id=sample_id, input_ids=(1,) * length, loss_mask=(1,) * length)
            for sample_id, length in by_id.items()
        ]
        num_rows = len(pack())
        efficiency = int(lengths.sum()) / (num_rows * MAX_LENGTH)
        run, info = pack, {"num_rows": num_rows, "padding_efficiency": efficiency}
    version = importlib.metadata.version("chuk-lazarus")
    work = len(lengths) if settings["work"] == "plan" else int(lengths.sum())
    protocol.serve(run, work, settings["seconds"], version=version, **info)


if __name__ == "__main__":
    main()
