"""Read one epoch of packed batches from a data loader, and resume after half an epoch.

All tokens of a sample are the number of the sample, starting from 1, so that missing and repeated samples
are found by counting tokens. Padding is 0. The setting `loader` selects the library.
"""

import atexit
import importlib
import itertools
import json
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.workers import protocol
from benchmarks.workers.token_lengths import MAX_LENGTH, random_lengths

ROWS, SEED = 8, 7


class StoredTokens(Mapping):
    """Samples in a memory-mapped file, by string id or by row."""

    def __init__(self, folder):
        self.lengths = np.load(folder / "lengths.npy")
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @classmethod
    def create(cls, folder, num_samples):
        """Write the files of random samples."""
        lengths = random_lengths(num_samples)
        np.save(folder / "lengths.npy", lengths)
        np.save(folder / "tokens.npy", np.repeat(np.arange(1, num_samples + 1, dtype=np.int32), lengths))
        return cls(folder)

    def row(self, index):
        """Return the tokens of a sample."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def __getitem__(self, key):
        return {"input_ids": self.row(int(key))}

    def __iter__(self):
        return map(str, range(len(self)))

    def __len__(self):
        return len(self.lengths)


class PhalanxPlan:
    """Phalanx with a plan that is built beforehand."""

    def prepare(self, folder, data):
        from phalanx.data import BatchingConfig, BatchPlanBuilder, LengthTable, PackingConfig, save_batch_plan

        batching = BatchingConfig.throughput(ROWS * MAX_LENGTH, (MAX_LENGTH - 1,), MAX_LENGTH, SEED)
        table = LengthTable.from_arrays(None, data.lengths)
        plan = BatchPlanBuilder(table, batching, packing=PackingConfig(max_length=MAX_LENGTH)).build()
        save_batch_plan(plan, folder / "plan")

    def open(self, folder, data, state):
        from phalanx.data import load_batch_plan
        from phalanx.integrations.torch_data import PlanDataset, PlanLoader

        loader = PlanLoader(PlanDataset(load_batch_plan(folder / "plan"), data))
        if state is not None:
            loader.load_state_dict(state)
        return (batch["input_ids"] for batch in loader), loader.state_dict


class PhalanxStreaming:
    """Phalanx with a streaming plan."""

    def prepare(self, folder, data):
        pass

    def open(self, folder, data, state):
        from phalanx.data import (
            LengthTable,
            PackingConfig,
            ShuffledDatasetSource,
            StreamingPlan,
            StreamingPlanConfig,
        )
        from phalanx.integrations.torch_data import PlanDataset

        source = ShuffledDatasetSource(
            LengthTable.from_arrays(None, data.lengths), data, seed=SEED, num_epochs=1
        )
        config = StreamingPlanConfig(packing=PackingConfig(max_length=MAX_LENGTH), packs_per_batch=ROWS)
        dataset = PlanDataset(StreamingPlan({"data": source}, config))
        if state is not None:
            dataset.load_state_dict(state)
        return (batch["input_ids"] for batch in dataset), dataset.state_dict


class Trl:
    """TRL's `pack_dataset` with a shuffled `DataLoader`, resumed like Hugging Face's `Trainer`."""

    def prepare(self, folder, data):
        import datasets
        import pyarrow as pa
        import trl

        datasets.disable_progress_bars()
        column = pa.LargeListArray.from_arrays(data.offsets, np.asarray(data.tokens))
        rows = datasets.Dataset(pa.table({"input_ids": column}))
        # One batch with all samples leaves the least padding.
        packed = trl.pack_dataset(rows, MAX_LENGTH, strategy="bfd", map_kwargs={"batch_size": len(data)})
        packed.save_to_disk(str(folder / "trl"))

    def open(self, folder, data, state):
        import accelerate
        import datasets

        rows = datasets.load_from_disk(str(folder / "trl")).with_format("torch")
        loader = torch.utils.data.DataLoader(
            rows,
            batch_size=ROWS,
            shuffle=True,
            collate_fn=lambda items: torch.nn.utils.rnn.pad_sequence(
                [item["input_ids"] for item in items], batch_first=True
            ),
            generator=torch.Generator().manual_seed(SEED),
        )
        return _counted(accelerate.skip_first_batches(loader, state) if state else loader, state or 0)


def _counted(batches, count):
    position = [count]

    def iterate():
        for batch in batches:
            position[0] += 1
            yield batch

    return iterate(), lambda: position[0]


class Grain:
    """Grain's first-fit packing of a shuffled source, with the state of its iterator.

    By default, Grain reads with 16 threads. Without threads, it may be faster if samples are in memory.
    """

    def __init__(self, use_threads=True):
        self._use_threads = use_threads

    def prepare(self, folder, data):
        pass

    def open(self, folder, data, state):
        import grain

        class Source:
            def __getitem__(self, index):
                return {"input_ids": np.asarray(data.row(int(index)))}

            def __len__(self):
                return len(data)

        rows = grain.MapDataset.source(Source()).shuffle(seed=SEED)
        # The default settings, or no threads.
        options = None if self._use_threads else grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        rows = rows.to_iter_dataset(options)
        packed = grain.experimental.FirstFitPackIterDataset(
            rows, length_struct={"input_ids": MAX_LENGTH}, num_packing_bins=64
        )
        batches = iter(packed.batch(ROWS, drop_remainder=False))
        if state is not None:
            batches.set_state(state)
        return (torch.from_numpy(batch["input_ids"]) for batch in batches), batches.get_state


LOADERS = {
    "phalanx-plan": PhalanxPlan,
    "phalanx-streaming": PhalanxStreaming,
    "trl": Trl,
    "grain": Grain,
    "grain-no-threads": lambda: Grain(use_threads=False),
}
_MODULES = {
    "phalanx-plan": ("phalanx.integrations.torch_data", "phalanx.data.plans.plan_files"),
    "phalanx-streaming": ("phalanx.integrations.torch_data", "phalanx.data.plans.stream_sources"),
    "trl": ("accelerate", "datasets", "trl"),
    "grain": ("grain",),
    "grain-no-threads": ("grain",),
}


def count_tokens(batches, num_samples, max_batches=None):
    """Count the tokens of each sample in some batches. Returns also the numbers of slots and batches."""
    counts, slots, taken = np.zeros(num_samples + 1, np.int64), 0, 0
    for batch in batches:
        counts += np.bincount(batch.numpy().ravel(), minlength=num_samples + 1)
        slots, taken = slots + batch.numel(), taken + 1
        if taken == max_batches:
            break
    return counts[1:], slots, taken


def prepare(loader, num_samples):
    """Prepare a loader and check what it returns.

    Returns:
        A function that reads one epoch, its number of tokens, and facts about the loader.
    """
    # Imports would otherwise count as time of the first batch.
    for module in _MODULES[loader]:
        importlib.import_module(module)
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data, library = StoredTokens.create(folder, num_samples), LOADERS[loader]()
    began = time.perf_counter()
    library.prepare(folder, data)
    prepare_seconds = time.perf_counter() - began
    whole, slots, num_batches = count_tokens(library.open(folder, data, None)[0], num_samples)
    batches, state = library.open(folder, data, None)
    first, _, _ = count_tokens(batches, num_samples, max(num_batches // 2, 1))
    saved = state()
    began = time.perf_counter()
    resumed, _ = library.open(folder, data, saved)
    batch = next(resumed, None)
    resume_seconds = time.perf_counter() - began
    rest = count_tokens(resumed if batch is None else itertools.chain([batch], resumed), num_samples)[0]

    def run():
        for _ in library.open(folder, data, None)[0]:
            pass

    info = {
        "prepare_seconds": round(prepare_seconds, 3),
        "resume_seconds": round(resume_seconds, 4),
        "padding_efficiency": round(int(whole.sum()) / slots, 5),
        "state_bytes": len(saved) if isinstance(saved, bytes) else len(json.dumps(saved, default=str)),
        "samples_incomplete_in_epoch": int((whole < data.lengths).sum()),
        "samples_lost_by_resume": int((first + rest < whole).sum()),
        "samples_repeated_by_resume": int((first + rest > whole).sum()),
        "torch": torch.__version__,
    }
    return run, int(whole.sum()), info


def main() -> None:
    settings = protocol.read_settings(__doc__)
    run, work, info = prepare(settings["loader"], settings["num_samples"])
    protocol.serve(run, work, settings["seconds"], **info)


if __name__ == "__main__":
    main()
