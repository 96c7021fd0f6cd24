"""Random cases of training that is interrupted and resumed on another number of ranks, one included."""

import dataclasses
import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, PackingConfig, ShardingConfig


class UsedBatch(NamedTuple):
    """A batch that a rank has used, in a form that all loaders share."""

    samples: tuple[tuple[int, str], ...]
    """Epoch and id of each sample."""
    num_rows: int


class Loader(NamedTuple):
    """One rank's batches, and a function that returns the state after the batches that were used."""

    batches: Iterator[UsedBatch]
    state_dict: Callable[[], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """Samples and settings of one case."""

    lengths: dict[str, int]
    config: BatchingConfig
    packing: PackingConfig | None
    policy: str
    balance: bool
    num_epochs: int

    @property
    def num_samples(self) -> int:
        return self.num_epochs * len(self.lengths)

    @functools.cached_property
    def plan(self) -> BatchPlan:
        return BatchPlanBuilder(self.lengths, self.config, packing=self.packing).build(self.num_epochs)


OpenLoader = Callable[[Case, int, ShardingConfig, Mapping[str, Any] | None], Loader]
"""Creates a rank's loader from the case, the rank, the sharding settings and the state to resume from."""


def draw_case(chance: random.Random) -> Case:
    policy = chance.choice(["split", "repeat", "drop"])
    create = chance.choice([BatchingConfig.throughput, BatchingConfig.predictable])
    return Case(
        lengths={f"s{number}": chance.randint(1, 20) for number in range(chance.randint(12, 60))},
        config=create(chance.choice([20, 40, 80]), (8,), 20, chance.randrange(100)),
        packing=chance.choice([None, PackingConfig(max_length=20)]),
        policy=policy,
        balance=chance.random() < 0.5,
        # What `drop` leaves out at the end of an epoch can be resumed only until the next epoch begins.
        num_epochs=1 if policy == "drop" else 2,
    )


def check_rank_changes(seed: int, open_loader: OpenLoader) -> None:
    """Train on up to five numbers of ranks in turn, and check that every epoch has every sample once."""
    chance = random.Random(seed)
    case = draw_case(chance)
    used: set[tuple[int, str]] = set()
    state: Mapping[str, Any] | None = None
    ranks = 0
    num_changes = chance.randint(1, 4)
    for change in range(num_changes + 1):
        is_last = change == num_changes
        # With `drop`, only a single rank leaves nothing out.
        others = [count for count in (1, 1, 2, 3, 4) if count != ranks]
        ranks = 1 if is_last and case.policy == "drop" else chance.choice(others)
        max_steps = 10**9 if is_last else chance.randint(0, 8)
        try:
            batches, state = _train(case, open_loader, ranks, max_steps, state)
        except ValueError as error:
            if case.policy != "drop" or "because no batch would be left" not in str(error):
                raise
            ranks = 1
            batches, state = _train(case, open_loader, ranks, max_steps, state)
        repeated_batches = Counter(batches)
        repeated_batches.subtract(set(batches))
        assert repeated_batches.total() < ranks * case.num_epochs
        # Unless the policy is `repeat`, only batches that cannot be split may be repeated.
        assert case.policy == "repeat" or all(batch.num_rows == 1 for batch in +repeated_batches)
        names = Counter(name for batch in set(batches) for name in batch.samples)
        repeated = {name for name, count in names.items() if count > 1} | (used & names.keys())
        assert not repeated, f"seed {seed}: {len(repeated)} of {case.num_samples} samples are repeated"
        used |= names.keys()
    lost = case.num_samples - len(used)
    assert not lost, f"seed {seed}: {lost} of {case.num_samples} samples are lost"


def _train(
    case: Case, open_loader: OpenLoader, ranks: int, max_steps: int, state: Mapping[str, Any] | None
) -> tuple[list[UsedBatch], Mapping[str, Any]]:
    """Return the batches of all ranks in the next steps, and the state after them."""
    spec = ShardingConfig(world_size=ranks, policy=case.policy, balance=case.balance)
    loaders = [open_loader(case, rank, spec, state) for rank in range(ranks)]
    used: list[UsedBatch] = []
    for _ in range(max_steps):
        step = [batch for loader in loaders if (batch := next(loader.batches, None)) is not None]
        assert len(step) in (0, ranks), "the ranks have different numbers of batches"
        if not step:
            break
        used += step
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert all(other == states[0] for other in states), "the ranks have different states"
    return used, states[0]
