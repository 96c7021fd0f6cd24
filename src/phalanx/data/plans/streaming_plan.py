"""The live plan: pools of samples drawn by tokens, packed one after another, dealt to ranks step by step.

What is drawn from is in `sources`, in which parts in `mixture`; plans made beforehand are in `plans`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int16, Int32, Int64
from pydantic import Field, ValidationError

from phalanx.config import FrozenModel, format_validation_error
from phalanx.data.packed_batch import PackedBatch, pack_tokens
from phalanx.data.packing import PackLayout, pack_lengths
from phalanx.data.packing_config import OverlongPolicy, PackingConfig
from phalanx.data.plans.arrays import batch_offsets, ragged_take
from phalanx.data.plans.epoch import epoch_seed, random_order
from phalanx.data.plans.mixture import Mixture
from phalanx.data.plans.stream_sources import StreamSource

_READ_AT_ONCE = 1024


class StreamingState(FrozenModel):
    """Where a live plan stands: at which place of each source the current pool began, and how far it is."""

    settings: str
    """Names config, mixture and sources; another plan's state is refused."""
    pool: int = 0
    """Number of the current pool."""
    pack: int = 0
    """Packs of it that were handed out."""
    step: int = 0
    """Steps in all."""
    places: dict[str, int]
    """Where in each source the pool begins."""
    tokens: dict[str, int]
    """Tokens of each source before it."""
    wanted: dict[str, float]
    """What the mixture asked for so far."""
    skipped: dict[str, int]
    """Samples of each source that were too long."""
    ended: tuple[str, ...] = ()
    """Sources that have nothing left."""


class StreamingPlanConfig(FrozenModel):
    """The settings of a live plan."""

    packing: PackingConfig = PackingConfig()
    """How samples are packed, and what becomes of overlong ones: an error, skipped, or truncated."""
    rows: int = Field(default=8, ge=1)
    """Packs in a batch, on each rank."""
    pool_packs: int = Field(default=1024, ge=1)
    """Packs' worth of tokens that are drawn and packed together: what is held in memory."""
    balance: bool = False
    """Deal the packs of a step so that ranks work about equally long: on attention, or, with a
    `model_width`, on all."""
    model_width: int | None = Field(default=None, ge=1)
    """The hidden size of the transformer whose FLOPs are balanced; None: attention alone."""
    seed: int = Field(default=42, ge=0)
    """Decides the order of packs in each pool."""


