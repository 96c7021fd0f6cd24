"""Replay buffer with a maximum size and prioritized sampling."""

import dataclasses
import hashlib
import heapq
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64
from pydantic import Field

from phalanx.config import Config
from phalanx.data.samples import (
    NUMBERS,
    ORIGIN_CODES,
    CompactSample,
    Sample,
    SampleOrigin,
    load_packed_samples,
    pack_sample,
    save_packed_samples,
    unpack_sample,
    unpack_tokens,
)
from phalanx.data.sum_tree import SumTree, draw_slots
from phalanx.io.checksum import CorruptFileError

_SUM_SCALE = 2.0**64


class EvictionPolicy(StrEnum):
    """Policy that chooses which sample a full buffer evicts when a new sample is added."""

    FIFO = "fifo"
    """Evict the oldest sample."""
    PRIORITY = "priority"
    """Evict the sample with the lowest priority. If there are several, evict the oldest of them."""
    RANDOM = "random"
    """Evict a random sample."""


class ReplayBufferConfig(Config):
    """Settings for a replay buffer."""

    max_size: int = Field(default=100_000, ge=1, lt=2**31)
    """Maximum number of samples in the buffer."""
    eviction_policy: EvictionPolicy = EvictionPolicy.FIFO
    """Policy that chooses the sample to evict when the buffer is full."""
    priority_alpha: float = Field(default=0.6, ge=0.0, le=1.0)
    """Exponent of the priorities, from 0 to 1. Samples are drawn in proportion to
    `priority ** priority_alpha`. With 0, they are drawn uniformly."""
    priority_beta: float = Field(default=0.4, ge=0.0, le=1.0)
    """Exponent of the importance weights, from 0 to 1. A value of 1 fully corrects the bias of prioritized
    sampling, and 0 does not correct it."""
    seed: int = Field(default=42, ge=0, lt=2**64)
    """Seed for sampling and random eviction."""
    min_samples_before_sampling: int = Field(default=1, ge=1)
    """Number of samples that the buffer must contain before any can be drawn. Until then, drawing returns no
    samples."""


@dataclasses.dataclass(frozen=True)
class SampleFilter:
    """Conditions on samples. A condition that is None always holds.

    Bounds are inclusive. If the difficulty or outcome of a sample is unknown, a condition on this value does
    not hold.
    """

    min_difficulty: float | None = None
    max_difficulty: float | None = None
    success: bool | None = None
    """Required outcome of the sample's episode: True for success, False for failure."""
    origin: SampleOrigin | None = None
    max_length: int | None = None
    """Maximum number of tokens."""

    def matches(self, numbers: np.ndarray) -> Bool[np.ndarray, " count"]:
        """Return a boolean array that is true for the samples that match.

        `numbers` is a structured array of type `NUMBERS` with one element per sample.
        """
        mask = np.ones(len(numbers), bool)
        # An unknown difficulty is NaN, for which every comparison is false.
        if self.min_difficulty is not None:
            mask &= numbers["difficulty"] >= self.min_difficulty
        if self.max_difficulty is not None:
            mask &= numbers["difficulty"] <= self.max_difficulty
        if self.success is not None:
            mask &= numbers["success"] == int(self.success)
        if self.origin is not None:
            mask &= numbers["origin"] == ORIGIN_CODES[self.origin]
        if self.max_length is not None:
            mask &= numbers["length"] <= self.max_length
        return mask


class SampleHandles(NamedTuple):
    """References to drawn samples, for `ReplayBuffer.update_priorities`."""

    slots: Int64[np.ndarray, " count"]
    """Position of each sample in the buffer."""
    serials: Int64[np.ndarray, " count"]
    """Serial number of each sample. Samples are numbered from 0 in the order in which they were added."""


class ReplayDraw(NamedTuple):
    """Drawn samples with importance weights."""

    samples: list[Sample]
    """Drawn samples. Their origin is `REPLAY`, and a sample may occur several times."""
    weights: Float64[np.ndarray, " count"]
    """Importance weight of each sample: `(size * probability) ** -beta`, divided by the largest weight in the
    draw. Here, `size` is the size of the buffer, and `probability` is the probability of drawing the
    sample."""
    handles: SampleHandles
    """References to the samples, for `ReplayBuffer.update_priorities`."""


