"""What a causal language model of another library is fed: a batch's tokens, labels, positions and segments.

Arrays are NumPy's; as torch tensors they come from `token_loader`, as rows of a dataset from `hf_datasets`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer

from phalanx.data.collation import CollatedBatch, CollateFunction, Sample, collate_microbatch, default_collate
from phalanx.data.plans.batch_plan import BatchPlan

IGNORED = -100
"""The label of a token that no loss is taken of, as in PyTorch and Hugging Face."""


@runtime_checkable
class ReadsMany(Protocol):
    """Samples of which many at once are read faster than one after another."""

    def take(self, sample_ids: Sequence[str]) -> Mapping[str, Any]:
        """Those of them that are there, by id."""


def planned_batch(
    plan: BatchPlan,
    samples: Mapping[str, Sample],
    epoch: int,
    index: int,
    *,
    pad_id: int = 0,
    collate_fn: CollateFunction = default_collate,
) -> CollatedBatch:
    """One batch of a plan."""
    spec = plan.get_epoch(epoch)[index]
    read = samples.take(spec.samples) if isinstance(samples, ReadsMany) else samples
    return collate_microbatch(spec, read, collate_fn=collate_fn, pad_id=pad_id, packing=plan.meta.pack_config)


def labels_of(
    input_ids: Integer[np.ndarray, "rows width"],
    loss_mask: Integer[np.ndarray, "rows width"],
    position_ids: Integer[np.ndarray, "rows width"],
) -> Int64[np.ndarray, "rows width"]:
    """The tokens to predict, `IGNORED` elsewhere; the model compares each with what stands before it.

    The first token of a segment is ignored: what stands before it is another sample's last one.

    >>> labels_of(np.array([[5, 6, 7, 8]]), np.array([[1, 1, 1, 1]]), np.array([[0, 1, 0, 1]])).tolist()
    [[-100, 6, -100, 8]]
    """
    return np.where((loss_mask != 0) & (position_ids != 0), input_ids, IGNORED).astype(np.int64)


def model_inputs(batch: CollatedBatch) -> dict[str, Int64[np.ndarray, "rows width"]]:
    """`input_ids`, `labels`, `position_ids` and `segment_ids` of a padded or packed batch.

    Positions count from 0 in each segment. Segments count from 1 in each row; padding has segment and
    position 0. A row that is not packed is one segment.
    """
    if batch.segment_ids is None or batch.position_ids is None:
        places = np.arange(batch.input_ids.shape[1])
        segments = (places < np.array(batch.lengths, np.int64)[:, None]).astype(np.int64)
        positions = places * segments
    else:
        segments, positions = batch.segment_ids.astype(np.int64), batch.position_ids.astype(np.int64)
    return {
        "input_ids": batch.input_ids.astype(np.int64),
        "labels": labels_of(batch.input_ids, batch.loss_mask, positions),
        "position_ids": positions,
        "segment_ids": segments,
    }


def varlen_inputs(
    arrays: Mapping[str, Int64[np.ndarray, "rows width"]], *, align: int = 1, pad_id: int = 0
) -> dict[str, Any]:
    """All samples of `model_inputs` end to end, without rows and padding, for attention of unequal lengths.

    `input_ids`, `labels` and `position_ids` are one row; sample n stands at `cu_seqlens[n]` to
    `cu_seqlens[n + 1]`, and the longest has `max_seqlen` tokens. With `align` each sample is filled up to a
    multiple of it (context parallelism over c devices wants 2 c): then samples stand at `cu_seqlens_padded`,
    and `cu_seqlens` goes on counting the true lengths.
    """
    real = arrays["segment_ids"] > 0
    positions = arrays["position_ids"][real]
    starts = np.flatnonzero(positions == 0)
    lengths = np.diff(np.append(starts, len(positions)))
    padded = -(-lengths // align) * align
    sums, padded_sums = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (lengths, padded))
    places = np.repeat(padded_sums[:-1] - sums[:-1], lengths) + np.arange(len(positions))
    # Positions go on in what is filled up, so that no new sample seems to begin there.
    found: dict[str, Any] = {
        "position_ids": np.arange(padded_sums[-1]) - np.repeat(padded_sums[:-1], padded),
    }
    for name, filler in (("input_ids", pad_id), ("labels", IGNORED)):
        found[name] = np.full(int(padded_sums[-1]), filler, np.int64)
        found[name][places] = arrays[name][real]
    found |= {"cu_seqlens": sums.astype(np.int32), "max_seqlen": int(padded.max(initial=0))}
    return found if align == 1 else found | {"cu_seqlens_padded": padded_sums.astype(np.int32)}


def check_samples(plan: BatchPlan, samples: Mapping[str, Sample]) -> None:
    """Raise `ValueError` where a plan holds samples that a dataset has not."""
    used = np.zeros(len(plan.table), bool)
    for epoch in plan.epochs:
        used[epoch.batches.order] = True
    missing = [str(name) for name in itertools.compress(plan.table.ids, used) if name not in samples]
    if missing:
        named = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise ValueError(
            f"the plan does not belong to this dataset: {len(missing)} of its {int(used.sum())} samples are "
            f"not there ({named}); plan the lengths of this dataset, with the same ids"
        )
