"""One loader of packed or padded batches, as its documentation has it: prepared, read, killed, resumed.

Every token of a sample is the sample's number, counted from 1, so that what came can be counted; padding is
0. Each phase is a process of its own. What is compared with what is in `compare_loaders`.
"""

import argparse
import importlib
import importlib.machinery
import json
import os
import pathlib
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import token_facts
from measuring.memory import peak_mebibytes

ROWS, WIDTH, SEED = 8, token_facts.CAPACITY, 7
Opened = tuple[Iterator[Any], Callable[[], Any]]
"""Batches, [rows, width] of tokens each, and what a checkpoint would keep after the latest."""


class Stored(Mapping[str, Any]):
    """The samples in a file, mapped into memory; by id, as Phalanx asks, or by number."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.lengths = np.load(folder / "lengths.npy")
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    def tokens_of(self, row: int) -> np.ndarray:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens_of(int(name))}

    def __contains__(self, name: object) -> bool:
        return 0 <= int(str(name)) < len(self)

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self)))

    def __len__(self) -> int:
        return len(self.lengths)


def padded(rows: list[Any]) -> Any:
    """Rows of unequal lengths as one tensor."""
    import torch

    parts = [torch.from_numpy(np.array(row, np.int64)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


class Phalanx:
    """A plan made beforehand."""

    modules = ("phalanx.integrations.torch_data", "phalanx.data.plans.plan_files")

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        from phalanx.data import BatchingConfig, BatchPlanBuilder, LengthTable, PackingConfig, save_batch_plan

        batching = BatchingConfig.throughput(ROWS * WIDTH, (WIDTH - 1,), WIDTH, SEED)
        table = LengthTable.from_arrays(None, data.lengths)
        plan = BatchPlanBuilder(table, batching, packing=PackingConfig(max_length=WIDTH)).build()
        save_batch_plan(plan, folder / "plan")

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        from phalanx.data import load_batch_plan
        from phalanx.integrations.torch_data import PlanDataset, PlanLoader

        loader = PlanLoader(PlanDataset(load_batch_plan(folder / "plan"), data))
        if state is not None:
            loader.load_state_dict(state)
        return (batch["input_ids"] for batch in loader), loader.state_dict


class PhalanxStreaming:
    """A streaming plan over the same samples."""

    modules = ("phalanx.integrations.torch_data", "phalanx.data.plans.stream_sources")

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        return

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        from phalanx.data import DatasetSource, LengthTable, PackingConfig, StreamingPlan, StreamingPlanConfig
        from phalanx.integrations.torch_data import PlanDataset

        source = DatasetSource(LengthTable.from_arrays(None, data.lengths), data, seed=SEED, num_epochs=1)
        config = StreamingPlanConfig(packing=PackingConfig(max_length=WIDTH), packs_per_batch=ROWS)
        dataset = PlanDataset(StreamingPlan({"data": source}, config))
        if state is not None:
            dataset.load_state_dict(state)
        return (batch["input_ids"] for batch in dataset), dataset.state_dict


class Trl:
    """`pack_dataset`, a shuffled `DataLoader`, and what `Trainer` does to resume: `skip_first_batches`."""

    modules = ("accelerate", "datasets", "trl")

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        import datasets
        import pyarrow as pa
        from trl import pack_dataset

        datasets.disable_progress_bars()
        column = pa.LargeListArray.from_arrays(data.offsets, np.asarray(data.tokens))
        rows = datasets.Dataset(pa.table({"input_ids": column}))
        pack_dataset(rows, WIDTH, strategy="bfd").save_to_disk(str(folder / "trl"))

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        import datasets

        datasets.disable_progress_bars()
        rows = datasets.load_from_disk(str(folder / "trl")).with_format("numpy")
        return shuffled(rows, lambda found: padded([row["input_ids"] for row in found]), state)


def shuffled(rows: Any, collate: Callable[[list[Any]], Any], done: int | None, **sampling: Any) -> Opened:
    """A plain `DataLoader` that begins behind the batches that are done, as Hugging Face's trainers do."""
    import torch
    from accelerate import skip_first_batches

    if not sampling:
        sampling = {"batch_size": ROWS, "shuffle": True}
    order = torch.Generator().manual_seed(SEED)
    loader = torch.utils.data.DataLoader(rows, collate_fn=collate, generator=order, **sampling)
    given = done or 0

    def counted() -> Iterator[Any]:
        nonlocal given
        for batch in skip_first_batches(loader, done) if done else loader:
            given += 1
            yield batch

    return counted(), lambda: given