@dataclasses.dataclass(frozen=True, eq=False)
class LiveBatch:
    """One rank's packs in one step, as arrays."""

    step: int
    sources: Int16[np.ndarray, " samples"]
    """The source of each sample, by its number."""
    places: Int64[np.ndarray, " samples"]
    """Its place in that source."""
    lengths: Int32[np.ndarray, " samples"]
    """Its length as packed."""
    offsets: Int64[np.ndarray, " packs_and_one"]
    """Where each pack begins among the samples, and the end."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    """The packs of one pool, in the order in which they are handed out, and the state behind it."""

    sources: Int16[np.ndarray, " samples"]
    places: Int64[np.ndarray, " samples"]
    lengths: Int32[np.ndarray, " samples"]
    offsets: Int64[np.ndarray, " packs_and_one"]
    after: StreamingState

    def __len__(self) -> int:
        return len(self.offsets) - 1


class StreamingPlan:
    """Batches without end, or until every source has ended, that can be resumed on any number of ranks.

    Each pool takes `pool_packs` packs' worth of tokens from the sources, as the mixture says, packs them and
    shuffles the packs. Step after step each of `world_size` ranks takes the next `rows` packs. Every rank
    plans the same, and holds one pool; what was handed out is told by a state of a few numbers.
    """

    def __init__(
        self,
        sources: Mapping[str, StreamSource],
        config: StreamingPlanConfig | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        if not sources:
            raise ValueError("a live plan needs a source")
        self.sources, self.config = dict(sources), config or StreamingPlanConfig()
        self.mixture = mixture or Mixture()
        self.mixture.check(self.sources)
        packing = self.config.packing
        if packing.add_separator or packing.overlong is OverlongPolicy.SPLIT:
            raise ValueError("a live plan packs whole samples without separators")
        self._names = list(self.sources)
        # Settings that came later are told where they are used, so that older states stay good.
        unused = {"model_width"} if self.config.model_width is None else set()
        told = [
            self.config.model_dump(mode="json", exclude=unused),
            self.mixture.model_dump(mode="json"),
            self._names,
        ]
        settings = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        zeros = dict.fromkeys(self._names, 0)
        self.state = StreamingState(
            settings=settings,
            places=zeros,
            tokens=zeros,
            wanted=dict.fromkeys(self._names, 0.0),
            skipped=zeros,
        )
        self._pool: _Pool | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, as plain values: small enough to print, the same on every rank."""
        return self.state.model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with any number of ranks."""
        try:
            told = StreamingState.model_validate(dict(state))
        except ValidationError as error:
            raise ValueError(
                f"not the state of a live plan: {format_validation_error(error, StreamingState)}"
            ) from error
        if told.settings != self.state.settings:
            raise ValueError(
                f"the state is of a plan {told.settings}, with other settings, mixture or sources than this "
                f"one ({self.state.settings})"
            )
        self.state, self._pool = told, None

    def next_batch(self, rank: int = 0, world_size: int = 1) -> LiveBatch | None:
        """The packs of one rank in the next step; None once every source has ended.

        Every rank takes the step, with its own number. In the last step of a plan that ends, ranks share what
        is left; where that is less than a pack each, some packs are handed out twice.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to {world_size - 1}, got {rank}")
        wanted = self.config.rows * world_size
        taken: list[tuple[_Pool, range]] = []
        step = self.state.step
        while wanted and (pool := self._current()) is not None:
            packs = range(self.state.pack, min(self.state.pack + wanted, len(pool)))
            taken.append((pool, packs))
            wanted -= len(packs)
            self.state = self.state.model_copy(update={"pack": self.state.pack + len(packs)})
        if not taken:
            return None
        self.state = self.state.model_copy(update={"step": step + 1})
        return self._dealt(step, _joined(taken), rank, world_size)

    def batches(self, rank: int = 0, world_size: int = 1) -> Iterator[LiveBatch]:
        """`next_batch` after `next_batch`; `state_dict` counts those that were handed out."""
        while (batch := self.next_batch(rank, world_size)) is not None:
            yield batch

    def collate(self, batch: LiveBatch, pad_id: int = 0) -> PackedBatch:
        """The tokens of a batch, from the sources; ask before the next batch, while they are held."""
        found: list[Any] = [None] * len(batch.places)
        for number, name in enumerate(self._names):
            here = np.flatnonzero(batch.sources == number)
            if len(here):
                samples = self.sources[name].samples(batch.places[here])
                for place, sample in zip(here.tolist(), samples, strict=True):
                    found[place] = sample
        ids, masks = zip(*map(_tokens, found, batch.lengths.tolist()), strict=True)
        count = len(found)
        layout = PackLayout(
            config=self.config.packing,
            samples=np.arange(count, dtype=np.int32),
            starts=np.zeros(count, np.int32),
            lengths=batch.lengths,
            offsets=batch.offsets,
            skipped=np.zeros(0, np.int32),
        )
        return pack_tokens(
            np.concatenate(ids),
            batch_offsets(batch.lengths.astype(np.int64)),
            self.config.packing,
            loss_mask=np.concatenate(masks),
            pad_token_id=pad_id,
            layout=layout,
        )

    def _current(self) -> _Pool | None:
        """The pool of which packs are left; the next one where none are."""
        while True:
            if self._pool is None:
                self._pool = self._draw(self.state)
            if self.state.pack < len(self._pool):
                return self._pool
            if len(self.state.ended) == len(self._names):
                return None
            # The pool's samples may still be collated: only those before it are let go.
            for name, place in self.state.places.items():
                self.sources[name].forget(place)
            self.state = self._pool.after.model_copy(update={"step": self.state.step})
            self._pool = None

    def _draw(self, state: StreamingState) -> _Pool:
        """Draw a pool's tokens from the sources, and pack them."""
        packing = self.config.packing
        budget = self.config.pool_packs * packing.max_length
        done = sum(state.tokens.values())
        # In the middle of the pool, where a weight that changes evenly has its mean.
        parts = self.mixture.at(done + budget // 2, self._names)
        alive = np.array([name not in state.ended for name in self._names]) & (parts > 0)
        if not alive.any():
            alive = np.array([name not in state.ended for name in self._names])
            parts = np.ones(len(self._names))
        parts = parts * alive / max(float((parts * alive).sum()), 1e-300)
        update: dict[str, dict[str, Any]] = {
            name: dict(getattr(state, name)) for name in ("places", "tokens", "wanted", "skipped")
        }
        ended = list(state.ended)
        drawn: list[tuple[int, Int64[np.ndarray, " n"], Int32[np.ndarray, " n"]]] = []
        for number, name in enumerate(self._names):
            if not alive[number]:
                continue
            update["wanted"][name] += float(parts[number]) * budget
            owed = update["wanted"][name] - update["tokens"][name]
            places, lengths, read, over = self._read(name, update["places"][name], owed, ended)
            update["places"][name] += read
            update["tokens"][name] += int(lengths.sum(dtype=np.int64))
            update["skipped"][name] += over
            drawn.append((number, places, lengths))
            if name in ended:
                # What it still owes is not asked of it again, nor held against the others.
                update["wanted"][name] = float(update["tokens"][name])
        after = state.model_copy(update={**update, "pool": state.pool + 1, "pack": 0, "ended": tuple(ended)})
        return self._packed(drawn, state.pool, after)

    def _read(
        self, name: str, start: int, owed: float, ended: list[str]
    ) -> tuple[Int64[np.ndarray, " n"], Int32[np.ndarray, " n"], int, int]:
        """Samples until what is owed is paid: places, lengths, how many were read, how many were too long."""
        source, packing = self.sources[name], self.config.packing
        found = [np.zeros(0, np.int32)]
        total, read = 0, 0
        while total < owed:
            mean = max(total / read, 1.0) if read else packing.max_length / 8
            count = max(64, min(int((owed - total) / mean) + 1, 64 * _READ_AT_ONCE))
            lengths = source.lengths(start + read, count)
            fitting = self._fitted(name, lengths, start + read)
            sums = np.cumsum(fitting, dtype=np.int64)
            enough = int(np.searchsorted(sums, owed - total)) + 1
            if enough < len(lengths):
                lengths = fitting = fitting[:enough]
                found.append(fitting)
                read += enough
                break
            found.append(fitting)
            total += int(sums[-1]) if len(sums) else 0
            read += len(lengths)
            if len(lengths) < count:
                ended.append(name)
                break
        joined = np.concatenate(found)
        kept: Bool[np.ndarray, " n"] = joined > 0
        return start + np.flatnonzero(kept), joined[kept], read, int(len(joined) - kept.sum())

    def _fitted(self, name: str, lengths: Int32[np.ndarray, " n"], start: int) -> Int32[np.ndarray, " n"]:
        """Lengths as packed: 0 for those that are skipped."""
        packing = self.config.packing
        long = lengths > packing.max_length
        if not long.any():
            return lengths
        if packing.overlong is OverlongPolicy.TRUNCATE:
            return np.minimum(lengths, np.int32(packing.max_length))
        if packing.overlong is OverlongPolicy.SKIP:
            return np.where(long, np.int32(0), lengths)
        place = int(np.argmax(long))
        raise ValueError(
            f"sample {start + place} of {name!r} has {lengths[place]} tokens, more than a pack's max_length "
            f"{packing.max_length}; choose overlong='skip' or 'truncate', or raise max_length"
        )

    def _packed(
        self, drawn: list[tuple[int, np.ndarray, np.ndarray]], pool: int, after: StreamingState
    ) -> _Pool:
        sources = np.repeat(
            np.array([n for n, _, _ in drawn], np.int16), np.array([len(p) for _, p, _ in drawn], np.int64)
        )
        places = np.concatenate([np.zeros(0, np.int64), *(p for _, p, _ in drawn)])
        lengths = np.concatenate([np.zeros(0, np.int32), *(x for _, _, x in drawn)])
        bins = pack_lengths(lengths, self.config.packing.max_length, self.config.packing.mode)
        by_bin = np.argsort(bins, kind="stable")
        offsets = batch_offsets(np.bincount(bins))
        order = random_order(len(offsets) - 1, np.random.PCG64(epoch_seed(self.config.seed, pool)))
        members, starts = ragged_take(offsets, order)
        chosen = by_bin[members]
        return _Pool(sources[chosen], places[chosen], lengths[chosen], starts, after)

    def _dealt(self, step: int, packs: _Pool, rank: int, world_size: int) -> LiveBatch:
        order = np.arange(len(packs))
        if self.config.balance:
            order = _balanced(pack_costs(packs.lengths, packs.offsets, self.config.model_width), world_size)
        if len(order) < world_size:
            order = np.resize(order, world_size)
        members, offsets = ragged_take(packs.offsets, order[rank::world_size])
        return LiveBatch(step, packs.sources[members], packs.places[members], packs.lengths[members], offsets)


def pack_costs(
    lengths: Int32[np.ndarray, " samples"],
    offsets: Int64[np.ndarray, " packs_and_one"],
    model_width: int | None = None,
) -> Int64[np.ndarray, " packs"]:
    """What each pack costs in pairs of positions, as `batch_costs` of plans made beforehand counts them.

    Samples see only themselves, so that attention costs the squares of their lengths; with a model's width
    every token costs six times the width more.
    """
    exact = lengths.astype(np.int64)
    costs = exact**2 if model_width is None else exact**2 + 6 * model_width * exact
    return np.diff(batch_offsets(costs)[offsets])


def _balanced(costs: Int64[np.ndarray, " packs"], world_size: int) -> Int64[np.ndarray, " packs"]:
    """Packs in the order in which they are dealt: of each round the dearest goes to the least loaded rank."""
    order = np.argsort(-costs, kind="stable")
    loads = np.zeros(world_size, np.int64)
    for start in range(0, len(order) - world_size + 1, world_size):
        ranks = np.argsort(loads, kind="stable")
        dealt = np.empty(world_size, np.int64)
        dealt[ranks] = order[start : start + world_size]
        order[start : start + world_size] = dealt
        loads += costs[dealt]
    return order


def _joined(taken: list[tuple[_Pool, range]]) -> _Pool:
    """The packs that a step takes, which may be of two pools."""
    arrays: list[tuple[np.ndarray, ...]] = []
    for pool, packs in taken:
        part = slice(int(pool.offsets[packs[0]]), int(pool.offsets[packs[-1] + 1]))
        counts = np.diff(pool.offsets[packs[0] : packs[-1] + 2])
        arrays.append((pool.sources[part], pool.places[part], pool.lengths[part], counts))
    sources, places, lengths, counts = (np.concatenate(parts) for parts in zip(*arrays, strict=True))
    return _Pool(sources, places, lengths, batch_offsets(counts), taken[-1][0].after)


def _tokens(sample: Any, length: int) -> tuple[Int32[np.ndarray, " n"], Any]:
    ids, mask = (
        (sample["input_ids"], sample.get("loss_mask"))
        if isinstance(sample, Mapping)
        else (sample.input_ids, sample.loss_mask)
    )
    if len(ids) < length:
        raise ValueError(f"a sample has {len(ids)} tokens, but {length} were planned; its source has changed")
    loss = np.ones(length, np.int8) if mask is None else np.asarray(mask, np.int8)[:length]
    return np.asarray(ids, np.int32)[:length], loss
