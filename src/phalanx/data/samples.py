"""What flows through a stream: token samples with their origin, and what a stream can be doing.

Where samples come from is in the stream modules, how they become bytes in `sample_bytes`, and where they are
kept in `replay`.
"""

import math
import time
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Int32, UInt8

from phalanx.data.sample_bytes import (
    HAS_EPISODE,
    HAS_SEGMENTS,
    TIMESTAMP_BYTES,
    Integers,
    Numbers,
    PackedSample,
    pack_mask,
    pack_numbers,
    pack_text,
    pack_tokens,
    unpack_numbers,
    unpack_text,
)


class SampleSource(StrEnum):
    """Where a sample came from."""

    OFFLINE = "offline"
    """A file or a list."""
    GYM = "gym"
    """An episode, of a puzzle server or of an environment."""
    REPLAY = "replay"
    """A replay buffer."""
    SYNTHETIC = "synthetic"
    """Made up."""


class EpisodeStatus(StrEnum):
    """How far an episode got."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ERROR = "error"


class StreamState(StrEnum):
    """What a stream is doing."""

    IDLE = "idle"
    STREAMING = "streaming"
    PAUSED = "paused"
    EXHAUSTED = "exhausted"
    ERROR = "error"


_SOURCES = tuple(SampleSource)
_STATUSES = tuple(EpisodeStatus)
# Stored by number: new members go to the end.
_SOURCE_CODES: dict[str, int] = {source.value: code for code, source in enumerate(_SOURCES)}
_STATUS_CODES: dict[str | None, int] = {None: -1} | {s.value: code for code, s in enumerate(_STATUSES)}


class StreamSample:
    """One sequence of tokens, which of them are learned, and where it comes from. Immutable.

    It is kept as bytes (`packed`), which buffers and files take as they are; the properties read them. The
    fields are those of the arguments:

    - input_ids, loss_mask: integers from 0, and as many 0 (read) and 1 (learned).
    - segment_ids: which part of a packed sequence each token belongs to.
    - sample_id, dataset_id: names of the sample and of what it is part of.
    - source: where it came from; timestamp: when (now). Two samples that differ in time only are equal.
    - episode_id, episode_status, step_index (from 0), total_steps: its place in an episode.
    - reward; difficulty, from 0 (easy) to 1 (hard); success, of the episode.
    - replay_count: how often it has come out of a replay buffer; priority: how much more often than others.

    What is not known is None.
    """

    __slots__ = ("packed",)
    packed: PackedSample

    def __init__(
        self,
        *,
        input_ids: Integers,
        loss_mask: Integers,
        sample_id: str,
        dataset_id: str,
        source: SampleSource | str,
        segment_ids: Integers | None = None,
        timestamp: datetime | None = None,
        episode_id: str | None = None,
        episode_status: EpisodeStatus | str | None = None,
        step_index: int | None = None,
        total_steps: int | None = None,
        reward: float | None = None,
        difficulty: float | None = None,
        success: bool | None = None,
        replay_count: int = 0,
        priority: float = 1.0,
    ) -> None:
        try:
            tokens, mask = pack_tokens(input_ids, "input_ids"), pack_mask(loss_mask)
            length = len(mask)
            if len(tokens) != 4 * length:
                raise ValueError(f"{len(tokens) // 4} input_ids but {length} in loss_mask")
            if not length:
                raise ValueError("a sample needs at least one token")
            if segment_ids is not None:
                segments = pack_tokens(segment_ids, "segment_ids")
                if len(segments) != len(tokens):
                    raise ValueError(f"{length} input_ids but {len(segments) // 4} segment_ids")
                tokens, mask = tokens + segments, mask + bytes(length)
            # The kinds are strings and can be looked up as they are; a strange one fails in words.
            source_code = _SOURCE_CODES.get(source)
            if source_code is None:
                source_code = _SOURCE_CODES[SampleSource(source)]
            status_code = _STATUS_CODES.get(episode_status)
            if status_code is None:
                status_code = _STATUS_CODES[EpisodeStatus(str(episode_status))]
            record = pack_numbers(
                time.time() if timestamp is None else timestamp.timestamp(),
                reward,
                difficulty,
                priority,
                length,
                step_index,
                total_steps,
                replay_count,
                source_code,
                status_code,
                success,
                HAS_SEGMENTS * (segment_ids is not None) + HAS_EPISODE * (episode_id is not None),
            )
            text = pack_text(sample_id, dataset_id, episode_id)
        except ValueError as error:
            raise ValueError(f"sample {sample_id!r}: {error}") from error
        object.__setattr__(self, "packed", PackedSample(tokens, mask, text, record))

    @classmethod
    def from_packed(cls, packed: PackedSample) -> "StreamSample":
        """The sample that these bytes are; they are trusted."""
        sample = object.__new__(cls)
        object.__setattr__(sample, "packed", packed)
        return sample

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a sample cannot be changed; use replace({name}=...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamSample.from_packed, (self.packed,)

    def _key(self) -> tuple[bytes, ...]:
        tokens, mask, text, record = self.packed
        return tokens, mask, text, record[TIMESTAMP_BYTES:]

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, StreamSample) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields().items())
        return f"StreamSample({fields})"

    @property
    def _numbers(self) -> Numbers:
        return unpack_numbers(self.packed.record)

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self._numbers.length

    @property
    def tokens(self) -> Int32[np.ndarray, " length"]:
        """The tokens as an array, which cannot be written to."""
        return np.frombuffer(self.packed.tokens, np.int32, self.length)

    @property
    def mask(self) -> UInt8[np.ndarray, " length"]:
        """The loss mask as an array, which cannot be written to."""
        return np.frombuffer(self.packed.mask, np.uint8, self.length)

    @property
    def input_ids(self) -> tuple[int, ...]:
        return tuple(self.tokens.tolist())

    @property
    def loss_mask(self) -> tuple[int, ...]:
        return tuple(self.packed.mask[: self.length])

    @property
    def segment_ids(self) -> tuple[int, ...] | None:
        numbers = self._numbers
        if not numbers.flags & HAS_SEGMENTS:
            return None
        return tuple(array("i", self.packed.tokens[4 * numbers.length :]))

    @property
    def sample_id(self) -> str:
        return unpack_text(self.packed.text)[0]

    @property
    def dataset_id(self) -> str:
        return unpack_text(self.packed.text)[1]

    @property
    def episode_id(self) -> str | None:
        return unpack_text(self.packed.text)[2] if self._numbers.flags & HAS_EPISODE else None

    @property
    def source(self) -> SampleSource:
        return _SOURCES[self._numbers.source]

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self._numbers.timestamp, UTC)

    @property
    def episode_status(self) -> EpisodeStatus | None:
        code = self._numbers.status
        return None if code < 0 else _STATUSES[code]

    @property
    def step_index(self) -> int | None:
        return _count(self._numbers.step_index)

    @property
    def total_steps(self) -> int | None:
        return _count(self._numbers.total_steps)

    @property
    def reward(self) -> float | None:
        return _number(self._numbers.reward)

    @property
    def difficulty(self) -> float | None:
        return _number(self._numbers.difficulty)

    @property
    def success(self) -> bool | None:
        code = self._numbers.success
        return None if code < 0 else bool(code)

    @property
    def replay_count(self) -> int:
        return self._numbers.replay_count

    @property
    def priority(self) -> float:
        return self._numbers.priority

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that are learned."""
        return self.packed.mask.count(1)

    @property
    def is_gym_sample(self) -> bool:
        """Whether it comes straight from an episode."""
        return self.source is SampleSource.GYM

    @property
    def is_replay(self) -> bool:
        """Whether it has come out of a replay buffer."""
        return self.source is SampleSource.REPLAY or self.replay_count > 0

    def replace(self, **changes: Any) -> "StreamSample":
        """A copy with some fields changed."""
        return StreamSample(**{**self._fields(), **changes})

    def with_replay(self) -> "StreamSample":
        """The sample as a replay buffer hands it out: its source is REPLAY, and it counts one replay more."""
        return self.replace(source=SampleSource.REPLAY, replay_count=self.replay_count + 1)

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what is None is left out."""
        plain = {name: value for name, value in self._fields().items() if value is not None}
        for name in ("input_ids", "loss_mask", "segment_ids"):
            if name in plain:
                plain[name] = list(plain[name])
        for name in ("source", "episode_status"):
            if name in plain:
                plain[name] = plain[name].value
        return {**plain, "timestamp": self.timestamp.isoformat()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "StreamSample":
        """The sample that `to_dict` wrote; a ValueError says what is missing or not known."""
        if strange := sorted(set(fields) - set(_FIELDS)):
            raise ValueError(f"a sample has no field {strange[0]!r}")
        if missing := [name for name in _REQUIRED if name not in fields]:
            raise ValueError(f"a sample needs {missing[0]!r}")
        values = dict(fields)
        if isinstance(values.get("timestamp"), str):
            values["timestamp"] = datetime.fromisoformat(values["timestamp"])
        return cls(**values)


_REQUIRED = ("input_ids", "loss_mask", "sample_id", "dataset_id", "source")
_FIELDS = (
    *_REQUIRED,
    *("segment_ids", "timestamp", "episode_id", "episode_status", "step_index", "total_steps", "reward"),
    *("difficulty", "success", "replay_count", "priority"),
)


def source_code(source: SampleSource) -> int:
    """The number that a source is stored as."""
    return _SOURCE_CODES[source]


def _count(value: int) -> int | None:
    return None if value < 0 else value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
