"""The replay buffer: a bounded store of samples that hands them out again, in proportion to their priority.

Samples are kept in arrays (`rows`), not in objects; files are in `files`, and plans over a buffer's samples
in `phalanx.data.replay_planner`.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import call
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from phalanx.data.moved import HasMoved
from phalanx.data.replay.config import EvictionPolicy, ReplayBufferConfig, SampleFilter
from phalanx.data.replay.rows import BufferSnapshot, PackedColumns, SampleRows, Slots
from phalanx.data.replay.stats import ReplayStats, replay_stats
from phalanx.data.sample_bytes import RECORD, PackedSample
from phalanx.data.samples import SampleSource, StreamSample, source_code
from phalanx.data.sum_tree import (
    Handles,
    Placement,
    ReplayDraw,
    SumTree,
    draw_slots,
    draw_uniform,
    place_by_priority,
    place_in_turn,
    place_randomly,
)

_STAGED = 4096
"""Additions that wait to be stored together; every question is answered as if they were."""


class ReplayBuffer(HasMoved):
    """Holds at most `max_size` samples. Safe to use from many threads and tasks.

    The same additions and draws with the same seed give the same samples, also after `save` and `load`.
    """

    moved: ClassVar = {"to_dict": "save(path)", "from_dict": "ReplayBuffer.load(path)"}

    def __init__(self, config: ReplayBufferConfig | None = None) -> None:
        self.config = config or ReplayBufferConfig()
        self._lock = threading.RLock()
        self._rows = SampleRows()
        self._tree = SumTree(1)
        evictions, draws = np.random.SeedSequence(self.config.seed).spawn(2)
        self._eviction_rng = np.random.Generator(np.random.PCG64(evictions))
        self._draw_rng = np.random.Generator(np.random.PCG64(draws))
        self._staged: deque[PackedSample] = deque()
        self._size = 0
        self._turn = 0
        self._added = 0

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """Samples that it holds."""
        with self._lock:
            return min(self._size + len(self._staged), self.config.max_size)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing."""
        return self.size == 0

    @property
    def is_full(self) -> bool:
        """Whether the next addition makes another sample go."""
        return self.size == self.config.max_size

    @property
    def can_sample(self) -> bool:
        """Whether it holds enough to hand some out."""
        return self.size >= self.config.min_samples_before_sampling

    @property
    def total_added(self) -> int:
        """Samples that were ever added."""
        with self._lock:
            return self._added + len(self._staged)

    @property
    def total_evicted(self) -> int:
        """Samples that were added and are no longer held."""
        with self._lock:
            return self.total_added - self.size

    @property
    def total_tokens(self) -> int:
        """Tokens of the samples that it holds."""
        return self.stats().total_tokens

    @property
    def mean_difficulty(self) -> float:
        """Mean over the samples whose difficulty is known; 0 without any."""
        if not self.config.track_difficulty:
            raise ValueError("difficulty is not tracked; set track_difficulty=True")
        return self.stats().mean_difficulty

    @property
    def mean_reward(self) -> float:
        """Mean over the samples whose reward is known; 0 without any."""
        return self.stats().mean_reward

    @property
    def success_rate(self) -> float:
        """Part that succeeded of the samples whose outcome is known; 0 without any."""
        if not self.config.track_success:
            raise ValueError("success is not tracked; set track_success=True")
        return self.stats().success_rate

    @property
    def memory_bytes(self) -> int:
        """Memory that samples, priorities and their index take."""
        with self._stored():
            return self._rows.nbytes + self._tree.nbytes

    def stats(self) -> ReplayStats:
        """All figures at one moment; counted when asked for, so that adding does not pay for them."""
        with self._stored():
            columns = {name: self._rows.columns[name][: self._size] for name in _COUNTED}
            memory = self._rows.nbytes + self._tree.nbytes
            tracked = self.config.track_difficulty, self.config.track_success
            return replay_stats(columns, self._added, memory, *tracked)

    def add(self, sample: StreamSample, priority: float | None = None) -> None:
        """Add a sample, with its own priority or another one; a full buffer gives one up for it."""
        if type(sample) is not StreamSample:
            raise TypeError(f"a replay buffer holds StreamSample, got {type(sample).__name__}")
        if priority is not None:
            sample = sample.replace(priority=priority)
        # Without the lock: a deque takes and gives one item at a time, whatever the threads do.
        staged = self._staged
        staged.append(sample.packed)
        if len(staged) >= _STAGED:
            with self._lock:
                self._store()

    def add_batch(self, samples: Sequence[StreamSample], priorities: Sequence[float] | None = None) -> None:
        """Add many, in order."""
        if priorities is not None and len(priorities) != len(samples):
            raise ValueError(f"{len(samples)} samples but {len(priorities)} priorities")
        for row, sample in enumerate(samples):
            self.add(sample, None if priorities is None else priorities[row])

    def sample(
        self,
        n: int,
        *,
        min_difficulty: float | None = None,
        max_difficulty: float | None = None,
        success: bool | None = None,
        source: SampleSource | None = None,
        max_length: int | None = None,
    ) -> list[StreamSample]:
        """`n` samples, each drawn by itself (so some may come twice) in proportion to priority ** alpha.

        Only those are drawn that fit the bounds. Nothing is handed out where none fits or `can_sample` is
        not reached yet. Samples come as replays: see `StreamSample.with_replay`.
        """
        wanted = SampleFilter(min_difficulty, max_difficulty, success, source, max_length)
        return self._draw(n, wanted, 0.0).samples

    def draw(self, n: int, wanted: SampleFilter | None = None, beta: float | None = None) -> ReplayDraw:
        """`sample` with importance weights, and handles for `update_priorities`."""
        return self._draw(n, wanted or SampleFilter(), self.config.priority_beta if beta is None else beta)

    def sample_uniform(self, n: int) -> list[StreamSample]:
        """`n` different samples (all of them if there are fewer), all alike to be drawn."""
        _require_count(n)
        with self._stored():
            if not self.can_sample:
                return []
            return self._hand_out(draw_uniform(self._draw_rng, n, self._size))

    def update_priorities(self, handles: Handles, priorities: Float64[np.ndarray, " count"]) -> int:
        """Give samples that were drawn new priorities; how many were still held. The last of two counts."""
        values = np.asarray(priorities, np.float64)
        if len(values) != len(handles.slots):
            raise ValueError(f"{len(handles.slots)} handles but {len(values)} priorities")
        if len(values) and not (np.isfinite(values).all() and values.min() >= 0.0):
            raise ValueError("priorities must be finite and at least 0")
        with self._stored():
            inside = handles.slots < self._size
            slots = handles.slots[inside]
            held = self._rows.columns["serial"][slots] == handles.serials[inside]
            self._set_priorities(slots[held], values[inside][held])
            return int(held.sum())

    def update_priority(self, sample_id: str, priority: float) -> bool:
        """Give every sample of this id a new priority; whether there was one."""
        with self._stored():
            slots = self._rows.find_id(sample_id, self._size)
            handles = Handles(slots, self._rows.columns["serial"][slots])
            return self.update_priorities(handles, np.full(len(slots), priority, np.float64)) > 0

    def update_priorities_by_reward(self, alpha: float = 0.1) -> None:
        """Move the priority of every sample with a reward by `alpha` towards its reward + 1, at least 0."""
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
        with self._stored():
            slots = np.flatnonzero(~np.isnan(self._rows.columns["reward"][: self._size]))
            goal = np.maximum(self._rows.columns["reward"][slots] + 1.0, 0.0)
            old = self._rows.columns["priority"][slots]
            self._set_priorities(slots, (1.0 - alpha) * old + alpha * goal)

    def snapshot(self, since: int = 0, until: int | None = None, count: int | None = None) -> BufferSnapshot:
        """What it holds now, oldest first; later changes do not touch it.

        Of the samples that were addition number `since` or later and before `until`, the first `count`.
        """
        with self._stored():
            serials = self._serials_in_order()
            first = int(np.searchsorted(serials, since))
            last = self._size if until is None else int(np.searchsorted(serials, until))
            last = max(first, last if count is None else min(last, first + count))
            view = self._rows.view(self._slots_in_order(first, last))
            return BufferSnapshot(view, self._added, self._added - self._size)

    def count_since(self, since: int) -> int:
        """How many samples it holds that were addition number `since` or later."""
        with self._stored():
            return int(np.count_nonzero(self._rows.columns["serial"][: self._size] >= since))

    def get_all(self) -> list[StreamSample]:
        """All samples, oldest first, as they were added."""
        return self.snapshot().view.samples()

    def filter(self, predicate: SampleFilter | Callable[[StreamSample], bool]) -> list[StreamSample]:
        """The samples, oldest first, that fit or that a function, which sees every one, says yes to."""
        view = self.snapshot().view
        if isinstance(predicate, SampleFilter):
            return view.select(np.flatnonzero(predicate.fits(view.columns, slice(None)))).samples()
        return [sample for sample in view.samples() if predicate(sample)]

    def filter_by_difficulty(
        self, min_difficulty: float = 0.0, max_difficulty: float = 1.0
    ) -> list[StreamSample]:
        """The samples, oldest first, whose difficulty lies within the bounds."""
        return self.filter(SampleFilter(min_difficulty=min_difficulty, max_difficulty=max_difficulty))

    def filter_by_success(self, success: bool) -> list[StreamSample]:
        """The samples, oldest first, of episodes that succeeded or did not."""
        return self.filter(SampleFilter(success=success))

    def filter_by_source(self, source: SampleSource) -> list[StreamSample]:
        """The samples, oldest first, of one source."""
        return self.filter(SampleFilter(source=source))

    def clear(self) -> None:
        """Give up every sample; they count as evicted."""
        with self._stored():
            self._rows.clear()
            self._tree.clear()
            self._size = self._turn = 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the buffer, its counts and the state of its draws to a file, whole or not at all."""
        from phalanx.data.replay.files import save_buffer

        with self._stored():
            save_buffer(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ReplayBuffer":
        """The buffer that `save` wrote; a ValueError says what is wrong with the file."""
        from phalanx.data.replay.files import load_buffer

        return load_buffer(path)

    @contextlib.contextmanager
    def _stored(self) -> Iterator[None]:
        """The lock, held with nothing staged."""
        with self._lock:
            if self._staged:
                self._store()
            yield

    def _draw(self, n: int, wanted: SampleFilter, beta: float) -> ReplayDraw:
        _require_count(n)
        with self._stored():
            slots = np.zeros(0, np.int64)
            if self.can_sample:
                slots = draw_slots(self._draw_rng, n, self._tree, self._rows.columns, self._size, wanted)
            weights = self._tree.get(slots)
            if len(slots):
                # The size and the sum of all weights are the same for every sample, and fall out.
                weights = (weights / weights.min()) ** -beta
            handles = Handles(slots, self._rows.columns["serial"][slots])
            return ReplayDraw(self._hand_out(slots), weights, handles)

    def _hand_out(self, slots: Int64[np.ndarray, " count"]) -> list[StreamSample]:
        np.add.at(self._rows.columns["replay_count"], slots, 1)
        view = self._rows.view(slots)
        view.columns["source"] = np.full(len(slots), source_code(SampleSource.REPLAY), np.uint8)
        return view.samples()

    def _serials_in_order(self) -> Int64[np.ndarray, " size"]:
        if self.config.eviction_policy is EvictionPolicy.FIFO:
            return np.arange(self._added - self._size, self._added, dtype=np.int64)
        return np.sort(self._rows.columns["serial"][: self._size])

    def _slots_in_order(self, first: int, last: int) -> Slots:
        """From the `first` oldest on, up to the `last`."""
        if self.config.eviction_policy is EvictionPolicy.FIFO:
            start, stop = self._turn + first, self._turn + last
            if stop <= self._size or start >= self._size:
                around = self._size if start >= self._size else 0
                return slice(start - around, stop - around)
            return np.arange(start, stop) % self._size
        return np.argsort(self._rows.columns["serial"][: self._size], kind="stable")[first:last]

    def _adopt(self, rows: SampleRows, total_added: int, turn: int) -> None:
        """Take over the slots of a file."""
        self._rows, self._size, self._added, self._turn = rows, rows.capacity, total_added, turn
        self._tree.grow(max(self._size, 1))
        slots = np.arange(self._size, dtype=np.int64)
        self._set_priorities(slots, rows.columns["priority"])

    def _set_priorities(
        self, slots: Int64[np.ndarray, " count"], priorities: Float64[np.ndarray, " count"]
    ) -> None:
        self._rows.columns["priority"][slots] = priorities
        # Read back, so that of a slot that is named twice both keep the same one.
        self._tree.set(slots, self._rows.columns["priority"][slots] ** self.config.priority_alpha)

    def _store(self) -> None:
        """Put the staged samples where they belong."""
        staged = list(map(call, repeat(self._staged.popleft, len(self._staged))))
        first = 0
        while first < len(staged):
            room = self.config.max_size - self._size
            last = min(len(staged), first + (room or self.config.max_size))
            self._store_some(PackedColumns.of(staged[first:last]))
            first = last

    def _store_some(self, samples: PackedColumns) -> None:
        """Samples that all find room, or of which each makes another go."""
        records = np.frombuffer(b"".join(samples.records), RECORD)
        count = len(records)
        serials = np.arange(self._added, self._added + count, dtype=np.int64)
        self._added += count
        if self._size < self.config.max_size:
            slots = np.arange(self._size, self._size + count, dtype=np.int64)
            self._make_room(self._size + count)
            self._size += count
        else:
            placed = self._place(records, serials)
            slots, rows = placed.slots, placed.rows
            self._rows.release(slots)
            records, serials = records[rows], serials[rows]
            if not np.array_equal(rows, np.arange(count)):
                samples = samples.select(rows.tolist())
        self._rows.write(slots, serials, records, samples)
        self._rows.compact(self._size)
        self._tree.set(slots, records["priority"] ** self.config.priority_alpha)

    def _place(self, records: np.ndarray, serials: Int64[np.ndarray, " count"]) -> Placement:
        match self.config.eviction_policy:
            case EvictionPolicy.FIFO:
                self._turn, placed = place_in_turn(self._turn, len(records), self._size)
                return placed
            case EvictionPolicy.RANDOM:
                return place_randomly(self._eviction_rng, len(records), self._size)
            case EvictionPolicy.PRIORITY:
                held = {name: self._rows.columns[name][: self._size] for name in ("priority", "serial")}
                return place_by_priority(
                    held["priority"], held["serial"], np.ascontiguousarray(records["priority"]), serials
                )

    def _make_room(self, size: int) -> None:
        if size > self._rows.capacity:
            capacity = min(max(2 * self._rows.capacity, size, 1024), self.config.max_size)
            self._rows.grow(capacity)
            self._tree.grow(capacity)


_COUNTED = ("length", "difficulty", "reward", "success")


def _require_count(n: int) -> None:
    if n < 0:
        raise ValueError(f"cannot draw {n} samples")
