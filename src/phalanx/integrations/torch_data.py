"""PyTorch dataset and data loader for batch plans and streaming plans."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Integer

from phalanx.data.attention_masks import create_segment_attention_mask
from phalanx.data.collation import IGNORE_INDEX, CollateFn, SampleLike, TokenBatch, collate
from phalanx.data.packing import PackingConfig
from phalanx.data.plans.batch_plan import (
    BatchPlan,
    BatchPlanBuilder,
    BatchPlanState,
    BatchSpec,
    EpochPlan,
    resolve_state,
)
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.sharding import ShardingConfig
from phalanx.data.plans.streaming_plan import StreamingPlan
from phalanx.data.samples import token_columns
from phalanx.extras import require_extra

with require_extra(__name__, "torch", "torch"):
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Attention = Literal["positions", "mask", "segments", "varlen"]
"""Tensors that show a model which tokens of a packed row belong to the same sample.

- `positions`: `position_ids`, from which many `transformers` models infer where samples begin, provided that
  they do not use a KV cache or flash attention. The batch includes `use_cache=False`.
- `mask`: an additive `attention_mask` [rows, 1, width, width], which is large. Most models accept it, but it
  replaces their sliding windows and has no effect on recurrent and convolutional layers.
- `segments`: `segment_ids`, for your own mask.
- `varlen`: all samples in one row without padding, with `cu_seqlens` and `max_seqlen`, for flash-attention
  kernels, and with `use_cache=False`.

