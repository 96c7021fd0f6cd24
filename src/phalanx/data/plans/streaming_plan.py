"""Streaming plans, which form batches from unbounded sources and keep only a small state."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int16, Int32, Int64, Shaped
from pydantic import Field, model_validator

from phalanx.config import Config, FrozenModel
from phalanx.data.collation import as_sample
from phalanx.data.lengths import LengthTable
from phalanx.data.packing import OverlongPolicy, PackingConfig, PackLayout, pack_lengths
from phalanx.data.plans.batch_plan import BatchSpec, validate_state
from phalanx.data.plans.epoch import epoch_seed, random_order
from phalanx.data.plans.mixture import MixtureConfig
from phalanx.data.plans.sharding import ShardingConfig, balance_ranks, pack_costs
from phalanx.data.plans.stream_sources import StreamSource
from phalanx.ragged import counts_to_offsets, gather_groups, sum_groups

_MAX_READ = 1 << 16


class StreamingState(FrozenModel):
    """Position of a streaming plan.

    A pool is a group of samples that are read, packed and shuffled together. A pack is a row of a batch, and
    may contain several samples. The position consists of the start of the current pool in each source, and
    the number of packs of this pool that have been used.
    """

    settings: str
    """Digest of the plan's config, mixture and sources. A plan with a different digest rejects the state."""
    pool: int = 0
    """Index of the current pool."""
    pack: int = 0
    """Number of packs of the current pool that have been used."""
    step: int = 0
    """Number of steps taken so far."""
    positions: dict[str, int]
    """Position in each source at which the current pool starts."""
    tokens: dict[str, int]
    """Number of tokens taken from each source before the current pool."""
    owed_tokens: dict[str, float]
    """Number of tokens that should have been taken from each source before the current pool, according to the
    mixture."""
    skipped: dict[str, int]
    """Number of samples of each source that were skipped before the current pool because they were too
    long."""
    ended: tuple[str, ...] = ()
    """Names of the sources that have no more samples."""


class StreamingPlanConfig(Config):
    """Settings for a streaming plan."""

    packing: PackingConfig | None = PackingConfig()
    """Packing settings. If None, each row contains one sample and is padded to `unpacked_row_length`."""
    unpacked_row_length: int | None = Field(default=None, ge=1)
    """Row length in tokens if `packing` is None. Otherwise, this field must be None, because
    `packing.max_length` applies."""
    unpacked_overlong: OverlongPolicy | None = None
    """What to do with samples that are longer than `unpacked_row_length` if `packing` is None. By default,
    such samples raise an error. If `packing` is set, this field must be None, because `packing.overlong`
    applies."""
    packs_per_batch: int = Field(default=8, ge=1)
    """Number of rows in a batch on each rank."""
    packs_per_buffer: int = Field(default=1024, ge=1)
    """Approximate number of rows in a pool. The samples of a pool are read, packed and shuffled together, and
    kept in memory. A larger value reduces padding and improves shuffling."""
    seed: int = Field(default=42, ge=0)
    """Seed for shuffling the rows within each pool."""

    @model_validator(mode="after")
    def _check_length(self) -> "StreamingPlanConfig":
        if self.packing is None:
            if self.unpacked_row_length is None:
                raise ValueError("unpacked_row_length is required without packing")
        elif self.unpacked_row_length is not None or self.unpacked_overlong is not None:
            raise ValueError("set packing.max_length and packing.overlong instead, or set packing to None")
        elif self.packing.separator_token_id is not None:
            raise ValueError("a streaming plan does not support separators")
        if self.overlong_policy is OverlongPolicy.SPLIT:
            raise ValueError("a streaming plan cannot split samples; choose overlong='skip' or 'truncate'")
        return self

    @property
    def row_length(self) -> int:
        """Maximum row length in tokens."""
        return self.packing.max_length if self.packing is not None else self.unpacked_row_length or 1

    @property
    def overlong_policy(self) -> OverlongPolicy:
        """Policy for samples that are longer than a row."""
        return (
            self.packing.overlong
            if self.packing is not None
            else self.unpacked_overlong or OverlongPolicy.ERROR
        )