class Axolotl:
    """Its multipack sampler with its defaults, resumed as its trainer, Hugging Face's, does."""

    modules = ("accelerate", "axolotl.utils.samplers.multipack")

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        return

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        import torch
        from axolotl.utils.samplers.multipack import MultipackBatchSampler

        order = torch.utils.data.RandomSampler(data.lengths, generator=torch.Generator().manual_seed(SEED))
        sampler = MultipackBatchSampler(
            order, ROWS, WIDTH, data.lengths, bin_size=200, drop_last=True, num_processes=1
        )

        class Rows(torch.utils.data.Dataset):
            def __getitem__(self, bins: Any) -> Any:
                return [np.concatenate([data.tokens_of(row) for row in rows]) for rows in bins]

            def __len__(self) -> int:
                return len(data)

        return shuffled(Rows(), lambda found: padded(found[0]), state, batch_sampler=_Whole(sampler))


class _Whole:
    """Each batch of a batch sampler as one index, since axolotl's datasets take nested lists."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, ROWS, True

    def __iter__(self) -> Iterator[Any]:
        return ([batch] for batch in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class Grain:
    """Its first-fit packing over a shuffled source, with the iterator's own state."""

    modules = ("grain",)

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        return

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        import grain
        import torch

        class Source:
            def __getitem__(self, row: int) -> dict[str, np.ndarray]:
                return {"input_ids": np.asarray(data.tokens_of(int(row)))}

            def __len__(self) -> int:
                return len(data)

        rows = grain.MapDataset.source(Source()).shuffle(seed=SEED).to_iter_dataset()
        packed = grain.experimental.FirstFitPackIterDataset(
            rows, length_struct={"input_ids": WIDTH}, num_packing_bins=64
        )
        batches = iter(packed.batch(ROWS, drop_remainder=False))
        if state is not None:
            batches.set_state(state)
        return (torch.from_numpy(batch["input_ids"].astype(np.int64)) for batch in batches), batches.get_state


class Litdata:
    """Its way for language models: all tokens end to end, cut into blocks; the loader's own state."""

    modules = ("litdata",)

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        import litdata

        litdata.optimize(
            fn=_LitdataRows(str(folder)),
            inputs=[0],
            output_dir=str(folder / "litdata"),
            chunk_size=WIDTH * 512,
            item_loader=litdata.TokensLoader(),
            num_workers=1,
        )

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        import litdata

        rows = litdata.StreamingDataset(
            str(folder / "litdata"), item_loader=litdata.TokensLoader(WIDTH), shuffle=True, seed=SEED
        )
        loader = litdata.StreamingDataLoader(rows, batch_size=ROWS)
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader), loader.state_dict


class _LitdataRows:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, _: int) -> Iterator[Any]:
        import torch

        data = Stored(pathlib.Path(self.folder))
        for row in range(len(data)):
            yield torch.from_numpy(np.array(data.tokens_of(row), np.int64))