@dataclasses.dataclass(eq=False, repr=False)
class BufferSnapshot(Sequence[Sample]):
    """The samples in a buffer at one point in time, oldest first.

    Later changes to the buffer do not affect the snapshot.
    """

    packed: list[CompactSample]
    """Samples in compact form."""
    serials: Int64[np.ndarray, " size"]
    """Serial number of each sample. Samples are numbered from 0 in the order in which they were added."""
    total_added: int
    """Number of samples that had been added to the buffer since it was created."""
    total_evicted: int
    """Number of samples that had been evicted or cleared since the buffer was created."""
    timestamp: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))
    """Time at which the snapshot was created."""

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: Any) -> Any:
        found: Any = self.packed[index]
        return list(map(unpack_sample, found)) if isinstance(index, slice) else unpack_sample(found)

    def __iter__(self) -> Iterator[Sample]:
        return map(unpack_sample, self.packed)

    @property
    def size(self) -> int:
        """Number of samples in the snapshot."""
        return len(self.packed)

    @property
    def numbers(self) -> np.ndarray:
        """Metadata of the samples, as a structured array of type `NUMBERS`."""
        return np.array([packed[2] for packed in self.packed], NUMBERS)

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Samples of the snapshot, oldest first."""
        return tuple(self)

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " size"]:
        """Number of tokens in each sample."""
        return np.ascontiguousarray(self.numbers["length"])

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Unique name of each sample: its id, or `id#serial` if an earlier sample has the same id."""
        names: dict[str, None] = {}
        for (_, text, _), serial in zip(self.packed, self.serials.tolist(), strict=True):
            name = _sample_id(text).decode("utf-8", "surrogatepass")
            while name in names:
                name = f"{name}#{serial}"
            names[name] = None
        return tuple(names)

    @cached_property
    def samples_by_id(self) -> dict[str, Sample]:
        """Samples of the snapshot, keyed by their names in `ids`."""
        return dict(zip(self.ids, self.samples, strict=True))

    def get_lengths(self) -> dict[str, int]:
        """Return the length of each sample in tokens, keyed by its name in `ids`."""
        return dict(zip(self.ids, self.lengths.tolist(), strict=True))

    def digest(self) -> str:
        """Return the SHA-256 of the ids, tokens and loss masks of all samples."""
        sha = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogatepass"))
        for stored, _, numbers in self.packed:
            tokens, mask = unpack_tokens(stored, numbers[4] * (1 + (numbers[11] & 1)))
            sha.update(len(tokens).to_bytes(4, "little"))
            sha.update((tokens.astype("<u4") | mask.astype("<u4") << np.uint32(31)).tobytes())
        return sha.hexdigest()