class _Packs(NamedTuple):
    """Packs in training order, with the samples they contain.

    The first four arrays have one entry per sample: the index of its source, its position in the source, its
    length, and the sample itself. `offsets` contains the index of the first sample of each pack, followed by
    the total number of samples.
    """

    sources: Int16[np.ndarray, " samples"]
    positions: Int64[np.ndarray, " samples"]
    lengths: Int32[np.ndarray, " samples"]
    samples: Shaped[np.ndarray, " samples"]
    """`Sample` objects, or None for sources that only have lengths."""
    offsets: Int64[np.ndarray, " packs_and_one"]

    @property
    def num_packs(self) -> int:
        return len(self.offsets) - 1

    def reorder(
        self, samples: Int64[np.ndarray, " chosen"], offsets: Int64[np.ndarray, " packs_and_one"]
    ) -> "_Packs":
        """Form new packs from some of the samples.

        Args:
            samples: Indices of the samples, in the order in which the new packs contain them.
            offsets: Index in `samples` at which each new pack starts, followed by the length of `samples`.
        """
        return _Packs._make([*(array[samples] for array in self[:4]), offsets])

    def take(self, packs: Int64[np.ndarray, " chosen"]) -> "_Packs":
        """Return the packs with the given indices, in the given order."""
        return self.reorder(*gather_groups(self.offsets, packs))


