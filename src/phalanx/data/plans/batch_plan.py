"""Batch plans: every batch of every epoch, made before training, to be saved, sharded and resumed.

How a plan is made is in `builder`, how it is written to disk in `files`.
"""

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from phalanx.config import FrozenModel
from phalanx.data.lengths import LengthTable, SkippedSample
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.packing_config import PackingConfig
from phalanx.data.plans.arrays import MicrobatchSpec
from phalanx.data.plans.batching_config import BatchingConfig, BatchingMode, PadPolicy
from phalanx.data.plans.epoch_plan import EpochPlan, merge_tables
from phalanx.data.plans.filter import SelectedSamples, select_samples
from phalanx.data.plans.plan_fingerprint import digest_plan
from phalanx.data.plans.sharding import (
    ShardBalance,
    ShardedEpoch,
    ShardInfo,
    ShardPolicy,
    ShardSpec,
    measure_balance,
    shard_epoch,
)

PLAN_VERSION = 2
_BATCHING = ("bucket_edges", "overflow_max", "token_budget", "pad_policy")


class BatchPlanMeta(FrozenModel):
    """What a plan was made from."""

    dataset_hash: str = ""
    """Names the dataset; empty if not given."""
    tokenizer_hash: str = ""
    """Names the tokenizer whose lengths were planned; empty if not given."""
    batching: BatchingConfig
    """How batches were formed."""
    pack_config: PackingConfig | None = None
    """How samples were packed; None without packing."""
    num_epochs: int = Field(ge=0)
    """Epochs in the plan."""
    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """When; not part of the fingerprint."""
    shard: ShardInfo | None = None
    """Which part of a plan this is; None for a whole one."""
    version: int = PLAN_VERSION
    """Changes when the same lengths and settings would be planned otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _batching_from_its_parts(cls, given: Any) -> Any:
        # Whoever makes a plan by hand may name what matters of the batching instead of the whole config.
        if not isinstance(given, Mapping) or "batching" in given:
            return given
        found = {name: given[name] for name in _BATCHING if name in given}
        if "base_seed" in given:
            found["seed"] = given["base_seed"]
        if PadPolicy(found.get("pad_policy", PadPolicy.PAD_TO_MAX_IN_BATCH)) is PadPolicy.PAD_TO_BUCKET:
            found["mode"] = BatchingMode.PREDICTABLE
        rest = {name: value for name, value in given.items() if name not in (*_BATCHING, "base_seed")}
        return {**rest, "batching": BatchingConfig(**found)}

    @classmethod
    def create(
        cls,
        dataset_hash: str,
        tokenizer_hash: str,
        batching_config: BatchingConfig,
        num_epochs: int,
        pack_config: PackingConfig | None = None,
    ) -> "BatchPlanMeta":
        """Of a plan that is made by hand, made now."""
        return cls(
            dataset_hash=dataset_hash,
            tokenizer_hash=tokenizer_hash,
            batching=batching_config,
            pack_config=pack_config,
            num_epochs=num_epochs,
        )

    @property
    def bucket_edges(self) -> tuple[int, ...]:
        """Longest length of each bucket but the last."""
        return self.batching.bucket_edges

    @property
    def overflow_max(self) -> int:
        """Longest length of the last bucket."""
        return self.batching.overflow_max

    @property
    def token_budget(self) -> int:
        """Most tokens in a batch, padding included."""
        return self.batching.token_budget

    @property
    def pad_policy(self) -> PadPolicy:
        """How long rows are."""
        return self.batching.pad_policy

    @property
    def base_seed(self) -> int:
        """The seed from which every epoch's is drawn."""
        return self.batching.seed


class MissingEpochError(ValueError, KeyError):
    """A plan was asked for an epoch that it does not hold."""

    # A KeyError would show its text in quotes.
    __str__ = Exception.__str__