Call `choose_attention` to find the format for a `transformers` model. If every row has one sample,
`positions` and `mask` both give an `attention_mask` [rows, width] of zeros and ones.
"""


class TorchBatch(dict):
    """Dictionary of tensors, for `model(**batch)`."""

    sample_ids: tuple[str, ...] = ()
    """Ids of the samples, row by row."""
    sample_rows: tuple[int, ...] = ()
    """For each sample in `sample_ids`, the index of the row that contains it."""
    index: int = -1
    """Index of the batch within its epoch on this rank. For a streaming plan, the index of the step."""


class PlanDataset(IterableDataset):
    """The batches of a plan as tensors, for `DataLoader(dataset, batch_size=None)`.

    A batch has `input_ids`, `labels` (-100 for tokens that are excluded from the loss), `position_ids` that
    restart with every sample, the tensors that `attention` selects, and the additional columns of the batch.

    With a batch plan, an iteration covers one epoch, or all epochs with `all_epochs=True`. `set_epoch` sets
    where the next iteration starts, even for workers that are already running. The batches are divided among
    the workers of a data loader, and the loader returns them in the order of the plan. With a streaming plan,
    an iteration continues where the previous one stopped, and workers cannot be used.
    """

    def __init__(
        self,
        plan: BatchPlan | StreamingPlan,
        samples: Mapping[str, SampleLike] | None = None,
        *,
        rank: int = 0,
        world_size: int | ShardingConfig = 1,
        all_epochs: bool = False,
        pad_id: int = 0,
        attention: Attention | None = None,
        dtype: torch.dtype = torch.float32,
        collate_fn: CollateFn | None = None,
        align: int = 1,
    ) -> None:
        """Create a dataset.

        Args:
            plan: Batch plan or streaming plan.
            samples: Mapping from ids to samples. Required for a batch plan, and not used for a streaming
                plan.
            rank: Rank of this process, counted from 0.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
            all_epochs: Cover all epochs of a batch plan in one iteration, for trainers that count steps.
            pad_id: Padding token. Padding affects neither the loss nor other tokens, so the default of 0
                works even if the tokenizer has a different padding token.
            attention: Format in which batches specify which tokens belong together (see `Attention` and
                `choose_attention`). Defaults to `positions`, or to the format that a `PlanTrainerMixin`
                trainer chooses for its model.
            dtype: Data type of an additive attention mask. Use that of the model.
            collate_fn: Function that creates additional arrays for batches that are not packed (see
                `CollateFn`).
            align: Pad every sample so that its length is a multiple of this number of tokens. Only for
                `attention="varlen"`.
        """
        super().__init__()
        if attention is not None and attention not in get_args(Attention):
            raise ValueError(f"attention must be one of {', '.join(get_args(Attention))}, got {attention!r}")
        if align < 1:
            raise ValueError(f"align must be at least 1, got {align}")
        if align != 1 and attention != "varlen":
            raise ValueError("align can only be used with attention='varlen'")
        self.plan, self.samples = plan, samples
        self.rank, self.shard = rank, ShardingConfig.resolve(world_size)
        self.shard.check_rank(rank)
        self.all_epochs = all_epochs
        self.pad_id, self.attention, self.dtype = pad_id, attention, dtype
        self.collate_fn, self.align = collate_fn, align
        self._stream, first = None, 0
        if isinstance(plan, StreamingPlan):
            self._stream = plan.batches(rank, self.shard)
        elif samples is None:
            raise TypeError("a batch plan needs its samples: PlanDataset(plan, samples)")
        else:
            plan.check_samples(samples)
            first = plan.epochs[0].epoch if plan.epochs else 0
        # In shared memory, because workers that outlive an epoch have copies of this object.
        self._position = torch.tensor([first, 0]).share_memory_()
        self._sharded: dict[int, EpochPlan] = {}
        # `BatchPlanState.earlier` of each epoch that was resumed on a different number of ranks.
        self._earlier: dict[int, tuple[tuple[int, ShardingConfig], ...]] = {}

    @property
    def _batch_plan(self) -> BatchPlan:
        if not isinstance(self.plan, BatchPlan):
            raise TypeError("a streaming plan has no length and no epochs")
        return self.plan

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index of the batch at which the next iteration starts. (0, 0) for a streaming plan."""
        epoch, batch = self._position.tolist()
        return epoch, batch

    def epoch_plan(self, epoch: int) -> EpochPlan:
        """Return this rank's batches in an epoch."""
        if epoch not in self._sharded:
            plan, earlier = self._batch_plan, self._earlier.get(epoch, ())
            sharded = plan.epoch_for_rank(plan.get_epoch(epoch), self.rank, self.shard, earlier)
            self._sharded[epoch] = sharded
        return self._sharded[epoch]

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Set the epoch and the batch index at which the next iteration starts.

        The epoch is complete again if it was resumed on a different number of ranks.
        """
        self._set_position(epoch, batch, {})

    def _set_position(
        self, epoch: int, batch: int, earlier: dict[int, tuple[tuple[int, ShardingConfig], ...]]
    ) -> None:
        for changed in self._earlier.keys() | earlier.keys():
            self._sharded.pop(changed, None)
        self._earlier = earlier
        count = len(self.epoch_plan(epoch))
        if not 0 <= batch <= count:
            raise ValueError(f"batch must be between 0 and {count} in epoch {epoch}, got {batch}")
        self._position[:] = torch.tensor([epoch, batch])

    def state_dict(self, batches: int = 0, *, start: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the position that is `batches` batches after `start`, as JSON-compatible values.

        For a streaming plan, the arguments are ignored and the current position is returned.

        Args:
            batches: Number of batches between `start` and the returned position.
            start: Epoch and batch index. Defaults to the position at which the next iteration starts.
        """
        if self._stream is not None:
            return self._stream.state_dict()
        iterator = self._batch_plan.batches(self.rank, self.shard)
        epoch, step = start or self.position
        earlier = self._earlier.get(epoch, ())
        fingerprint = self._batch_plan.fingerprint
        state = BatchPlanState(plan=fingerprint, epoch=epoch, step=step, shard=self.shard, earlier=earlier)
        iterator.load_state_dict(state.model_dump(mode="json"))
        iterator.skip(batches)
        return iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start at the position of a saved state.

        Args:
            state: State that `state_dict` returned, possibly on a different number of ranks.

        Raises:
            ValueError: If the state is from a different plan, or if a sharding setting other than
                `world_size` differs.
        """
        if self._stream is not None:
            self._stream.load_state_dict(state)
            return
        loaded = resolve_state(self._batch_plan, self.shard, state)
        earlier = {loaded.epoch: loaded.earlier} if loaded.earlier else {}
        self._set_position(loaded.epoch, loaded.step, earlier)

    def __len__(self) -> int:
        """Return the number of batches on this rank.

        The batches are those of the current epoch or, with `all_epochs`, of all epochs.
        """
        numbers, current = [plan.epoch for plan in self._batch_plan.epochs], self.position[0]
        return sum(len(self.epoch_plan(n)) for n in numbers if self.all_epochs or n == current)

    def _remaining(self, all_epochs: bool) -> list[tuple[int, int]]:
        """List the epoch and index of each remaining batch of the current epoch.

        If `all_epochs` is True, also list the batches of all later epochs.
        """
        epoch, first = self.position
        later = [plan.epoch for plan in self._batch_plan.epochs if all_epochs and plan.epoch > epoch]
        batches = [(number, i) for number in (epoch, *later) for i in range(len(self.epoch_plan(number)))]
        return batches[first:]

    @property
    def num_remaining(self) -> int:
        """Number of batches from the current position to the end of the last epoch."""
        return len(self._remaining(all_epochs=True))

    def __iter__(self) -> Iterator[TorchBatch]:
        worker = get_worker_info()
        if self._stream is not None:
            if worker is not None:
                raise ValueError("a streaming plan is read in one process: use num_workers=0")
            # Unlike a generator, `map` can continue after an error of a source.
            return map(self._convert, self._stream)
        # Listed now, because the position may have changed by the time the first batch is requested.
        batches = self._remaining(self.all_epochs)
        if worker is not None:
            batches = batches[worker.id :: worker.num_workers]
        return (self._convert(self.epoch_plan(epoch)[index]) for epoch, index in batches)

    def _convert(self, spec: BatchSpec) -> TorchBatch:
        samples, collate_fn = (None, None) if self._stream is not None else (self.samples, self.collate_fn)
        batch = collate(spec, samples, pad_id=self.pad_id, collate_fn=collate_fn)
        attention = self.attention or "positions"
        return to_torch(batch, attention, self.dtype, align=self.align, pad_id=self.pad_id)


class PlanLoader(DataLoader):
    """A `DataLoader` over a `PlanDataset` with a resumable state.

    Call `set_epoch` before each epoch of a batch plan. The state is the same on every rank, and can be loaded
    on a different number of ranks.
    """

    dataset: PlanDataset

    # Not PlanDataset: a run-time type checker would warn about its base class in torch.
    def __init__(self, dataset: Any, *, num_workers: int = 0, **settings: Any) -> None:
        """Create a loader.

        Args:
            dataset: A `PlanDataset`.
            num_workers: Number of worker processes. If 0, batches are loaded in this process.
            **settings: Additional arguments to `DataLoader`, such as `pin_memory`.
        """
        if not isinstance(dataset, PlanDataset):
            raise TypeError(f"expected a PlanDataset, got {type(dataset).__name__}")
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"):
            if name in settings:
                raise TypeError(f"{name} is determined by the plan and cannot be set")
        if not settings.get("in_order", True):
            raise ValueError("in_order=False cannot be used, because batches are counted in order")
        if num_workers and "multiprocessing_context" not in settings and "jax" in sys.modules:
            # JAX's threads do not survive a fork.
            settings["multiprocessing_context"] = "forkserver"
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **settings)
        self._begin()

    def _begin(self) -> None:
        self._start, self._num_used = self.dataset.position, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the next iteration."""
        if self.dataset._earlier:
            self._iterator = None
        self.dataset.set_epoch(epoch)
        self._begin()

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[TorchBatch]:  # type: ignore[override, unused-ignore]
        self._begin()
        batches = super().__iter__()
        is_stream = isinstance(self.dataset.plan, StreamingPlan)
        return batches if is_stream else self._count(batches, self._start)

    def _count(self, batches: Iterator[TorchBatch], start: tuple[int, int]) -> Iterator[TorchBatch]:
        # Bound here, because the names of this module are cleared when the interpreter exits.
        is_finalizing = sys.is_finalizing
        try:
            for batch in batches:
                self._num_used += 1
                yield batch
        finally:
            # A position to resume from applies to one iteration only.
            if not is_finalizing() and self.dataset.position == start:
                self.dataset._set_position(start[0], 0, self.dataset._earlier)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that have been yielded so far, as JSON-compatible values."""
        return self.dataset.state_dict(self._num_used, start=self._start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned. The next iteration starts at its position."""
        # Persistent workers see a new position, but not the numbers of ranks on which the epoch began.
        self._iterator = None
        self.dataset.load_state_dict(state)
        self._begin()


