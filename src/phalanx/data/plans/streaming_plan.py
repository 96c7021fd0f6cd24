"""Streaming plans, which form batches from unbounded sources and keep only a small state."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int16, Int32, Int64
from pydantic import Field, ValidationError, model_validator

from phalanx.config import Config, FrozenModel, format_validation_error
from phalanx.data.lengths import LengthTable
from phalanx.data.packing import OverlongPolicy, PackingConfig, PackLayout, pack_lengths
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.plans.epoch import counts_to_offsets, epoch_seed, gather_groups, random_order
from phalanx.data.plans.mixture import Mixture
from phalanx.data.plans.sharding import ShardSpec, balance_ranks, pack_costs
from phalanx.data.plans.stream_sources import StreamSource
from phalanx.data.samples import Sample

_MAX_READ = 1 << 16


class StreamingState(FrozenModel):
    """Position of a streaming plan.

    It consists of the start of the current pool in each source, and the number of packs that were used.

    A pool is a group of samples that are read, packed and shuffled together.
    """

    settings: str
    """Digest of config, mixture and sources. A state is rejected if the digest of the plan differs."""
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
    """Number of samples of each source that were skipped because they were too long."""
    ended: tuple[str, ...] = ()
    """Names of the sources that have no more samples."""


class StreamingPlanConfig(Config):
    """Settings of a streaming plan."""

    renamed_settings: ClassVar[dict[str, str]] = {
        "rows": "packs_per_batch",
        "pool_packs": "packing_buffer_size",
    }
    removed_settings: ClassVar[dict[str, str]] = {
        "balance": "moved to ShardSpec: plan.batches(rank, ShardSpec(world_size=..., balance=True))",
        "model_width": "moved to ShardSpec.d_model: plan.batches(rank, ShardSpec(..., d_model=...))",
    }

    packing: PackingConfig | None = PackingConfig()
    """How samples are packed into rows. If it is None, each sample is a row of its own, padded to
    `max_length`."""
    max_length: int | None = Field(default=None, ge=1)
    """Row length in tokens if `packing` is None. It must be unset otherwise, because `packing.max_length`
    applies."""
    overlong: OverlongPolicy | None = None
    """Policy for samples that are longer than `max_length` if `packing` is None. The default is to raise an
    error. It must be unset otherwise, because `packing.overlong` applies."""
    packs_per_batch: int = Field(default=8, ge=1)
    """Number of rows in a batch on each rank."""
    packing_buffer_size: int = Field(default=1024, ge=1)
    """Size of a pool of samples that are read, packed and shuffled together, as a number of rows. One pool is
    kept in memory. A larger value means less padding and better shuffling."""
    seed: int = Field(default=42, ge=0)
    """Seed of the shuffle of each pool's packs."""

    @model_validator(mode="after")
    def _check_length(self) -> "StreamingPlanConfig":
        if self.packing is None:
            if self.max_length is None:
                raise ValueError("max_length is required without packing")
        elif self.max_length is not None or self.overlong is not None:
            raise ValueError("set max_length and overlong in packing, or set packing to None")
        elif self.packing.separator_token_id is not None:
            raise ValueError("a streaming plan does not support separators")
        if self.overlong_policy is OverlongPolicy.SPLIT:
            raise ValueError("a streaming plan cannot split samples; choose overlong='skip' or 'truncate'")
        return self

    @property
    def row_length(self) -> int:
        """Maximum row length in tokens."""
        return self.packing.max_length if self.packing is not None else self.max_length or 1

    @property
    def overlong_policy(self) -> OverlongPolicy:
        """Policy for samples that are longer than a row."""
        return self.packing.overlong if self.packing is not None else self.overlong or OverlongPolicy.ERROR


class _Packs(NamedTuple):
    """Packs in training order, with the samples they contain."""

    sources: Int16[np.ndarray, " samples"]
    positions: Int64[np.ndarray, " samples"]
    lengths: Int32[np.ndarray, " samples"]
    offsets: Int64[np.ndarray, " packs_and_one"]
    samples: Sequence[Any] | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, packs: Int64[np.ndarray, " chosen"]) -> "_Packs":
        members, offsets = gather_groups(self.offsets, packs)
        samples = None if self.samples is None else [self.samples[index] for index in members.tolist()]
        return _Packs(self.sources[members], self.positions[members], self.lengths[members], offsets, samples)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    """The packs of one pool, and the state at the end of the pool."""

    packs: _Packs
    after: StreamingState