class Streaming:
    """Samples in shards, shuffled, padded to the longest of a batch (never packed); its loader's state."""

    modules = ()

    def __init__(self) -> None:
        self._library()

    def _library(self) -> Any:
        # Its images need torchvision; its tokens do not.
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            stand_in: Any = types.ModuleType(f"torchvision{name}")
            stand_in.__spec__ = importlib.machinery.ModuleSpec(stand_in.__name__, None)
            stand_in.VisionDataset, stand_in.to_tensor = object, None
            sys.modules.setdefault(stand_in.__name__, stand_in)
        import streaming

        return streaming

    def prepare(self, folder: pathlib.Path, data: Stored) -> None:
        with self._library().MDSWriter(
            out=str(folder / "mds"), columns={"input_ids": "ndarray:int32"}
        ) as out:
            for row in range(len(data)):
                out.write({"input_ids": np.array(data.tokens_of(row), np.int32)})

    def open(self, folder: pathlib.Path, data: Stored, state: Any) -> Opened:
        library = self._library()
        library.base.util.clean_stale_shared_memory()
        rows = library.StreamingDataset(
            local=str(folder / "mds"), batch_size=ROWS, shuffle=True, shuffle_seed=SEED
        )
        loader = library.StreamingDataLoader(
            rows, batch_size=ROWS, collate_fn=lambda found: padded([row["input_ids"] for row in found])
        )
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader), loader.state_dict


LOADERS: dict[str, Any] = {
    "phalanx": Phalanx,
    "phalanx streaming": PhalanxStreaming,
    "trl": Trl,
    "axolotl": Axolotl,
    "grain": Grain,
    "litdata": Litdata,
    "mosaicml-streaming": Streaming,
}


def read(batches: Iterator[Any], samples: int, most: int | None = None) -> dict[str, Any]:
    """Take batches to the end or `most`; how often each sample's token came, and what it took."""
    counts = np.zeros(samples + 1, np.int64)
    slots = taken = 0
    wall = cpu = first_wall = first_cpu = 0.0
    while most is None or taken < most:
        begin, worked = time.perf_counter(), time.process_time()
        batch = next(batches, None)
        if batch is None:
            break
        wall += time.perf_counter() - begin
        cpu += time.process_time() - worked
        if not taken:
            first_wall, first_cpu = wall, cpu
        taken += 1
        slots += batch.numel()
        counts += np.bincount(batch.numpy().ravel(), minlength=samples + 1)
    times = {"seconds": wall, "cpu_seconds": cpu, "first_seconds": first_wall, "first_cpu_seconds": first_cpu}
    return {"batches": taken, "slots": slots, "tokens": int(counts[1:].sum()), "counts": counts, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loader", choices=LOADERS, required=True)
    parser.add_argument("--phase", choices=["prepare", "whole", "killed", "resumed"], required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--batches", type=int, help="killed: after how many")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    folder, loader = arguments.folder, LOADERS[arguments.loader]()
    for name in loader.modules:
        importlib.import_module(name)
    data = Stored(folder)
    before, begin, worked = peak_mebibytes(), time.perf_counter(), time.process_time()
    if arguments.phase == "prepare":
        loader.prepare(folder, data)
        told: dict[str, Any] = {}
    else:
        kept = folder / "state.pickle"
        state = pickle.loads(kept.read_bytes()) if arguments.phase == "resumed" else None
        batches, state_of = loader.open(folder, data, state)
        opened = time.perf_counter() - begin, time.process_time() - worked
        told = read(batches, len(data), arguments.batches)
        told["first_seconds"] += opened[0]
        told["first_cpu_seconds"] += opened[1]
        np.save(folder / f"counts-{arguments.phase}.npy", told.pop("counts"))
        if arguments.phase == "killed":
            kept.write_bytes(pickle.dumps(state_of()))
            told["state_bytes"] = kept.stat().st_size
    told |= {"prepare_seconds": time.perf_counter() - begin} if arguments.phase == "prepare" else {}
    told |= {"memory_mb": peak_mebibytes() - before}
    print("\n" + json.dumps(told), flush=True)
    os._exit(0)  # as a kill does: nothing is closed


if __name__ == "__main__":
    main()
