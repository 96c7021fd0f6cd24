"""Pydantic models for stream samples, and stream counters."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin
from phalanx.puzzles.server_client.episodes import (
    StreamMetrics as _StreamMetrics,
    StreamStatus as StreamState,
)

INFO_FIELDS = tuple(field.name for field in dataclasses.fields(SampleInfo) if field.name != "origin")
"""Fields that a `StreamSample` and the `SampleInfo` of a sample have in common."""


class SampleSource(StrEnum):
    """Origin of a sample."""

    OFFLINE = "offline"
    GYM = "gym"
    REPLAY = "replay"
    SYNTHETIC = "synthetic"

    @classmethod
    def _missing_(cls, value: object) -> "SampleSource | None":
        return cls.GYM if value == SampleOrigin.ENVIRONMENT else None

    @property
    def origin(self) -> SampleOrigin:
        """The corresponding origin in `phalanx.data`."""
        return SampleOrigin.ENVIRONMENT if self is SampleSource.GYM else SampleOrigin(self.value)


class StreamSample(BaseModel):
    """A tokenized sample from a stream. `to_sample` converts it to a `Sample` of `phalanx.data`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    segment_ids: tuple[int, ...] | None = None
    sample_id: str
    dataset_id: str
    source: SampleSource
    timestamp: datetime = Field(default_factory=lambda: datetime.now(UTC))
    episode_id: str | None = None
    episode_status: EpisodeStatus | None = None
    step_index: int | None = None
    total_steps: int | None = None
    reward: float | None = None
    difficulty: float | None = None
    success: bool | None = None
    replay_count: int = 0
    priority: float = 1.0

    def __init__(self, **fields: Any) -> None:
        for name in ("input_ids", "loss_mask", "segment_ids"):
            if isinstance(fields.get(name), np.ndarray):
                fields[name] = tuple(fields[name].tolist())
        super().__init__(**fields)
        # Validates tokens, mask and numbers.
        self.to_sample()

    @classmethod
    def from_sample(cls, sample: Sample) -> "StreamSample":
        """Convert a `Sample` of `phalanx.data` to this class."""
        info = sample.info or SampleInfo()
        segments = sample.columns.get("segment_ids")
        return cls.model_construct(
            input_ids=tuple(sample.input_ids.tolist()),
            loss_mask=tuple(sample.loss_mask.tolist()),
            segment_ids=None if segments is None else tuple(segments.tolist()),
            sample_id=sample.sample_id,
            source=SampleSource(info.origin),
            **{name: getattr(info, name) for name in INFO_FIELDS},
        )

    def to_sample(self) -> Sample:
        """Convert to a `Sample` of `phalanx.data`."""
        try:
            info = SampleInfo(
                origin=self.source.origin, **{name: getattr(self, name) for name in INFO_FIELDS}
            )
        except ValueError as error:
            raise ValueError(f"sample {self.sample_id!r}: {error}") from error
        columns = {} if self.segment_ids is None else {"segment_ids": np.array(self.segment_ids, np.int32)}
        return Sample(self.sample_id, np.array(self.input_ids), np.array(self.loss_mask), columns, info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamSample) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in type(self).model_fields if name != "timestamp")

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that count toward the loss."""
        return sum(self.loss_mask)

    @property
    def is_gym_sample(self) -> bool:
        """True if the sample comes from an environment, not from a file, a generator or a replay buffer."""
        return self.source is SampleSource.GYM

    @property
    def is_replay(self) -> bool:
        """True if the sample comes from a replay buffer."""
        return self.source is SampleSource.REPLAY or self.replay_count > 0

    def with_replay(self) -> "StreamSample":
        """Return a copy with the source `replay` and a replay count that is higher by one."""
        return self.model_copy(update={"source": SampleSource.REPLAY, "replay_count": self.replay_count + 1})


def to_samples(samples: Sequence["StreamSample | Sample"]) -> list[Sample]:
    """Convert samples to `Sample` objects of `phalanx.data`."""
    return [sample.to_sample() if isinstance(sample, StreamSample) else sample for sample in samples]


class StreamMetrics(_StreamMetrics):
    """Statistics of a sample stream. `record_sample` also accepts a `StreamSample`."""

    def record_sample(self, sample: "StreamSample | Sample") -> None:
        """Count a sample that the stream returned."""
        super().record_sample(*to_samples([sample]))


__all__ = ["EpisodeStatus", "SampleSource", "StreamMetrics", "StreamSample", "StreamState", "to_samples"]
