"""Samples, states and statistics of sample streams."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin

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


class StreamState(StrEnum):
    """State of a sample stream.

    A stream is `IDLE` before its first sample, `STREAMING` during iteration, `PAUSED` after an iteration has
    been stopped early or canceled, `EXHAUSTED` after its last episode, and `ERROR` after an exception.
    """

    IDLE = "idle"
    STREAMING = "streaming"
    PAUSED = "paused"
    EXHAUSTED = "exhausted"
    ERROR = "error"


@dataclasses.dataclass
class StreamMetrics:
    """Statistics of a sample stream."""

    samples_produced: int = 0
    """Number of samples that the stream yielded."""
    samples_filtered: int = 0
    """Number of samples that were dropped because of their length or outcome."""
    samples_errored: int = 0
    """Number of samples that could not be created."""
    episodes_completed: int = 0
    """Number of episodes that ended."""
    episodes_successful: int = 0
    """Number of episodes in which the puzzle was solved."""
    episodes_failed: int = 0
    """Number of episodes in which the puzzle was not solved."""
    total_time_seconds: float = 0.0
    """Time in seconds that was spent waiting for samples."""
    total_tokens: int = 0
    """Total number of tokens in all samples."""
    total_loss_tokens: int = 0
    """Total number of tokens that count toward the loss, in all samples."""
    min_length_seen: int | None = None
    """Number of tokens in the shortest sample. None before the first sample."""
    max_length_seen: int | None = None
    """Number of tokens in the longest sample. None before the first sample."""
    difficulty_sum: float = 0.0
    """Sum of the difficulties of all samples with a known difficulty."""
    difficulty_count: int = 0
    """Number of samples with a known difficulty."""
    reward_sum: float = 0.0
    """Sum of the rewards of all samples with a known reward."""
    reward_count: int = 0
    """Number of samples with a known reward."""

    @property
    def samples_total(self) -> int:
        """Number of samples that were produced or filtered out."""
        return self.samples_produced + self.samples_filtered

    @property
    def filter_rate(self) -> float:
        """`samples_filtered` divided by `samples_total`, or 0 if there are no samples."""
        return _ratio(self.samples_filtered, self.samples_total)

    @property
    def samples_per_second(self) -> float:
        """Number of samples produced per second of `total_time_seconds`."""
        return _ratio(self.samples_produced, self.total_time_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens produced per second of `total_time_seconds`."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def success_rate(self) -> float:
        """`episodes_successful` divided by `episodes_completed`, or 0 if no episode has ended."""
        return _ratio(self.episodes_successful, self.episodes_completed)

    @property
    def mean_difficulty(self) -> float:
        """Mean difficulty of the samples with a known difficulty, or 0 if there are none."""
        return _ratio(self.difficulty_sum, self.difficulty_count)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the samples with a known reward, or 0 if there are none."""
        return _ratio(self.reward_sum, self.reward_count)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per sample, or 0 if there are no samples."""
        return _ratio(self.total_tokens, self.samples_produced)

    def record_sample(self, sample: StreamSample) -> None:
        """Count a sample that the stream returned."""
        self.samples_produced += 1
        self.total_tokens += sample.length
        self.total_loss_tokens += sample.num_loss_tokens
        self.min_length_seen = min(sample.length, self.min_length_seen or sample.length)
        self.max_length_seen = max(sample.length, self.max_length_seen or sample.length)
        if sample.difficulty is not None:
            self.difficulty_sum += sample.difficulty
            self.difficulty_count += 1
        if sample.reward is not None:
            self.reward_sum += sample.reward
            self.reward_count += 1

    def record_filtered(self) -> None:
        """Count a sample that was filtered out."""
        self.samples_filtered += 1

    def record_error(self) -> None:
        """Count a sample that could not be created."""
        self.samples_errored += 1

    def record_episode(self, success: bool) -> None:
        """Count a completed episode."""
        self.episodes_completed += 1
        self.episodes_successful += success
        self.episodes_failed += not success

    def to_dict(self) -> dict[str, float]:
        """Return the most important statistics by name, for logging."""
        names = (
            *("samples_produced", "samples_filtered", "filter_rate", "samples_per_second"),
            *("tokens_per_second", "mean_length", "mean_difficulty", "mean_reward", "success_rate"),
            "episodes_completed",
        )
        return {name: getattr(self, name) for name in names}


def _ratio(part: float, total: float) -> float:
    return part / total if total else 0.0


__all__ = ["EpisodeStatus", "SampleSource", "StreamMetrics", "StreamSample", "StreamState", "to_samples"]