class StreamingPlan:
    """A plan that forms batches from unbounded sources, or until all sources are exhausted.

    Tokens for `packing_buffer_size` rows (a pool) are read from the sources in the proportions of the
    mixture. They are packed into rows, and the rows are shuffled. In every step, each rank takes the next
    `packs_per_batch` rows. All ranks compute the same plan and keep one pool in memory. Training can be
    resumed on any number of ranks. The plan is immutable and implements `Plan`.
    """

    num_batches = None

    def __init__(
        self,
        sources: Mapping[str, StreamSource],
        config: StreamingPlanConfig | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        if not sources:
            raise ValueError("a streaming plan needs at least one source")
        self.sources = dict(sources)
        self.config = config or StreamingPlanConfig()
        self.mixture = mixture or Mixture()
        self.mixture.check_sources(self.sources)
        settings = [
            self.config.model_dump(mode="json"),
            self.mixture.model_dump(mode="json"),
            [(name, source.fingerprint) for name, source in self.sources.items()],
        ]
        self.fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def batches(self, rank: int = 0, world_size: int | ShardSpec = 1) -> "StreamingPlanIterator":
        """Return an iterator over the batches of one rank.

        If all sources are exhausted, the ranks share the remaining packs in the last step. If there are fewer
        packs than ranks, packs are repeated. The policy of a `ShardSpec` is not used.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardSpec` with all sharding settings.
        """
        return StreamingPlanIterator(self, rank, ShardSpec.resolve(world_size))

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

    def draw_pool(self, state: StreamingState) -> _Pool:
        """Read the samples of the next pool from the sources and pack them."""
        names = list(self.sources)
        budget = self.config.packing_buffer_size * self.config.row_length
        # In the middle of the pool, where a weight that changes linearly has its mean.
        fractions = self.mixture.at(sum(state.tokens.values()) + budget // 2, names)
        active = np.array([name not in state.ended for name in names]) & (fractions > 0)
        if not active.any():
            active = np.array([name not in state.ended for name in names])
            fractions = np.ones(len(names))
        fractions = fractions * active / max(float((fractions * active).sum()), 1e-300)
        update: dict[str, dict[str, Any]] = {
            name: dict(getattr(state, name)) for name in ("positions", "tokens", "owed_tokens", "skipped")
        }
        ended = list(state.ended)
        drawn: list[_Packs] = []
        for number, name in enumerate(names):
            if not active[number]:
                continue
            update["owed_tokens"][name] += float(fractions[number]) * budget
            owed = update["owed_tokens"][name] - update["tokens"][name]
            part, num_read, num_skipped = self._read(number, update["positions"][name], owed, ended)
            update["positions"][name] += num_read
            update["tokens"][name] += int(part.lengths.sum(dtype=np.int64))
            update["skipped"][name] += num_skipped
            drawn.append(part)
            if name in ended:
                # What it still owes is not requested again.
                update["owed_tokens"][name] = float(update["tokens"][name])
        after = state.model_copy(update={**update, "pool": state.pool + 1, "pack": 0, "ended": tuple(ended)})
        return _Pool(self._pack(_concatenate(drawn), state.pool), after)

    def _read(self, number: int, start: int, owed: float, ended: list[str]) -> tuple[_Packs, int, int]:
        """Read samples from a source until they have at least `owed` tokens or the source ends.

        Args:
            number: Index of the source.
            start: Position of the first sample.
            owed: Number of tokens to read.
            ended: Names of exhausted sources. The name of this source is appended if it ends.

        Returns:
            The samples, the number of samples read, and the number of samples skipped because of their
            length.
        """
        name = list(self.sources)[number]
        source, row_length = self.sources[name], self.config.row_length
        lengths = [np.zeros(0, np.int32)]
        samples: list[Any] | None = []
        total, num_read = 0, 0
        while total < owed:
            mean = max(total / num_read, 1.0) if num_read else row_length / 8
            count = max(64, min(int((owed - total) / mean) + 1, _MAX_READ))
            part = source.read(start + num_read, count)
            fitting = self._fit_lengths(name, part.lengths, start + num_read)
            sums = np.cumsum(fitting, dtype=np.int64)
            used = min(int(np.searchsorted(sums, owed - total)) + 1, len(fitting))
            lengths.append(fitting[:used])
            if part.samples is None:
                samples = None
            elif samples is not None:
                samples += part.samples[:used]
            num_read += used
            total += int(sums[used - 1]) if used else 0
            if used < len(part.lengths):
                break
            if len(part.lengths) < count:
                ended.append(name)
                break
        joined = np.concatenate(lengths)
        kept = np.flatnonzero(joined > 0)
        drawn = _Packs(
            np.full(len(kept), number, np.int16),
            start + kept,
            joined[kept],
            np.arange(len(kept) + 1),
            None
            if samples is None
            else [self._as_sample(name, start + index, samples[index]) for index in kept.tolist()],
        )
        return drawn, num_read, len(joined) - len(kept)

    def _as_sample(self, name: str, position: int, value: Any) -> Sample:
        if isinstance(value, Sample):
            return value
        ids = value["input_ids"] if isinstance(value, Mapping) else value.input_ids
        mask = value.get("loss_mask") if isinstance(value, Mapping) else value.loss_mask
        return Sample(f"{name}/{position}", ids, np.ones(len(ids), np.int8) if mask is None else mask)

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
            f"sample {start + index} of source {name!r} has {lengths[index]} tokens, more than max_length "
            f"{row_length}; choose overlong='skip' or 'truncate', or increase max_length"
        )

    def _pack(self, drawn: _Packs, pool: int) -> _Packs:
        packing = self.config.packing
        if packing is None:
            bins = np.arange(len(drawn.lengths))
        else:
            bins = pack_lengths(drawn.lengths, packing.max_length, packing.mode)
        by_bin = np.argsort(bins, kind="stable")
        offsets = counts_to_offsets(np.bincount(bins))
        order = random_order(len(offsets) - 1, np.random.PCG64(epoch_seed(self.config.seed, pool)))
        members, starts = gather_groups(offsets, order)
        chosen = by_bin[members]
        samples = None if drawn.samples is None else [drawn.samples[index] for index in chosen.tolist()]
        return _Packs(drawn.sources[chosen], drawn.positions[chosen], drawn.lengths[chosen], starts, samples)


class StreamingPlanIterator(Iterator[BatchSpec]):
    """Iterator over the batches of one rank of a streaming plan. Implements `PlanIterator`."""

    def __init__(self, plan: StreamingPlan, rank: int, spec: ShardSpec) -> None:
        spec.check_rank(rank)
        self._plan, self._rank, self._spec = plan, rank, spec
        self.state = plan.initial_state()
        """Current position. It is the same on every rank."""
        self._pool: _Pool | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible values."""
        return self.state.model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned, possibly on a different number of ranks."""
        try:
            loaded = StreamingState.model_validate(dict(state))
        except ValidationError as error:
            raise ValueError(
                f"not the state of a streaming plan: {format_validation_error(error, StreamingState)}"
            ) from error
        if loaded.settings != self._plan.fingerprint:
            raise ValueError(
                f"the state is from plan {loaded.settings}, but this is plan {self._plan.fingerprint}: the "
                f"settings, the mixture or the sources differ"
            )
        self.state, self._pool = loaded, None

    def __next__(self) -> BatchSpec:
        config = self._plan.config
        missing = config.packs_per_batch * self._spec.world_size
        step = self.state.step
        parts: list[_Packs] = []
        while missing and (packs := self._current_packs()) is not None:
            taken = np.arange(self.state.pack, min(self.state.pack + missing, len(packs)))
            parts.append(packs.take(taken))
            missing -= len(taken)
            self.state = self.state.model_copy(update={"pack": self.state.pack + len(taken)})
        if not parts:
            raise StopIteration
        self.state = self.state.model_copy(update={"step": step + 1})
        return self._create_spec(step, self._share(_concatenate(parts)))

    def _current_packs(self) -> _Packs | None:
        """Return the packs of the first pool that has unused ones, reading the next pool if necessary.

        Return None if all sources are exhausted.
        """
        while True:
            if self._pool is None:
                self._pool = self._plan.draw_pool(self.state)
            if self.state.pack < len(self._pool.packs):
                return self._pool.packs
            if len(self.state.ended) == len(self._plan.sources):
                return None
            self.state = self._pool.after.model_copy(update={"step": self.state.step})
            self._pool = None

    def _share(self, packs: _Packs) -> _Packs:
        """Return the packs of this rank, given the packs of all ranks in a step."""
        world_size = self._spec.world_size
        order = np.arange(len(packs))
        if self._spec.balance:
            order = balance_ranks(pack_costs(packs.lengths, packs.offsets, self._spec.d_model), world_size)
        if len(order) < world_size:
            order = np.resize(order, world_size)
        return packs.take(order[self._rank :: world_size])

    def _create_spec(self, step: int, packs: _Packs) -> BatchSpec:
        config = self._plan.config
        width = config.row_length
        if config.packing is not None and not config.packing.pad_to_max:
            width = int(np.diff(counts_to_offsets(packs.lengths)[packs.offsets]).max(initial=0))
        layout = PackLayout(
            samples=np.arange(len(packs.lengths), dtype=np.int32),
            lengths=packs.lengths,
            offsets=packs.offsets,
            width=width,
        )
        table = None
        if packs.samples is None:
            names = list(self._plan.sources)
            ids = [
                f"{names[source]}/{position}"
                for source, position in zip(packs.sources.tolist(), packs.positions.tolist(), strict=True)
            ]
            table = LengthTable(ids, packs.lengths).trust()
        return BatchSpec(0, step, 0, config.packing is not None, layout, table, packs.samples)


def _concatenate(parts: Sequence[_Packs]) -> _Packs:
    if len(parts) == 1:
        return parts[0]
    samples: list[Any] | None = []
    for part in parts:
        samples = None if samples is None or part.samples is None else [*samples, *part.samples]
    return _Packs(
        np.concatenate([np.zeros(0, np.int16), *(part.sources for part in parts)]),
        np.concatenate([np.zeros(0, np.int64), *(part.positions for part in parts)]),
        np.concatenate([np.zeros(0, np.int32), *(part.lengths for part in parts)]),
        counts_to_offsets(
            np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)])
        ),
        samples,
    )
