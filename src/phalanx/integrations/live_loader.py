"""The batches of a live plan for PyTorch: packed tensors, and the state that brings back the next one.

Plans that were made beforehand are in `token_loader`; how a live plan draws and packs is in `phalanx.data`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from phalanx.data.plans.streaming_plan import StreamingPlan
from phalanx.integrations.model_inputs import labels_of, varlen_inputs
from phalanx.integrations.torch_data import Attention, TorchBatch, check_attention, one_row, tensors_of


class LiveTokens(IterableDataset):
    """One rank's batches of a live plan, without end or until its sources end.

    For `DataLoader(LiveTokens(plan), batch_size=None)`, without workers: what a plan has handed out is
    counted in this process, and `plan.state_dict()` is what a checkpoint keeps.
    """

    def __init__(
        self,
        plan: StreamingPlan,
        *,
        rank: int = 0,
        world_size: int = 1,
        pad_id: int = 0,
        attention: Attention = "positions",
        dtype: torch.dtype = torch.float32,
        align: int = 1,
    ) -> None:
        """`align` fills every sample up to a multiple of it, with `attention="varlen"`."""
        super().__init__()
        check_attention(attention, align)
        self.plan, self.rank, self.world_size = plan, rank, world_size
        self.pad_id, self.attention, self.dtype, self.align = pad_id, attention, dtype, align

    def __iter__(self) -> Iterator[TorchBatch]:
        if get_worker_info() is not None:
            raise ValueError("a live plan is read in one process: use num_workers=0")
        for batch in self.plan.batches(self.rank, self.world_size):
            packed = self.plan.collate(batch, self.pad_id)
            names = [*self.plan.sources]
            arrays: dict[str, Any] = {
                "input_ids": packed.input_ids.astype("int64"),
                "labels": labels_of(packed.input_ids, packed.loss_mask, packed.position_ids),
                "position_ids": packed.position_ids.astype("int64"),
                "segment_ids": packed.segment_ids.astype("int64"),
            }
            if self.attention == "varlen":
                tensors = one_row(varlen_inputs(arrays, align=self.align, pad_id=self.pad_id))
            else:
                tensors = tensors_of(arrays, self.attention, self.dtype)
            places = zip(batch.sources.tolist(), batch.places.tolist(), strict=True)
            tensors.sample_ids = tuple(f"{names[source]}/{place}" for source, place in places)
            tensors.sample_rows = tuple(np.repeat(np.arange(len(batch)), np.diff(batch.offsets)).tolist())
            tensors.index = batch.step
            yield tensors