@dataclasses.dataclass(eq=False)
class BatchPlan:
    """Epochs of batches over one table of lengths, from a `BatchPlanBuilder`, a file, or made by hand.

    By hand, `BatchPlan(meta)` is a plan without epochs, and `add_epoch` adds them.
    """

    meta: BatchPlanMeta
    """What it was made from."""
    table: LengthTable = dataclasses.field(default_factory=lambda: LengthTable.from_arrays([], []))
    """Ids and lengths of all samples, the skipped ones included."""
    epochs: tuple[EpochPlan, ...] = ()
    """In ascending order of their numbers."""

    def add_epoch(self, epoch_plan: EpochPlan) -> None:
        """Add an epoch that was made by hand, in place of one of the same number."""
        self._require_whole("add an epoch to")
        self.table, rows = merge_tables(self.table, epoch_plan.table)
        kept = [plan.with_batches(plan.batches, self.table) for plan in self.epochs]
        batches = dataclasses.replace(epoch_plan.batches, order=rows[epoch_plan.batches.order])
        added = {plan.epoch: plan for plan in (*kept, epoch_plan.with_batches(batches, self.table))}
        self.epochs = tuple(added[number] for number in sorted(added))
        self.meta = self.meta.model_copy(update={"num_epochs": len(self.epochs)})
        for remembered in ("full_hash", "_filtered"):
            self.__dict__.pop(remembered, None)

    @property
    def num_epochs(self) -> int:
        """How many epochs there are."""
        return len(self.epochs)

    @property
    def total_microbatches(self) -> int:
        """Batches of all epochs."""
        return sum(len(epoch) for epoch in self.epochs)

    @property
    def num_skipped(self) -> int:
        """Samples that fit no batch."""
        return self._filtered.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every sample that fits no batch, with the reason."""
        return self._filtered.skipped

    def dropped(self, epoch: int) -> tuple[SkippedSample, ...]:
        """The samples that fit but that a whole epoch leaves out because of `drop_last`."""
        self._require_whole("list what was dropped of")
        return self._filtered.dropped(self.get_epoch(epoch).batches)

    @cached_property
    def _filtered(self) -> SelectedSamples:
        return select_samples(self.table, self.meta.batching, self.meta.pack_config)

    @cached_property
    def full_hash(self) -> str:
        """SHA-256 of the settings and of every batch; see `digest_plan`."""
        used = np.zeros(len(self.table), bool)
        for epoch in self.epochs:
            used[epoch.batches.order] = True
        batching, packing = self.meta.batching, self.meta.pack_config
        settings = {
            "version": self.meta.version,
            "dataset": self.meta.dataset_hash,
            "tokenizer": self.meta.tokenizer_hash,
            "batching": batching.digest(),
            "packing": None if packing is None else [packing.model_dump(mode="json"), batching.pool_batches],
        }
        return digest_plan(
            settings, self.table, ((epoch.epoch, epoch.batches) for epoch in self.epochs), used
        )

    def adopt_fingerprint(self, full_hash: str) -> None:
        """Take the `full_hash` that another rank computed for the same plan, so that each need not."""
        if len(full_hash) != 64:
            raise ValueError(f"a full_hash has 64 characters, got {full_hash!r}")
        self.__dict__["full_hash"] = full_hash

    @property
    def fingerprint(self) -> str:
        """The first 16 characters of `full_hash`."""
        return self.full_hash[:16]

    def get_epoch(self, epoch: int) -> EpochPlan:
        """One epoch by its number."""
        for plan in self.epochs:
            if plan.epoch == epoch:
                return plan
        numbers = [plan.epoch for plan in self.epochs]
        held = f"epochs {numbers[0]} to {numbers[-1]}" if numbers else "no epochs"
        raise MissingEpochError(f"there is no epoch {epoch}; the plan holds {held}")

    def iter_epoch(self, epoch: int) -> Iterator[MicrobatchSpec]:
        """The batches of one epoch."""
        return iter(self.get_epoch(epoch))

    async def iter_epoch_async(self, epoch: int) -> AsyncIterator[MicrobatchSpec]:
        """`iter_epoch` for `async for`."""
        for microbatch in self.get_epoch(epoch):
            yield microbatch

    def iter_from(self, epoch: int, microbatch_idx: int = 0) -> Iterator[tuple[int, int, MicrobatchSpec]]:
        """(epoch, index, batch) from one batch on to the end of the plan: resume from a checkpoint.

        An index just past an epoch's last batch goes on with the next epoch.
        """
        first = self.get_epoch(epoch)
        if not 0 <= microbatch_idx <= len(first):
            raise ValueError(f"epoch {epoch} has {len(first)} batches, so none begins at {microbatch_idx}")

        def batches() -> Iterator[tuple[int, int, MicrobatchSpec]]:
            for plan in self.epochs:
                if plan.epoch >= epoch:
                    for index in range(microbatch_idx if plan is first else 0, len(plan)):
                        yield plan.epoch, index, plan[index]

        return batches()

    def shard(
        self,
        rank: int,
        world_size: int | ShardSpec,
        policy: ShardPolicy | str = ShardPolicy.PAD,
        balance: bool = False,
        model_width: int | None = None,
    ) -> "BatchPlan":
        """One rank's part: disjoint from the others', and in every epoch as many batches as theirs.

        `balance` groups batches of like cost into steps, so that ranks finish together: attention cost or,
        for a transformer of this `model_width` (hidden size), FLOPs. A `ShardSpec` in place of `world_size`
        says all of these at once.
        """
        self._require_whole("shard")
        spec = ShardSpec.of(world_size, policy, balance, model_width)
        if not 0 <= rank < spec.world_size:
            raise ValueError(f"rank must be 0 to {spec.world_size - 1}, got {rank}")
        settings = spec.model_dump(include=set(ShardSpec.model_fields))
        info = ShardInfo(rank=rank, plan_fingerprint=self.fingerprint, **settings)
        parts = [epoch.with_batches(self._sharded(epoch, spec).shard(rank)) for epoch in self.epochs]
        return BatchPlan(self.meta.model_copy(update={"shard": info}), self.table, tuple(parts))

    def remaining(
        self,
        epoch: int,
        step: int,
        world_size: int | ShardSpec = 1,
        policy: ShardPolicy | str = ShardPolicy.PAD,
        balance: bool = False,
        model_width: int | None = None,
    ) -> "BatchPlan":
        """What is left once each of `world_size` ranks has done `step` batches of `epoch`.

        Shard the answer for another number of ranks: no sample of the epoch is lost or repeated. `policy`,
        `balance` and `model_width` are those of the ranks so far, as `shard` took them.
        """
        self._require_whole("take the remainder of")
        current = self.get_epoch(epoch)
        spec = ShardSpec.of(world_size, policy, balance, model_width)
        left = current.with_batches(self._sharded(current, spec).remaining(step))
        parts = (left, *(plan for plan in self.epochs if plan.epoch > epoch))
        meta = self.meta.model_copy(update={"num_epochs": len(parts)})
        return BatchPlan(meta, self.table, parts)

    def measure_balance(
        self,
        epoch: int,
        world_size: int | ShardSpec,
        policy: ShardPolicy | str = ShardPolicy.PAD,
        balance: bool = True,
        model_width: int | None = None,
    ) -> ShardBalance:
        """How much longer than the ideal the ranks would work in one epoch."""
        plan = self.get_epoch(epoch)
        spec = ShardSpec.of(world_size, policy, balance, model_width)
        return measure_balance(self._sharded(plan, spec), plan.lengths, spec.model_width)

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """What an epoch's batches hold and waste."""
        plan = self.get_epoch(epoch)
        skipped = 0 if self.meta.shard is not None else len(self.table) - plan.total_samples
        lengths = plan.lengths.astype(np.int64)
        return compute_metrics(plan.batches, lengths, self.meta.batching.bucket_spec, skipped)

    def _sharded(self, epoch: EpochPlan, spec: ShardSpec) -> ShardedEpoch:
        longest = self.meta.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH
        return shard_epoch(epoch.batches, epoch.lengths, spec, pad_to_longest=longest, seed=epoch.seed)

    def _require_whole(self, what: str) -> None:
        if self.meta.shard is not None:
            part = self.meta.shard
            raise ValueError(
                f"cannot {what} a shard (rank {part.rank} of {part.world_size}); use the whole plan"
            )
