"""Training by a plan that stops and goes on, on ever other ranks, against the plain set of its samples."""

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
    ShardPolicy,
    ShardSpec,
    load_batch_plan,
    save_batch_plan,
)

pytestmark = pytest.mark.slow

EPOCHS = 2
SPECS = st.builds(
    ShardSpec, world_size=st.integers(1, 4), policy=st.sampled_from(ShardPolicy), balance=st.booleans()
)


class PlanMachine(RuleBasedStateMachine):
    """Knows which samples of the epoch were learned; each rank reads its own shard with its iterator."""

    @initialize(
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30),
        seed=st.integers(0, 99),
        budget=st.sampled_from([9, 16, 40]),
        spec=SPECS,
    )
    def begin(self, lengths: list[int], seed: int, budget: int, spec: ShardSpec) -> None:
        table = {f"s{number}": length for number, length in enumerate(lengths)}
        self.all = set(table)
        self.plan: BatchPlan = BatchPlanBuilder(table, BatchingConfig.throughput(budget, seed=seed)).build(
            EPOCHS
        )
        self.epoch, self.step = 0, 0
        self._dealt_to(spec)
        self.learned: set[str] = set()
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _dealt_to(self, spec: ShardSpec) -> None:
        """Ranks of which some would have nothing are refused in words, where batches may only be dropped."""
        self.spec = spec
        if spec.policy is ShardPolicy.DROP and any(0 < len(e) < spec.world_size for e in self.plan.epochs):
            with pytest.raises(ValueError, match="because no batch would be left"):
                self.plan.shard(0, spec)
            self.spec = spec.model_copy(update={"policy": ShardPolicy.SPLIT})

    def _steps(self) -> int:
        return len(self.plan.shard(0, self.spec).get_epoch(self.epoch))

    @precondition(lambda self: self.epoch < EPOCHS)
    @rule(most=st.integers(1, 5))
    def learns(self, most: int) -> None:
        steps = self._steps()
        shards = [self.plan.shard(rank, self.spec) for rank in range(self.spec.world_size)]
        readers = [iter(shard.get_epoch(self.epoch)[self.step :]) for shard in shards]
        rows = [spec for shard in shards for spec in shard.get_epoch(self.epoch)]
        repeats = self.spec.policy is ShardPolicy.REPEAT or all(len(spec.sample_ids) == 1 for spec in rows)
        for _ in range(min(most, steps - self.step)):
            batches = [next(reader) for reader in readers]
            assert {(spec.epoch, spec.index) for spec in batches} == {(self.epoch, self.step)}
            names = [name for spec in batches for name in spec.sample_ids]
            self.step += 1
            # Where batches cannot be dealt evenly, some come again: in the last step, unless the steps are
            # put in order by what they cost.
            if not (repeats and (self.step == steps or self.spec.balance)):
                assert len(set(names)) == len(names) and not self.learned & set(names)
            self.learned |= set(names)

    @precondition(lambda self: self.epoch < EPOCHS)
    @rule(spec=SPECS)
    def goes_on_with_other_ranks(self, spec: ShardSpec) -> None:
        self.plan = self.plan.remaining(self.epoch, self.step, self.spec)
        self.step = 0
        self._dealt_to(spec)

    @rule()
    def is_saved_and_loaded(self) -> None:
        before, path = self.plan.fingerprint, Path(self.folder.name, "plan")
        save_batch_plan(self.plan, path, overwrite=True)
        place = json.loads(json.dumps([self.epoch, self.step, self.spec.model_dump(mode="json")]))
        self.plan = load_batch_plan(path, verify=True)
        assert self.plan.fingerprint == before
        self.epoch, self.step, self.spec = place[0], place[1], ShardSpec.model_validate(place[2])

    @precondition(lambda self: self.epoch < EPOCHS and self.step == self._steps())
    @rule()
    def ends_an_epoch(self) -> None:
        left = self.plan.remaining(self.epoch, self.step, self.spec).get_epoch(self.epoch)
        dropped = {name for spec in left for name in spec.sample_ids}
        if self.spec.policy is ShardPolicy.DROP:
            assert len(left) < self.spec.world_size
        else:
            assert not dropped
        assert self.learned | dropped == self.all and not self.learned & dropped
        self.epoch, self.step, self.learned = self.epoch + 1, 0, set()

    @invariant()
    def what_was_learned_and_what_is_left_are_everything_once(self) -> None:
        if not hasattr(self, "plan") or self.epoch == EPOCHS:
            return
        left = self.plan.remaining(self.epoch, self.step, self.spec).get_epoch(self.epoch)
        names = [name for spec in left for name in spec.sample_ids]
        assert len(names) == len(set(names))
        assert set(names) | self.learned == self.all and not set(names) & self.learned


def test_a_plan_deals_every_sample_once_whatever_the_ranks() -> None:
    run_state_machine_as_test(
        PlanMachine, settings=settings(max_examples=10, stateful_step_count=15, deadline=None)
    )