@dataclasses.dataclass(frozen=True)
class PackedRowPaddingCollator:
    """Collator that pads rows of a packed dataset, for a `DataLoader` or the Hugging Face `Trainer`.

    A row has `input_ids`, `labels` and `position_ids` without padding, as `hf_datasets.to_dataset` creates
    them. A new sample starts wherever `position_ids` is 0. Other lists of numbers are columns, which must
    have one entry per token and are padded with 0.
    """

    pad_id: int = 0
    """Padding token."""
    attention: Attention = "positions"
    """Format in which batches specify which tokens belong together: any `Attention` except `varlen`."""
    dtype: torch.dtype = torch.float32
    """Data type of an additive attention mask."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> TorchBatch:
        padding = {"input_ids": self.pad_id, "labels": IGNORE_INDEX, "position_ids": 0}
        for name in padding:
            if missing := [index for index, row in enumerate(rows) if name not in row]:
                raise ValueError(f"row {missing[0]} has no {name}; it has {', '.join(rows[missing[0]])}")
        if self.attention == "varlen":
            raise ValueError("attention='varlen' is not supported here; use PlanDataset")
        segments = [np.cumsum(np.asarray(row["position_ids"]) == 0) for row in rows]
        arrays = {
            name: _pad([np.asarray(row[name]) for row in rows], value) for name, value in padding.items()
        }
        arrays["segment_ids"] = _pad(segments, 0)
        columns = [token_columns(row, len(row["input_ids"])) for row in rows]
        for index, row in enumerate(columns):
            if row.keys() != columns[0].keys():
                raise ValueError(f"row {index} has columns {sorted(row)}, but row 0 has {sorted(columns[0])}")
        for name in columns[0]:
            arrays[name] = _pad([row[name] for row in columns], 0, dtype=None)
        return _to_tensors(arrays, self.attention, self.dtype, one_sample_per_row=False)


def _pad(rows: Sequence[np.ndarray], value: int, dtype: torch.dtype | None = torch.long) -> np.ndarray:
    tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value).numpy()


def to_torch(
    batch: TokenBatch,
    attention: Attention = "positions",
    dtype: torch.dtype = torch.float32,
    *,
    align: int = 1,
    pad_id: int = 0,
) -> TorchBatch:
    """Convert a batch to tensors.

    Args:
        batch: Batch from a plan or a batch file.
        attention: Format in which batches specify which tokens belong together (see `Attention`).
        dtype: Data type of an additive attention mask.
        align: Pad every sample so that its length is a multiple of this number of tokens. Only for
            `attention="varlen"`.
        pad_id: Token used for this padding.
    """
    columns = batch.columns
    if attention == "varlen":
        flat = batch.varlen(align=align, pad_id=pad_id)
        tensors = TorchBatch(max_seqlen=flat.pop("max_seqlen"))
        for name, array in flat.items():
            tensor = torch.from_numpy(array)
            # Tokens and columns have the shape [1, tokens, ...], boundaries have the shape [samples + 1].
            tensors[name] = tensor if name.startswith("cu_seqlens") else tensor[None]
        columns = {name: array for name, array in columns.items() if name not in flat}
        tensors["use_cache"] = torch.tensor(False)
    else:
        arrays = {
            "input_ids": batch.input_ids.astype(np.int64),
            "labels": batch.labels(),
            "position_ids": batch.position_ids.astype(np.int64),
            "segment_ids": batch.segment_ids.astype(np.int64),
        }
        packed = batch.spec is None or batch.spec.packed
        tensors = _to_tensors(arrays, attention, dtype, one_sample_per_row=not packed)
    tensors.update((name, torch.from_numpy(array)) for name, array in columns.items())
    if batch.spec is not None:
        tensors.sample_ids, tensors.index = batch.spec.sample_ids, batch.spec.index
    tensors.sample_rows = batch.sample_rows
    return tensors


def choose_attention(
    model: Any,
    plan: BatchPlan | StreamingPlan,
    formats: Sequence[Attention] = ("positions", "varlen", "mask"),
) -> Attention:
    """Return the first attention format in which a `transformers` model keeps packed samples apart.

    Each format is tested with the model itself, in training mode: in a small packed batch, the logits of all
    other samples must have a gradient of zero with respect to the embeddings of the first sample.

    Args:
        model: Causal language model with its weights, as it is trained: with its final `attn_implementation`,
            and not yet sharded.
        plan: Plan whose batches the model is trained on.
        formats: Formats to test (see `Attention`).

    Raises:
        ValueError: If no format keeps samples apart, or if the model cannot be tested.
    """
    name, implementation = type(model).__name__, model.config._attn_implementation
    packing = plan.meta.packing if isinstance(plan, BatchPlan) else plan.config.packing
    if packing is None and formats[0] != "varlen":
        return formats[0]
    if any(weight.is_meta or not weight.numel() for weight in model.parameters()):
        untested = f"the weights of {name} are sharded, so attention formats cannot be tested"
        if len(formats) > 1:
            raise ValueError(f"{untested}; set attention to the format that keeps packed samples apart")
        warnings.warn(f"{untested}; attention={formats[0]!r} may mix packed samples", stacklevel=2)
        return formats[0]
    problems = []
    for attention in formats:
        problem = _find_problem(model, attention, 0 if packing is None else packing.max_length)
        if problem is None:
            return attention
        problems.append(f"{attention}: {problem}")
    if len(formats) == 1:
        advice = "use attention=choose_attention(model, plan)"
    else:
        advice = "build the plan without packing, or load the model with another attn_implementation"
    raise ValueError(
        f"{name} with attn_implementation={implementation!r} does not keep the samples of a packed row apart "
        f"({'; '.join(problems)}); {advice}"
    )


def _find_problem(model: Any, attention: Attention, row_length: int) -> str | None:
    """Return why a model does not support an attention format, or None if it does."""
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if attention == "mask" and window is not None and window < row_length:
        return f"replaces the sliding window of {window} tokens, but rows have up to {row_length}"
    length, vocab_size = 8, model.get_input_embeddings().weight.shape[0]
    sample = {"input_ids": [token % vocab_size for token in range(length)]}
    config = BatchingConfig.throughput(4 * length, bucket_edges=(length,), max_sample_length=2 * length)
    packing = PackingConfig(max_length=2 * length)
    plan = BatchPlanBuilder(dict.fromkeys("abcd", length), config, packing=packing).build()
    (batch,) = PlanDataset(plan, dict.fromkeys("abcd", sample), attention=attention, dtype=model.dtype)
    del batch["labels"]
    rows = torch.tensor([2 * sample["input_ids"]])
    # Without boundaries, text influences what follows it, so a gradient of zero would prove nothing.
    if not _has_influence(model, {"input_ids": rows, "use_cache": False}, length):
        raise ValueError(
            f"{type(model).__name__} ignores the context of a token, so attention formats cannot be tested; "
            f"load the model's weights first"
        )
    try:
        return "leaks" if _has_influence(model, batch, length) else None
    except (TypeError, ValueError, RuntimeError) as error:
        # A model that does not support a format rejects it in its own way.
        return str(error).partition("\n")[0].rstrip(".")


def _has_influence(model: Any, inputs: Mapping[str, Any], length: int) -> bool:
    """Return whether the first tokens of a batch influence the logits of tokens after them."""
    embeddings: list[torch.Tensor] = []

    def track(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    training = [(module, module.training) for module in model.modules()]
    hook = model.get_input_embeddings().register_forward_hook(track)
    device = model.get_input_embeddings().weight.device
    tensors = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    try:
        # Dropout must not change the random numbers of the training.
        with torch.random.fork_rng(), torch.enable_grad():
            logits = model.train()(**tensors)["logits"]
            total = logits.flatten(0, 1)[length:].float().sum()
            gradients = torch.autograd.grad(total, embeddings, allow_unused=True)
    finally:
        hook.remove()
        for module, mode in training:
            module.training = mode
    return any(bool(grad.flatten(0, 1)[:length].any()) for grad in gradients if grad is not None)


def attention_bias(
    segment_ids: Integer[np.ndarray, "rows width"], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return an additive attention mask [rows, 1, width, width].

    The mask is 0 where attention is allowed, and a large negative number elsewhere. Attention is causal
    within segments. Each padding token attends to itself, because a softmax over no tokens is undefined.
    """
    # Not boolean, because Hugging Face's eager attention adds any mask to the scores.
    allowed = create_segment_attention_mask(segment_ids, padding_sees_itself=True)
    bias = torch.zeros(allowed.shape, dtype=dtype)
    return bias.masked_fill_(torch.from_numpy(~allowed), torch.finfo(dtype).min).unsqueeze(1)


def _to_tensors(
    arrays: Mapping[str, np.ndarray],
    attention: Attention,
    dtype: torch.dtype,
    *,
    one_sample_per_row: bool,
) -> TorchBatch:
    """Convert arrays to tensors, and replace `segment_ids` with the tensors that `attention` selects."""
    tensors = TorchBatch({name: torch.from_numpy(array) for name, array in arrays.items()})
    segments = tensors["segment_ids"]
    if attention != "segments":
        del tensors["segment_ids"]
    if attention != "segments" and one_sample_per_row:
        tensors["attention_mask"] = (segments > 0).long()
    elif attention == "mask":
        tensors["attention_mask"] = attention_bias(segments.numpy(), dtype)
    elif attention == "positions":
        # With a cache, a model would treat the row as one text. A tensor, so that `value.to(device)` works.
        tensors["use_cache"] = torch.tensor(False)
    return tensors