class StreamingPlan:
    """A plan that forms batches from sources that may be unbounded. It ends when all sources are exhausted.

    Samples are processed in pools. For each pool, tokens for `packs_per_buffer` rows are read from the
    sources in the proportions of the mixture. If only sources with weight 0 have samples left, equal numbers
    of tokens are read from them. The samples are packed into rows, and the rows are shuffled. In every step,
    each rank takes the next `packs_per_batch` rows. Each rank computes the entire plan on its own and keeps
    one pool in memory. Training can be resumed on any number of ranks. The plan is immutable and implements
    `Plan`.
    """

    num_batches = None

    def __init__(
        self,
        sources: Mapping[str, StreamSource],
        config: StreamingPlanConfig | None = None,
        mixture: MixtureConfig | None = None,
    ) -> None:
        if not sources:
            raise ValueError("a streaming plan needs at least one source")
        self.sources = dict(sources)
        self.config = config or StreamingPlanConfig()
        self.mixture = mixture or MixtureConfig()
        self.mixture.check_sources(self.sources)
        settings = [
            self.config.model_dump(mode="json"),
            self.mixture.model_dump(mode="json"),
            [(name, source.fingerprint) for name, source in self.sources.items()],
        ]
        self.fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def batches(self, rank: int = 0, world_size: int | ShardingConfig = 1) -> "StreamingPlanIterator":
        """Return an iterator over the batches of one rank.

        When all sources are exhausted, the ranks share the remaining packs in the last step. If there are
        fewer packs than ranks, packs are repeated. `ShardingConfig.policy` is not used.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
        """
        return StreamingPlanIterator(self, rank, ShardingConfig.resolve(world_size))

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources.values():
            source.close()

    def initial_state(self) -> StreamingState:
        """Return the state before the first batch."""
        zeros = dict.fromkeys(self.sources, 0)
        return StreamingState(
            settings=self.fingerprint,
            positions=zeros,
            tokens=zeros,
            owed_tokens=dict.fromkeys(self.sources, 0.0),
            skipped=zeros,
        )

    def draw_pool(self, state: StreamingState) -> tuple[_Packs, StreamingState]:
        """Read the samples of the pool that starts at `state` from the sources, and pack them.

        Returns:
            The packs of the pool, and the state at the start of the next pool.
        """
        names = list(self.sources)
        budget = self.config.packs_per_buffer * self.config.row_length
        # The fractions in the middle of the pool, where a weight that changes linearly has its mean.
        fractions = self.mixture.at(sum(state.tokens.values()) + budget // 2, names)
        remaining = np.array([name not in state.ended for name in names])
        if not (remaining & (fractions > 0)).any():
            fractions = np.ones(len(names))
        fractions = fractions * remaining
        fractions /= max(float(fractions.sum()), 1e-300)
        after = state.model_copy(deep=True)
        ended = list(state.ended)
        drawn: list[_Packs] = []
        for number in np.flatnonzero(fractions).tolist():
            name = names[number]
            after.owed_tokens[name] += float(fractions[number]) * budget
            owed = after.owed_tokens[name] - after.tokens[name]
            part, num_read, has_ended = self._read(number, after.positions[name], owed)
            after.positions[name] += num_read
            after.tokens[name] += int(part.lengths.sum(dtype=np.int64))
            after.skipped[name] += num_read - len(part.lengths)
            drawn.append(part)
            if has_ended:
                ended.append(name)
                # The missing tokens are not requested again.
                after.owed_tokens[name] = float(after.tokens[name])
        update = {"pool": state.pool + 1, "pack": 0, "ended": tuple(ended)}
        return self._pack(_concatenate(drawn), state.pool), after.model_copy(update=update)

    def _read(self, number: int, start: int, owed: float) -> tuple[_Packs, int, bool]:
        """Read samples from a source until they have at least `owed` tokens or the source ends.

        Args:
            number: Index of the source.
            start: Position of the first sample.
            owed: Minimum number of tokens to read, if the source has that many.

        Returns:
            The samples, one per pack, without those that are skipped because of their length; the number of
            samples read, including skipped ones; and whether the source has ended.
        """
        name, source = list(self.sources.items())[number]
        lengths = [np.zeros(0, np.int32)]
        samples: list[Any] = []
        total, num_read, has_ended = 0, 0, False
        while total < owed and not has_ended:
            mean = max(total / num_read, 1.0) if num_read else self.config.row_length / 8
            count = max(64, min(int((owed - total) / mean) + 1, _MAX_READ))
            part = source.read(start + num_read, count)
            fitting = self._fit_lengths(name, part.lengths, start + num_read)
            sums = np.cumsum(fitting, dtype=np.int64)
            used = min(int(np.searchsorted(sums, owed - total)) + 1, len(fitting))
            lengths.append(fitting[:used])
            samples += [None] * used if part.samples is None else part.samples[:used]
            num_read += used
            total += int(sums[used - 1]) if used else 0
            has_ended = used == len(part.lengths) < count
        joined = np.concatenate(lengths)
        kept = np.flatnonzero(joined > 0)
        objects = np.empty(len(kept), object)
        for index, sample in enumerate(kept.tolist()):
            if samples[sample] is not None:
                objects[index] = as_sample(f"{name}/{start + sample}", samples[sample])
        sources = np.full(len(kept), number, np.int16)
        offsets = np.arange(len(kept) + 1)
        return _Packs(sources, start + kept, joined[kept], objects, offsets), num_read, has_ended

    def _fit_lengths(
        self, name: str, lengths: Int32[np.ndarray, " n"], start: int
    ) -> Int32[np.ndarray, " n"]:
        """Return the lengths after truncation. Samples that are skipped get length 0."""
        row_length = self.config.row_length
        overlong = lengths > row_length
        if not overlong.any():
            return lengths
        if self.config.overlong_policy is OverlongPolicy.TRUNCATE:
            return np.minimum(lengths, np.int32(row_length))
        if self.config.overlong_policy is OverlongPolicy.SKIP:
            return np.where(overlong, np.int32(0), lengths)
        index = int(np.argmax(overlong))
        raise ValueError(
            f"sample {start + index} of source {name!r} has {lengths[index]} tokens, but rows have "
            f"{row_length}; choose overlong='skip' or 'truncate', or longer rows"
        )

    def _pack(self, drawn: _Packs, pool: int) -> _Packs:
        packing = self.config.packing
        if packing is None:
            bins = np.arange(len(drawn.lengths))
        else:
            bins = pack_lengths(drawn.lengths, packing.max_length, packing.mode)
        offsets = counts_to_offsets(np.bincount(bins))
        order = random_order(len(offsets) - 1, np.random.PCG64(epoch_seed(self.config.seed, pool)))
        members, starts = gather_groups(offsets, order)
        return drawn.reorder(np.argsort(bins, kind="stable")[members], starts)


class StreamingPlanIterator(Iterator[BatchSpec]):
    """Iterator over the batches of one rank of a streaming plan. Implements `PlanIterator`.

    If a source raises, the position does not change: `next` can be called again, and returns the same batch
    that it would have returned without the error.
    """

    def __init__(self, plan: StreamingPlan, rank: int, spec: ShardingConfig) -> None:
        spec.check_rank(rank)
        self._plan, self._rank, self._spec = plan, rank, spec
        self.state = plan.initial_state()
        """Current position. It is the same on every rank."""
        self._pool: tuple[_Packs, StreamingState] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible values."""
        return self.state.model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned, possibly on a different number of ranks."""
        loaded = validate_state(StreamingState, state, "a streaming plan")
        if loaded.settings != self._plan.fingerprint:
            raise ValueError(
                f"the state is from plan {loaded.settings}, but this is plan {self._plan.fingerprint}: the "
                f"settings, the mixture or the sources differ"
            )
        self.state, self._pool = loaded, None

    def __next__(self) -> BatchSpec:
        config = self._plan.config
        missing = config.packs_per_batch * self._spec.world_size
        # Assigned to the attributes only at the end, so that the step can be retried if a source raises.
        state, pool = self.state, self._pool
        parts: list[_Packs] = []
        while missing:
            if pool is None:
                pool = self._plan.draw_pool(state)
            packs, after = pool
            if state.pack < packs.num_packs:
                taken = np.arange(state.pack, min(state.pack + missing, packs.num_packs))
                parts.append(packs.take(taken))
                missing -= len(taken)
                state = state.model_copy(update={"pack": state.pack + len(taken)})
            elif len(state.ended) == len(self._plan.sources):
                break
            else:
                state, pool = after.model_copy(update={"step": state.step}), None
        self.state, self._pool = state, pool
        if not parts:
            raise StopIteration
        self.state = state.model_copy(update={"step": state.step + 1})
        return self._create_spec(state.step, self._share(_concatenate(parts)))

    def _share(self, packs: _Packs) -> _Packs:
        """Return the packs of this rank, given the packs of all ranks in a step."""
        world_size = self._spec.world_size
        order = np.arange(packs.num_packs)
        if self._spec.balance:
            order = balance_ranks(pack_costs(packs.lengths, packs.offsets, self._spec.d_model), world_size)
        if len(order) < world_size:
            order = np.resize(order, world_size)
        return packs.take(order[self._rank :: world_size])

    def _create_spec(self, step: int, packs: _Packs) -> BatchSpec:
        config = self._plan.config
        width = config.row_length
        if config.packing is not None and not config.packing.pad_to_max:
            width = int(sum_groups(packs.lengths, packs.offsets).max(initial=0))
        layout = PackLayout(
            samples=np.arange(len(packs.lengths), dtype=np.int32),
            lengths=packs.lengths,
            offsets=packs.offsets,
            width=width,
        )
        samples, table = packs.samples.tolist(), None
        if None in samples:
            names = list(self._plan.sources)
            places = zip(packs.sources.tolist(), packs.positions.tolist(), strict=True)
            table = LengthTable([f"{names[source]}/{n}" for source, n in places], packs.lengths).trust()
            samples = None
        return BatchSpec(0, step, 0, config.packing is not None, layout, table, samples)


def _concatenate(parts: Sequence[_Packs]) -> _Packs:
    no_samples = (np.zeros(0, np.int16), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, object))
    columns = zip(no_samples, *(part[:4] for part in parts), strict=True)
    counts = [np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)]
    return _Packs._make([*map(np.concatenate, columns), counts_to_offsets(np.concatenate(counts))])
