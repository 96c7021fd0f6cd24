"""What programs do in a world of faults, and what must hold whatever happens: see `simulate`.

Each runs processes that are killed or fail until one gets to the end, and looks at the disk in between.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchReader,
    BatchWriter,
    LengthCache,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    Sample,
    ShardingConfig,
    ShuffledDatasetSource,
    StreamingPlan,
    StreamingPlanConfig,
    load_batch_plan,
    save_batch_plan,
)
from phalanx.io.atomic import atomic_write, remove_stale_temporaries
from phalanx.io.checksum import read_verified_json, write_json
from tests.faults.puzzle_server_scenarios import PUZZLE_SERVER
from tests.faults.simulator import MOST_PROCESSES, World

LENGTHS = {f"s{n}": 1 + n % 5 for n in range(24)}
PLANS = [BatchPlanBuilder(LENGTHS, BatchingConfig.throughput(12, seed=n)).build(1) for n in range(3)]
SAMPLES = {name: {"input_ids": list(range(1, 1 + length))} for name, length in LENGTHS.items()}


def counter(world: World) -> None:
    """A number that is raised and saved: what was acknowledged is never lost, and nothing torn is read."""
    path = world.folder / "state.json"
    acknowledged = tried = 0
    for _ in range(4):
        with world.process():
            for value in range(tried + 1, tried + 5):
                tried = value
                try:
                    with atomic_write(path, "w", checksum=True) as file:
                        write_json(file, {"value": value, "padding": "x" * world.chance.randrange(9000)})
                except OSError:
                    continue
                acknowledged = value
        if path.exists() or acknowledged:
            found = read_verified_json(path)["value"]
            assert acknowledged <= found <= tried, f"{acknowledged} was acknowledged, {found} was found"
            acknowledged = found
    _no_leftovers(world)


def overwritten_plan(world: World) -> None:
    """A plan that is replaced again and again is always one of them, whole."""
    path = world.folder / "train.plan"
    prints = [plan.fingerprint for plan in PLANS]
    saved = False
    for _ in range(3):
        with world.process():
            for plan in world.chance.sample(PLANS, 2):
                try:
                    save_batch_plan(plan, path, overwrite=True)
                except OSError:
                    continue
                saved = True
        if saved or path.exists():
            assert load_batch_plan(path, verify=True).fingerprint in prints
    _no_leftovers(world)


def batch_files(world: World) -> None:
    """Batch files that are written in pieces are those that are written at once."""
    whole = world.folder / "whole"
    BatchWriter(PLANS[0], SAMPLES, whole).write_all()
    world.settle()
    _until_done(world, lambda: BatchWriter(PLANS[0], SAMPLES, world.folder / "out").write_all())
    assert BatchReader(world.folder / "out").verify() == BatchReader(whole).verify()
    for path in whole.rglob("*.npz"):
        assert (world.folder / "out" / path.relative_to(whole)).read_bytes() == path.read_bytes()


def length_cache(world: World) -> None:
    """A cache that is filled in many processes has every length once; what was synced is never lost."""
    path = world.folder / "lengths.jsonl"
    kept: set[str] = set()

    def add() -> None:
        with LengthCache.load_or_create(path, "bytes") as cache:
            assert kept <= set(cache.get_all()), "what was synced is gone"
            for name, length in LENGTHS.items():
                if name not in cache.get_all() and world.chance.random() < 0.6:
                    cache.add(name, length)
        kept.update(cache.get_all())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a torn line that was removed is said aloud
        for _ in range(5):
            with world.process():
                try:
                    add()
                except OSError:
                    continue
        found = LengthCache.load_or_create(path, "bytes").get_all()
    assert kept <= set(found)
    assert all(LENGTHS[name] == length for name, length in found.items())


def changing_ranks(world: World) -> None:
    """Training by a plan, killed and resumed with other numbers of ranks: each sample is learned once."""
    path, plan = world.folder / "place.json", PLANS[1]
    balance = world.chance.random() < 0.5
    history: list[list[int]] = []  # ranks, and the steps that they made
    for _ in range(MOST_PROCESSES):
        left = _left(plan, history, balance)
        ranks = world.chance.choice([1, 2, 4])
        steps = len(left.shard(0, ranks, balance=balance).get_epoch(0))
        if not steps:
            break
        with world.process():
            done = 0
            while done < steps:
                try:
                    with atomic_write(path, "w", checksum=True) as file:
                        write_json(file, {"history": [*history, [ranks, done + 1]]})
                except OSError:
                    continue
                done += 1
        found = read_verified_json(path)["history"] if path.exists() else []
        before = [*history, [ranks, done]] if done else history
        # The last step may have been saved without the process getting to know.
        assert found in (before, [*history, [ranks, done + 1]]), "acknowledged steps are lost"
        history = found
    learned: list[str] = []
    for place, (ranks, steps) in enumerate(history):
        begun = _left(plan, history[:place], balance)
        shards = [begun.shard(rank, ranks, balance=balance) for rank in range(ranks)]
        parts = [list(itertools.islice(shard.batches(), steps)) for shard in shards]
        # Where batches do not come out even, some are dealt twice in the last step of all.
        stage = {name for part in parts for spec in part for name in spec.sample_ids}
        assert not stage & set(learned), "a sample was learned again"
        learned += stage
    untouched = {name for spec in _left(plan, history, balance).get_epoch(0) for name in spec.sample_ids}
    assert not untouched & set(learned)
    assert untouched | set(learned) == set(LENGTHS)


def _left(plan: Any, history: list[list[int]], balance: bool) -> Any:
    for ranks, steps in history:
        plan = plan.remaining(0, steps, ranks, balance=balance)
    return plan


def streaming_ranks(world: World) -> None:
    """The same with a streaming plan: each position of its source is used once."""
    path = world.folder / "place.json"
    config = StreamingPlanConfig(packing=PackingConfig(max_length=10), packs_per_batch=1, packs_per_buffer=4)
    plan = StreamingPlan({"all": ShuffledDatasetSource(LENGTHS, num_epochs=2)}, config)
    balance = world.chance.random() < 0.5
    state = plan.batches().state_dict()
    learned: list[int] = []
    ended = False
    while not ended:
        ranks = world.chance.choice([1, 2, 3])
        with world.process(within=20):
            while not ended:
                batches, after = list[Any](), state
                for rank in range(ranks):  # every rank plans for itself, and takes its own packs
                    own = plan.batches(rank, ShardingConfig(world_size=ranks, balance=balance))
                    own.load_state_dict(state)
                    batches.append(next(own, None))
                    after = own.state_dict()
                ended = batches[0] is None
                if ended:
                    break
                step = {int(name.partition("/")[2]) for batch in batches for name in batch.sample_ids}
                try:
                    with atomic_write(path, "w", checksum=True) as file:
                        write_json(file, {"plan": after, "learned": [*learned, *sorted(step)]})
                except OSError:
                    continue
                learned += sorted(step)
                state = after
        found = read_verified_json(path) if path.exists() else {"plan": state, "learned": []}
        assert found["learned"][: len(learned)] == learned, "acknowledged steps are lost"
        learned, state = found["learned"], found["plan"]
    assert sorted(learned) == list(range(2 * len(LENGTHS))), "not every sample came once an epoch"


def replay(world: World) -> None:
    """A buffer that is saved now and then comes back as it was at a save, draws included."""
    path = world.folder / "buffer.npz"
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=10, seed=3))
    for number in range(4):
        tried, acknowledged = [_state(ReplayBuffer.load(path))] if path.exists() else [], 0
        with world.process():
            for place in range(3):
                buffer.add(_sample(f"{number}-{place}"))
                tried.append(_state(buffer))
                try:
                    buffer.save(path)
                except OSError:
                    continue
                acknowledged = len(tried) - 1
        if path.exists():
            buffer = ReplayBuffer.load(path)
            assert _state(buffer) in tried[acknowledged:], "the buffer is none that was saved"


def _state(buffer: ReplayBuffer) -> tuple[list[str], int, str]:
    return (
        [one.sample_id for one in buffer.get_all()],
        buffer.total_added,
        str(buffer._draw_rng.bit_generator.state),
    )


def _sample(name: str) -> Sample:
    return Sample(name, input_ids=(1, 2, 3), loss_mask=(0, 1, 1))


def _until_done(world: World, work: Callable[[], object]) -> None:
    for _ in range(MOST_PROCESSES):
        done = False
        with world.process():
            try:
                work()
                done = True
            except OSError:
                continue
        if done:
            return
    work()


def _no_leftovers(world: World) -> None:
    """A later process removes what the killed ones left."""
    remove_stale_temporaries(world.folder)
    assert not list(world.folder.glob(".*.tmp"))


SCENARIOS: dict[str, Callable[[World], None]] = {
    function.__name__: function
    for function in (
        counter,
        overwritten_plan,
        batch_files,
        length_cache,
        changing_ranks,
        streaming_ranks,
        replay,
        *PUZZLE_SERVER,
    )
}
