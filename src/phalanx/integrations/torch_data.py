"""The batches of a plan for PyTorch: an `IterableDataset`, a `DataLoader` that can resume, and a collator.

Which samples share a batch is decided in `phalanx.data`; samples of Hugging Face are in `hf_datasets`.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "torch":
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.torch_data needs {error.name}: pip install "phalanx[torch]"', name=error.name
    ) from error

import numpy as np
from jaxtyping import Integer

from phalanx.data.collation import CollatedBatch, CollateFunction, Sample, default_collate, pad_sequences
from phalanx.data.packed_batch import create_segment_attention_mask
from phalanx.data.plans.batch_plan import BatchPlan
from phalanx.data.plans.sharding import ShardPolicy
from phalanx.integrations.model_inputs import (
    IGNORED,
    check_samples,
    model_inputs,
    planned_batch,
    varlen_inputs,
)

Attention = Literal["positions", "mask", "segments", "varlen"]
"""How a model learns which tokens of a packed row belong together.

`positions`: `position_ids`, in which models of `transformers` find the borders if they keep no cache, which
`use_cache` tells them. `mask`: an `attention_mask` to be added to the scores, [rows, 1, width, width]: right
with every model, and large. `segments`: `segment_ids`, for a mask of one's own. `varlen`: all samples in one
row without padding, with `cu_seqlens` and `max_seqlen`, for kernels of flash attention. Where rows hold one
sample, `positions` and `mask` both are an `attention_mask` of zeros and ones, [rows, width].
"""


def check_attention(attention: str, align: int) -> None:
    """Raise `ValueError` where this is no way of attention, or it cannot align."""
    if attention not in get_args(Attention):
        raise ValueError(f"attention must be 'positions', 'mask', 'segments' or 'varlen', got {attention!r}")
    if align < 1:
        raise ValueError(f"align must be at least 1, got {align}")
    if align != 1 and attention != "varlen":
        raise ValueError("samples are aligned with attention='varlen' only")


class TorchBatch(dict):
    """Tensors by name, for `model(**batch)`; which samples they are is told by the attributes."""

    sample_ids: tuple[str, ...] = ()
    """The samples, row after row."""
    sample_rows: tuple[int, ...] = ()
    """The row in which each stands."""
    index: int = -1
    """Its place in the epoch of the plan, or of the rank's part of it."""


class PlanDataset(IterableDataset):
    """The batches of one epoch of a plan as tensors, for `DataLoader(dataset, batch_size=None)`.

    A batch has `input_ids`, `labels` (-100 where no loss is taken), `position_ids` that start anew with every
    sample, what `attention` asks for, and what a `collate_fn` of one's own returned besides. `rank` and
    `world_size` take a part of a whole plan, as `BatchPlan.shard` does. The workers of a loader share the
    part out among them, batch by batch, and the loader hands them on in the plan's order.

    `set_epoch(epoch, batch)` says where the next iteration begins, also to workers that run already.
    """

    def __init__(
        self,
        plan: BatchPlan,
        samples: Mapping[str, Sample],
        *,
        rank: int = 0,
        world_size: int = 1,
        policy: ShardPolicy | str = ShardPolicy.PAD,
        balance: bool = False,
        model_width: int | None = None,
        pad_id: int = 0,
        attention: Attention = "positions",
        dtype: torch.dtype = torch.float32,
        collate_fn: CollateFunction = default_collate,
        align: int = 1,
    ) -> None:
        """`align` fills every sample up to a multiple of it, with `attention="varlen"`."""
        super().__init__()
        check_attention(attention, align)
        check_samples(plan, samples)
        if world_size != 1 or rank != 0:
            plan = plan.shard(rank, world_size, policy, balance, model_width)
        self.plan, self.samples = plan, samples
        self.pad_id, self.attention, self.dtype = pad_id, attention, dtype
        self.collate_fn, self.align = collate_fn, align
        # In shared memory, because workers that outlive an epoch hold copies of this object.
        first = plan.epochs[0].epoch if plan.epochs else 0
        self._place = torch.tensor([first, 0]).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration goes through."""
        return int(self._place[0])

    @property
    def first_batch(self) -> int:
        """The batch that it begins with."""
        return int(self._place[1])

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Choose where the next iteration begins."""
        count = len(self.plan.get_epoch(epoch))
        if not 0 <= batch <= count:
            raise ValueError(f"epoch {epoch} has {count} batches, so none begins at {batch}")
        self._place[:] = torch.tensor([epoch, batch])

    def __len__(self) -> int:
        """Batches of the epoch, those before `first_batch` included."""
        return len(self.plan.get_epoch(self.epoch))

    def __iter__(self) -> Iterator[TorchBatch]:
        # Read now and not with the first batch, when the place may be the next iteration's.
        epoch, first = self.epoch, self.first_batch
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        places = range(first + number, len(self.plan.get_epoch(epoch)), workers)
        return (self.batch(epoch, place) for place in places)

    def batch(self, epoch: int, index: int) -> TorchBatch:
        """One batch."""
        collated = planned_batch(
            self.plan, self.samples, epoch, index, pad_id=self.pad_id, collate_fn=self.collate_fn
        )
        return token_batch(collated, self.attention, self.dtype, align=self.align, pad_id=self.pad_id)