class ReplayBuffer:
    """A thread-safe buffer of at most `max_size` samples with prioritized sampling.

    Results are deterministic: the same additions and draws with the same seed give the same samples, even
    after `save` and `load`.
    """

    config_class: ClassVar[type[ReplayBufferConfig]] = ReplayBufferConfig

    def __init__(self, config: ReplayBufferConfig | None = None) -> None:
        self.config = config or self.config_class()
        self._lock = threading.RLock()
        self._numbers = np.zeros(0, NUMBERS)
        self._serials = np.zeros(0, np.int64)
        # Not `Sample` objects: a million of them would be two million objects for the garbage collector.
        self._tokens: list[bytes] = []
        self._texts: list[bytes] = []
        self._tree = SumTree(1)
        # Slots whose weight in the tree is outdated.
        self._outdated: list[int] = []
        # Entries (priority, serial, slot) for evictions by priority; outdated ones are skipped when popped.
        self._heap: list[tuple[float, int, int]] | None = None
        evictions, draws = np.random.SeedSequence(self.config.seed).spawn(2)
        self._eviction_rng = np.random.Generator(np.random.PCG64(evictions))
        self._draw_rng = np.random.Generator(np.random.PCG64(draws))
        self._next_slot = 0
        self._added = 0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def size(self) -> int:
        """Number of samples in the buffer."""
        return len(self._tokens)

    @property
    def is_full(self) -> bool:
        """True if the next addition evicts a sample."""
        return self.size == self.config.max_size

    @property
    def can_sample(self) -> bool:
        """True if the buffer has at least `min_samples_before_sampling` samples."""
        return self.size >= self.config.min_samples_before_sampling

    @property
    def total_added(self) -> int:
        """Number of samples that have been added since the buffer was created."""
        return self._added

    @property
    def total_evicted(self) -> int:
        """Number of samples that have been evicted or cleared since the buffer was created."""
        with self._lock:
            return self._added - self.size

    @property
    def total_tokens(self) -> int:
        """Total number of tokens in the buffer."""
        with self._lock:
            return int(self._numbers["length"][: self.size].sum(dtype=np.int64))

    @property
    def mean_difficulty(self) -> float:
        """Mean difficulty of the samples whose difficulty is known. 0 if there are none."""
        return self._mean("difficulty")

    @property
    def mean_reward(self) -> float:
        """Mean reward of the samples whose reward is known. 0 if there are none."""
        return self._mean("reward")

    @property
    def success_rate(self) -> float:
        """Fraction of successes among the samples whose outcome is known. 0 if there are none."""
        return self._mean("success")

    def add(self, sample: Sample, priority: float | None = None) -> None:
        """Add a sample. If the buffer is full, the sample that the eviction policy chooses is evicted.

        Args:
            sample: Sample to add.
            priority: Sampling priority. Defaults to `sample.info.priority`, or to 1 if the sample has no
                info.
        """
        if not isinstance(sample, Sample):
            raise TypeError(f"a replay buffer stores Sample objects, got {type(sample).__name__}")
        if priority is not None:
            sample = sample.replace_info(priority=priority)
        tokens, text, numbers = pack_sample(sample)
        with self._lock:
            if self.size < self.config.max_size:
                slot = self.size
                self._reserve(slot + 1)
                self._tokens.append(tokens)
                self._texts.append(text)
            else:
                slot = self._choose_slot()
                self._tokens[slot], self._texts[slot] = tokens, text
            self._numbers[slot] = numbers
            self._serials[slot] = self._added
            if self._heap is not None:
                heapq.heappush(self._heap, (numbers[3], self._added, slot))
            self._added += 1
            self._outdated.append(slot)

    def add_batch(self, samples: Sequence[Sample], priorities: Sequence[float] | None = None) -> None:
        """Add several samples in order.

        Args:
            samples: Samples to add.
            priorities: Sampling priority of each sample. If None, priorities are chosen as in `add`.
        """
        if priorities is not None and len(priorities) != len(samples):
            raise ValueError(f"got {len(samples)} samples but {len(priorities)} priorities")
        for index, sample in enumerate(samples):
            self.add(sample, None if priorities is None else priorities[index])

    def sample(self, n: int, **conditions: Any) -> list[Sample]:
        """Draw `n` samples with replacement, with probabilities proportional to `priority ** priority_alpha`.

        Only samples that satisfy `conditions` (fields of `SampleFilter`) are drawn. The result is empty if no
        sample matches or `can_sample` is false. The `origin` of returned samples is `REPLAY`, and their
        `replay_count` is incremented.
        """
        return self.draw(n, SampleFilter(**conditions), 0.0).samples

    def draw(self, n: int, matching: SampleFilter | None = None, beta: float | None = None) -> ReplayDraw:
        """Draw samples like `sample`, and also return importance weights and handles for `update_priorities`.

        Args:
            n: Number of samples to draw.
            matching: Conditions that drawn samples must satisfy. If None, all samples may be drawn.
            beta: Exponent of the importance weights. Defaults to `priority_beta` in the config.
        """
        _check_count(n)
        condition = matching or SampleFilter()
        beta = self.config.priority_beta if beta is None else beta

        def allowed(slots: np.ndarray | slice) -> Bool[np.ndarray, " count"]:
            return condition.matches(self._numbers[slots])

        with self._lock:
            self._update_tree()
            slots = np.zeros(0, np.int64)
            if self.can_sample:
                mask = None if condition == SampleFilter() else allowed
                slots = draw_slots(self._draw_rng, n, self._tree, self.size, mask)
            weights = self._tree.get(slots)
            if len(slots):
                # Size and total weight are the same for all samples and cancel out.
                weights = (weights / weights.min()) ** -beta
            handles = SampleHandles(slots, self._serials[slots])
            return ReplayDraw(self._replay(slots), weights, handles)

    def sample_uniform(self, n: int) -> list[Sample]:
        """Draw `n` samples uniformly without replacement, or all samples if there are fewer than `n`."""
        _check_count(n)
        with self._lock:
            if not self.can_sample:
                return []
            return self._replay(self._draw_rng.choice(self.size, min(n, self.size), replace=False))

    def update_priorities(self, handles: SampleHandles, priorities: Float64[np.ndarray, " count"]) -> int:
        """Set the priorities of drawn samples. Samples that were evicted after they were drawn are ignored.

        Returns:
            The number of priorities that were set.
        """
        values = np.asarray(priorities, np.float64)
        if len(values) != len(handles.slots):
            raise ValueError(f"got {len(handles.slots)} handles but {len(values)} priorities")
        if len(values) and not (np.isfinite(values).all() and values.min() >= 0.0):
            raise ValueError("priorities must be finite and at least 0")
        with self._lock:
            inside = handles.slots < self.size
            slots = handles.slots[inside]
            current = self._serials[slots] == handles.serials[inside]
            self._set_priorities(slots[current], values[inside][current])
            return int(current.sum())

    def update_priority(self, sample_id: str, priority: float) -> bool:
        """Set the priority of every sample with this id. Return whether there is such a sample."""
        name = sample_id.encode("utf-8", "surrogatepass")
        with self._lock:
            found = [slot for slot, text in enumerate(self._texts) if _sample_id(text) == name]
            slots = np.array(found, np.int64)
            handles = SampleHandles(slots, self._serials[slots])
            return self.update_priorities(handles, np.full(len(slots), priority, np.float64)) > 0

    def update_priorities_by_reward(self, alpha: float = 0.1) -> None:
        """Move the priority of every sample with a known reward toward a target that depends on the reward.

        The new priority is `(1 - alpha) * priority + alpha * max(reward + 1, 0)`.
        """
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        with self._lock:
            numbers = self._numbers[: self.size]
            slots = np.flatnonzero(~np.isnan(numbers["reward"]))
            target = np.maximum(numbers["reward"][slots] + 1.0, 0.0)
            self._set_priorities(slots, (1.0 - alpha) * numbers["priority"][slots] + alpha * target)

    def snapshot(self, since: int = 0, until: int | None = None, count: int | None = None) -> BufferSnapshot:
        """Return the current samples, oldest first.

        Args:
            since: Only include samples whose serial number is at least `since`.
            until: Only include samples whose serial number is less than `until`. None means no limit.
            count: Maximum number of samples to return. If there are more, the oldest ones are returned. None
                means no limit.
        """
        with self._lock:
            serials = self._serials[: self.size]
            order = np.argsort(serials, kind="stable")
            first = int(np.searchsorted(serials[order], since))
            last = self.size if until is None else int(np.searchsorted(serials[order], until))
            slots = order[first : max(first, last if count is None else min(last, first + count))]
            return BufferSnapshot(
                self._compact_samples(slots), serials[slots].copy(), self._added, self._added - self.size
            )

    def count_since(self, since: int) -> int:
        """Return the number of samples in the buffer whose serial number is at least `since`."""
        with self._lock:
            return int(np.count_nonzero(self._serials[: self.size] >= since))

    def get_all(self) -> list[Sample]:
        """Return all samples, oldest first."""
        return list(self.snapshot())

    def filter(self, predicate: SampleFilter | Callable[[Sample], bool]) -> list[Sample]:
        """Return the samples that match a filter or for which a function returns True, oldest first."""
        snapshot = self.snapshot()
        if isinstance(predicate, SampleFilter):
            return [snapshot[index] for index in np.flatnonzero(predicate.matches(snapshot.numbers)).tolist()]
        return [sample for sample in snapshot if predicate(sample)]

    def clear(self) -> None:
        """Remove all samples. They count as evicted."""
        with self._lock:
            self._tokens.clear()
            self._texts.clear()
            self._tree = SumTree(len(self._numbers))
            self._outdated.clear()
            self._heap = None
            self._next_slot = 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the samples, counters and random generator states to a file atomically."""
        with self._lock:
            header = {
                "buffer": {
                    "config": self.config.model_dump(mode="json"),
                    "total_added": self._added,
                    "next_slot": self._next_slot,
                    "eviction_rng": self._eviction_rng.bit_generator.state,
                    "draw_rng": self._draw_rng.bit_generator.state,
                }
            }
            # By slot, so that draws and evictions continue as if nothing had happened.
            slots = np.arange(self.size)
            save_packed_samples(path, self._compact_samples(slots), header, self._serials[: self.size])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ReplayBuffer":
        """Load a buffer from a file that `save` wrote."""
        packed, header, serials = load_packed_samples(path)
        if "buffer" not in header:
            raise CorruptFileError(f"{path} has samples but no replay buffer; read it with load_samples")
        state = header["buffer"]
        buffer = cls(cls.config_class(**state["config"]))
        if len(packed) > buffer.config.max_size:
            raise CorruptFileError(f"{path} is corrupt: it has more than {buffer.config.max_size} samples")
        buffer._reserve(len(packed))
        buffer._tokens = [tokens for tokens, _, _ in packed]
        buffer._texts = [text for _, text, _ in packed]
        buffer._numbers[: len(packed)] = np.array([numbers for _, _, numbers in packed], NUMBERS)
        buffer._serials[: len(packed)] = serials
        buffer._outdated = list(range(len(packed)))
        buffer._added, buffer._next_slot = state["total_added"], state["next_slot"]
        buffer._eviction_rng.bit_generator.state = state["eviction_rng"]
        buffer._draw_rng.bit_generator.state = state["draw_rng"]
        return buffer

    def _reserve(self, size: int) -> None:
        if size > len(self._numbers):
            capacity = min(max(2 * len(self._numbers), size, 1024), self.config.max_size)
            self._numbers = np.concatenate([self._numbers, np.zeros(capacity - len(self._numbers), NUMBERS)])
            self._serials = np.concatenate([self._serials, np.zeros(capacity - len(self._serials), np.int64)])
            self._tree.grow(capacity)

    def _choose_slot(self) -> int:
        """Choose the sample to evict, and return its slot."""
        match self.config.eviction_policy:
            case EvictionPolicy.FIFO:
                slot = self._next_slot
                self._next_slot = (slot + 1) % self.size
                return slot
            case EvictionPolicy.RANDOM:
                return int(self._eviction_rng.integers(0, self.size))
            case EvictionPolicy.PRIORITY:
                return self._lowest_priority()

    def _lowest_priority(self) -> int:
        if self._heap is None or len(self._heap) > 2 * self.size + 1024:
            priorities, serials = self._numbers["priority"][: self.size].tolist(), self._serials.tolist()
            self._heap = [(p, serials[slot], slot) for slot, p in enumerate(priorities)]
            heapq.heapify(self._heap)
        while True:
            priority, serial, slot = heapq.heappop(self._heap)
            if self._serials[slot] == serial and self._numbers[slot]["priority"] == priority:
                return slot

    def _set_priorities(
        self, slots: Int64[np.ndarray, " count"], priorities: Float64[np.ndarray, " count"]
    ) -> None:
        self._numbers["priority"][slots] = priorities
        self._outdated += slots.tolist()
        if self._heap is not None:
            for slot in slots.tolist():
                entry = (float(self._numbers[slot]["priority"]), int(self._serials[slot]), slot)
                heapq.heappush(self._heap, entry)

    def _update_tree(self) -> None:
        if self._outdated:
            slots = np.array(self._outdated, np.int64)
            self._tree.set(slots, self._numbers["priority"][slots] ** self.config.priority_alpha)
            self._outdated.clear()

    def _mean(self, name: str) -> float:
        with self._lock:
            values = self._numbers[name][: self.size].astype(np.float64)
        # Unknown outcomes are -1, and other unknown values are NaN.
        return exact_mean(values[values >= 0] if name == "success" else values)

    def _replay(self, slots: Int64[np.ndarray, " count"]) -> list[Sample]:
        np.add.at(self._numbers["replay_count"], slots, 1)
        return list(
            map(unpack_sample, self._compact_samples(slots, origin=ORIGIN_CODES[SampleOrigin.REPLAY]))
        )

    def _compact_samples(self, slots: Int64[np.ndarray, " count"], **changes: int) -> list[CompactSample]:
        numbers = self._numbers[slots]
        for name, value in changes.items():
            numbers[name] = value
        return [
            (self._tokens[slot], self._texts[slot], values)
            for slot, values in zip(slots.tolist(), numbers.tolist(), strict=True)
        ]


def _check_count(n: int) -> None:
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")


def _sample_id(text: bytes) -> bytes:
    return text.partition(b"\0")[0]


def exact_mean(values: Float64[np.ndarray, " count"]) -> float:
    """Return the mean of the values that are not NaN. Return 0 if there are none.

    The result does not depend on the order of the values.
    """
    known = values[~np.isnan(values)]
    # Scaled down before the exact sum, so that the sum of large numbers does not overflow.
    return math.fsum((known / _SUM_SCALE).tolist()) / len(known) * _SUM_SCALE if len(known) else 0.0
