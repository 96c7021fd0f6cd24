"""A plan that is stopped and resumed on other numbers of ranks uses every sample once per epoch."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.data import (
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    RemainderPolicy,
    ShardingConfig,
    load_batch_plan,
    save_batch_plan,
)

pytestmark = pytest.mark.slow

EPOCHS = 2
SPECS = st.builds(
    ShardingConfig,
    world_size=st.integers(1, 4),
    policy=st.sampled_from(RemainderPolicy),
    balance=st.booleans(),
)


class PlanMachine(RuleBasedStateMachine):
    """Tracks which samples of the current epoch were used by any rank."""

    @initialize(
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30),
        seed=st.integers(0, 99),
        budget=st.sampled_from([9, 16, 40]),
        spec=SPECS,
    )
    def create_plan(self, lengths: list[int], seed: int, budget: int, spec: ShardingConfig) -> None:
        table = {f"s{number}": length for number, length in enumerate(lengths)}
        self.all_ids = set(table)
        self.plan: BatchPlan = BatchPlanBuilder(table, BatchingConfig.throughput(budget, seed=seed)).build(
            EPOCHS
        )
        self.epoch, self.step = 0, 0
        self._set_spec(spec)
        self.used: set[str] = set()
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _set_spec(self, spec: ShardingConfig) -> None:
        """Set the shard spec. Split batches instead of dropping them if a rank would have no batch."""
        self.spec = spec
        if spec.policy is RemainderPolicy.DROP and any(
            0 < len(e) < spec.world_size for e in self.plan.epochs
        ):
            with pytest.raises(ValueError, match="because no batch would be left"):
                self.plan.shard(0, spec)
            self.spec = spec.model_copy(update={"policy": RemainderPolicy.SPLIT})

    def _num_steps(self) -> int:
        return len(self.plan.shard(0, self.spec).get_epoch(self.epoch))

    @precondition(lambda self: self.epoch < EPOCHS)
    @rule(max_steps=st.integers(1, 5))
    def train(self, max_steps: int) -> None:
        steps = self._num_steps()
        shards = [self.plan.shard(rank, self.spec) for rank in range(self.spec.world_size)]
        iterators = [iter(shard.get_epoch(self.epoch)[self.step :]) for shard in shards]
        rows = [spec for shard in shards for spec in shard.get_epoch(self.epoch)]
        repeats = self.spec.policy is RemainderPolicy.REPEAT or all(
            len(spec.sample_ids) == 1 for spec in rows
        )
        for _ in range(min(max_steps, steps - self.step)):
            batches = [next(iterator) for iterator in iterators]
            assert {(spec.epoch, spec.index) for spec in batches} == {(self.epoch, self.step)}
            names = [name for spec in batches for name in spec.sample_ids]
            self.step += 1
            # If the batches cannot be divided evenly, some are repeated: in the last step, or in any step
            # if the steps are ordered by cost.
            if not (repeats and (self.step == steps or self.spec.balance)):
                assert len(set(names)) == len(names) and not self.used & set(names)
            self.used |= set(names)

    @precondition(lambda self: self.epoch < EPOCHS)
    @rule(spec=SPECS)
    def resume_on_other_ranks(self, spec: ShardingConfig) -> None:
        self.plan = self.plan.remaining(self.epoch, self.step, self.spec)
        self.step = 0
        self._set_spec(spec)

    @rule()
    def save_and_load(self) -> None:
        before, path = self.plan.fingerprint, Path(self.folder.name, "plan")
        save_batch_plan(self.plan, path, overwrite=True)
        position = json.loads(json.dumps([self.epoch, self.step, self.spec.model_dump(mode="json")]))
        self.plan = load_batch_plan(path, verify=True)
        assert self.plan.fingerprint == before
        self.epoch, self.step, self.spec = (
            position[0],
            position[1],
            ShardingConfig.model_validate(position[2]),
        )

    @precondition(lambda self: self.epoch < EPOCHS and self.step == self._num_steps())
    @rule()
    def end_epoch(self) -> None:
        left = self.plan.remaining(self.epoch, self.step, self.spec).get_epoch(self.epoch)
        dropped = {name for spec in left for name in spec.sample_ids}
        if self.spec.policy is RemainderPolicy.DROP:
            assert len(left) < self.spec.world_size
        else:
            assert not dropped
        assert self.used | dropped == self.all_ids and not self.used & dropped
        self.epoch, self.step, self.used = self.epoch + 1, 0, set()

    @invariant()
    def used_and_remaining_samples_are_complete_and_disjoint(self) -> None:
        if not hasattr(self, "plan") or self.epoch == EPOCHS:
            return
        left = self.plan.remaining(self.epoch, self.step, self.spec).get_epoch(self.epoch)
        names = [name for spec in left for name in spec.sample_ids]
        assert len(names) == len(set(names))
        assert set(names) | self.used == self.all_ids and not set(names) & self.used


def test_every_sample_is_used_once_on_any_number_of_ranks() -> None:
    run_state_machine_as_test(
        PlanMachine, settings=settings(max_examples=10, stateful_step_count=15, deadline=None)
    )