class PlanSteps(IterableDataset):
    """Every batch of every epoch of a plan, one after another, for trainers that count steps, not epochs.

    Epochs that are packed anew may differ in their number of batches, so that a trainer which divides steps
    by an epoch's length would resume in the wrong place; here step n is batch n of the plan, and `set_step`
    says where the next iteration begins. For `DataLoader(steps, batch_size=None)`.
    """

    # Not PlannedTokens: whoever checks annotations at run time would warn of how torch wrote its base class.
    def __init__(self, tokens: Any) -> None:
        super().__init__()
        self.tokens: PlanDataset = tokens
        self._step = torch.tensor([0]).share_memory_()

    def set_step(self, step: int) -> None:
        """Choose the batch that the next iteration begins with."""
        if not 0 <= step <= len(self):
            raise ValueError(f"the plan has {len(self)} batches, so none begins at {step}")
        self._step[0] = step

    def __len__(self) -> int:
        return self.tokens.plan.total_microbatches

    def __iter__(self) -> Iterator[TorchBatch]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        first = int(self._step[0])
        places = [(plan.epoch, index) for plan in self.tokens.plan.epochs for index in range(len(plan))]
        return (self.tokens.batch(*place) for place in places[first + number :: workers])


class PlanLoader(DataLoader):
    """A `DataLoader` over `PlanDataset` that knows how far it is: `state_dict` and `load_state_dict`.

    `settings` are `DataLoader`'s own (`pin_memory`, `prefetch_factor`, ...). Call `set_epoch` before each
    epoch. What a state says of an epoch counts for every rank, so that one rank's may be loaded by all.
    """

    dataset: PlanDataset

    # Not PlannedTokens: whoever checks annotations at run time would warn of how torch wrote its base class.
    def __init__(self, dataset: Any, *, num_workers: int = 0, **settings: Any) -> None:
        if not isinstance(dataset, PlanDataset):
            raise TypeError(f"expected PlannedTokens(plan, samples), got {type(dataset).__name__}")
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"):
            if name in settings:
                raise TypeError(f"{name} is settled by the plan; leave it out")
        if not settings.get("in_order", True):
            raise ValueError("without in_order it cannot be told which batches were done")
        if num_workers and "multiprocessing_context" not in settings and "jax" in sys.modules:
            # JAX's threads do not survive a fork.
            settings["multiprocessing_context"] = "forkserver"
        self._done = (dataset.epoch, dataset.first_batch)
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **settings)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through."""
        self.dataset.set_epoch(epoch)
        self._done = (epoch, 0)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[TorchBatch]:  # type: ignore[override, unused-ignore]
        place = self._done = (self.dataset.epoch, self.dataset.first_batch)
        return self._counted(super().__iter__(), place)

    def _counted(self, batches: Iterator[TorchBatch], place: tuple[int, int]) -> Iterator[TorchBatch]:
        epoch, first = place
        try:
            for number, batch in enumerate(batches, first + 1):
                self._done = (epoch, number)
                yield batch
        finally:
            # A place to resume from counts once.
            if (self.dataset.epoch, self.dataset.first_batch) == place:
                self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the batches that were handed out are done."""
        epoch, batch = self._done
        return {"epoch": epoch, "batch": batch, **self._plan_facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from there."""
        facts = self._plan_facts()
        if missing := [name for name in ("epoch", "batch", *facts) if name not in state]:
            raise ValueError(f"not the state of a token loader: it lacks {', '.join(missing)}")
        if state["plan"] != facts["plan"]:
            raise ValueError(f"the state is of plan {state['plan']}, but this is plan {facts['plan']}")
        if state["world_size"] != facts["world_size"]:
            raise ValueError(
                f"the state is of {state['world_size']} ranks, but there are {facts['world_size']}; "
                f"go on with plan.remaining(epoch={state['epoch']}, step={state['batch']}, "
                f"world_size={state['world_size']})"
            )
        self.dataset.set_epoch(int(state["epoch"]), int(state["batch"]))
        self._done = (int(state["epoch"]), int(state["batch"]))

    def _plan_facts(self) -> dict[str, Any]:
        plan, shard = self.dataset.plan, self.dataset.plan.meta.shard
        if shard is None:
            return {"plan": plan.fingerprint, "world_size": 1}
        return {"plan": shard.plan_fingerprint, "world_size": shard.world_size}


@dataclasses.dataclass(frozen=True)
class PackedCollator:
    """Rows of a packed dataset to a batch, for `DataLoader(collate_fn=...)` and Hugging Face's `Trainer`.

    A row has `input_ids`, `labels` and `position_ids`, without padding, as `hf_datasets.to_dataset` makes
    them. Segments are told by the positions, which start at 0 in each.
    """

    pad_id: int = 0
    attention: Attention = "positions"
    dtype: torch.dtype = torch.float32

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> TorchBatch:
        padding = {"input_ids": self.pad_id, "labels": IGNORED, "position_ids": 0}
        for name in padding:
            if absent := [place for place, row in enumerate(rows) if name not in row]:
                raise ValueError(f"row {absent[0]} has no {name}; it has {', '.join(rows[absent[0]])}")
        positions = [np.asarray(row["position_ids"]) for row in rows]
        segments = [np.cumsum(row == 0) for row in positions]
        arrays = {
            name: pad_sequences([np.asarray(row[name]) for row in rows], value, dtype=np.int64)
            for name, value in padding.items()
        }
        arrays["segment_ids"] = pad_sequences(segments, 0, dtype=np.int64)
        if self.attention == "varlen":
            raise ValueError("rows are collated with padding; for varlen use PlannedTokens")
        return tensors_of(arrays, self.attention, self.dtype, one_sample_a_row=False)


def token_batch(
    batch: CollatedBatch,
    attention: Attention = "positions",
    dtype: torch.dtype = torch.float32,
    *,
    align: int = 1,
    pad_id: int = 0,
) -> TorchBatch:
    """A batch of a plan or of a batch file as tensors; `dtype` is the model's, for masks that are added."""
    if attention == "varlen":
        tensors = one_row(varlen_inputs(model_inputs(batch), align=align, pad_id=pad_id))
    else:
        tensors = tensors_of(
            model_inputs(batch), attention, dtype, one_sample_a_row=batch.segment_ids is None
        )
    tensors.update((name, torch.from_numpy(array)) for name, array in batch.extras.items())
    tensors.sample_ids, tensors.sample_rows = batch.sample_ids, batch.sample_rows
    tensors.index = batch.index
    return tensors


def attention_bias(
    segment_ids: Integer[np.ndarray, "rows width"], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[rows, 1, width, width], to be added to the scores: 0 where a token may attend, else very negative.

    Causal within segments. Padding sees itself alone, because a row of nothing has no softmax.
    """
    # Not truth values: Hugging Face's eager attention adds whatever mask it is given.
    allowed = create_segment_attention_mask(segment_ids, causal=True, padding_sees_itself=True)
    bias = torch.zeros(allowed.shape, dtype=dtype)
    return bias.masked_fill_(torch.from_numpy(~allowed), torch.finfo(dtype).min).unsqueeze(1)


def one_row(arrays: Mapping[str, Any]) -> TorchBatch:
    """Tokens as [1, tokens], where samples begin as one dimension; `max_seqlen` stays a number."""
    rows = ("input_ids", "labels", "position_ids")
    tensors = TorchBatch({name: torch.from_numpy(arrays[name])[None] for name in rows})
    for name in arrays:
        if name.startswith("cu_"):
            tensors[name] = torch.from_numpy(arrays[name])
    tensors["max_seqlen"] = arrays["max_seqlen"]
    return tensors


def tensors_of(
    arrays: Mapping[str, np.ndarray],
    attention: Attention,
    dtype: torch.dtype = torch.float32,
    *,
    one_sample_a_row: bool = False,
) -> TorchBatch:
    """Arrays with their `segment_ids` as tensors, with what `attention` asks for in place of these."""
    tensors = TorchBatch({name: torch.from_numpy(array) for name, array in arrays.items()})
    segments = tensors["segment_ids"]
    if attention != "segments":
        del tensors["segment_ids"]
    if attention != "segments" and one_sample_a_row:
        tensors["attention_mask"] = (segments > 0).long()
    elif attention == "mask":
        tensors["attention_mask"] = attention_bias(segments.numpy(), dtype)
    elif attention == "positions":
        # With a cache a model takes the row for one text. A tensor, so that `value.to(device)` serves all.
        tensors["use_cache"] = torch.tensor(False)
    return tensors
