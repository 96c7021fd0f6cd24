"""The replay buffer: eviction, sampling, saving, and concurrent access."""

import threading
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from phalanx.data import (
    EvictionPolicy,
    ReplayBuffer,
    ReplayBufferConfig,
    Sample,
    SampleFilter,
    SampleOrigin,
    save_samples,
)
from phalanx.io.checksum import CorruptFileError
from tests.helpers.file_damage import seal
from tests.helpers.sample_cases import sample


def buffer_of(*samples: Sample, **settings: object) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayBufferConfig(**settings))
    buffer.add_batch(samples)
    return buffer


def names(samples: list[Sample]) -> list[str]:
    return [one.sample_id for one in samples]


def test_fifo_evicts_the_oldest_sample() -> None:
    buffer = buffer_of(*(sample(name) for name in "abcde"), max_size=3)
    assert names(buffer.get_all()) == ["c", "d", "e"]
    assert (buffer.size, buffer.total_added, buffer.total_evicted, buffer.is_full) == (3, 5, 2, True)


def test_lowest_priority_is_evicted_first() -> None:
    buffer = buffer_of(
        sample("a", priority=3.0),
        sample("b"),
        sample("c", priority=2.0),
        max_size=3,
        eviction_policy="priority",
    )
    buffer.add(sample("d", priority=0.5))
    assert names(buffer.get_all()) == ["a", "c", "d"]
    buffer.add(sample("e"), priority=9.0)
    assert names(buffer.get_all()) == ["a", "c", "e"]


def test_random_eviction_depends_only_on_the_seed() -> None:
    def remaining(seed: int, step: int) -> list[str]:
        buffer = ReplayBuffer(
            ReplayBufferConfig(max_size=20, eviction_policy=EvictionPolicy.RANDOM, seed=seed)
        )
        for number in range(100):
            buffer.add(sample(str(number)))
            if number % step == 0:
                assert buffer.size == min(number + 1, 20)
        return names(buffer.get_all())

    # Reading the statistics in between does not change the result.
    assert remaining(1, 1) == remaining(1, 7) == remaining(1, 1000)
    assert remaining(1, 1) != remaining(2, 1)
    ages = [100 - int(name) for name in remaining(1, 1)]
    assert max(ages) > 22


def test_sampling_is_proportional_to_priority_to_the_power_of_alpha() -> None:
    buffer = buffer_of(
        sample("a", priority=1.0), sample("b", priority=4.0), sample("z", priority=0.0), priority_alpha=0.5
    )
    counts = Counter(names(buffer.sample(3000)))
    assert set(counts) == {"a", "b"}
    assert counts["b"] / 3000 == pytest.approx(2 / 3, abs=0.04)
    uniform = Counter(
        names(buffer_of(sample("a"), sample("b", priority=99.0), priority_alpha=0.0).sample(3000))
    )
    assert uniform["a"] / 3000 == pytest.approx(1 / 2, abs=0.04)


def test_importance_weights_correct_for_priorities() -> None:
    buffer = buffer_of(sample("a", priority=1.0), sample("b", priority=4.0), priority_alpha=1.0)
    drawn = buffer.draw(64, beta=0.5)
    expected = {"a": 1.0, "b": 0.5}
    assert drawn.weights.tolist() == [expected[name] for name in names(drawn.samples)]
    assert set(names(drawn.samples)) == {"a", "b"}


@pytest.mark.parametrize("rare", [False, True])
def test_filtered_sampling_is_proportional_to_priority(rare: bool) -> None:
    """Rare matches are found by a scan and common ones by rejection sampling."""
    buffer = ReplayBuffer(ReplayBufferConfig(priority_alpha=1.0))
    for number in range(3000 if rare else 4):
        buffer.add(sample(f"easy{number}", difficulty=0.2))
    buffer.add_batch([sample("hard", difficulty=0.7, priority=3.0), sample("hardest", difficulty=0.9)])
    buffer.add(sample("unknown"))
    counts = Counter(names(buffer.sample(2000, min_difficulty=0.7)))
    assert set(counts) == {"hard", "hardest"}
    assert counts["hard"] / 2000 == pytest.approx(3 / 4, abs=0.04)
    assert set(names(buffer.sample(50, min_difficulty=0.7, max_difficulty=0.8))) == {"hard"}
    assert buffer.sample(5, min_difficulty=0.95) == []


def test_samples_can_be_filtered_by_success_origin_and_length() -> None:
    buffer = buffer_of(
        sample("won", success=True),
        sample("lost", success=False, length=9),
        sample("made", origin="synthetic"),
    )
    assert set(names(buffer.sample(9, success=True))) == {"won"}
    assert set(names(buffer.sample(9, success=False))) == {"lost"}
    assert set(names(buffer.sample(9, origin=SampleOrigin.SYNTHETIC))) == {"made"}
    assert "lost" not in names(buffer.sample(40, max_length=5))
    assert names(buffer.filter(SampleFilter(success=False))) == ["lost"]
    assert names(buffer.filter(SampleFilter(origin=SampleOrigin.ENVIRONMENT))) == ["won", "lost"]
    assert names(buffer.filter(SampleFilter(max_length=3))) == ["won", "made"]
    assert names(buffer.filter(lambda one: one.length == 9)) == ["lost"]


def test_drawn_samples_are_marked_as_replays() -> None:
    buffer = buffer_of(sample("a", reward=0.5))
    assert buffer.sample(1) == [sample("a", reward=0.5, origin="replay", replay_count=1)]
    assert buffer.sample(1)[0].info.replay_count == 2
    assert buffer.get_all()[0].info.origin is SampleOrigin.ENVIRONMENT


def test_sampling_requires_the_minimum_number_of_samples() -> None:
    buffer = buffer_of(sample("a"), min_samples_before_sampling=2)
    assert (buffer.can_sample, buffer.sample(3), buffer.sample_uniform(3)) == (False, [], [])
    buffer.add(sample("b"))
    assert len(buffer.sample(3)) == 3
    assert sorted(names(buffer.sample_uniform(3))) == ["a", "b"]
    assert ReplayBuffer().sample(3) == []


def test_invalid_requests_are_rejected() -> None:
    buffer = buffer_of(sample("a", priority=0.0, difficulty=0.5))
    with pytest.raises(ValueError, match="all 1 samples have priority 0"):
        buffer.sample(1)
    with pytest.raises(ValueError, match="all 1 samples that match the filter have priority 0"):
        buffer.sample(1, min_difficulty=0.1)
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        buffer.sample(-1)
    with pytest.raises(ValueError, match="1 samples but 2 priorities"):
        buffer.add_batch([sample()], [1.0, 2.0])
    handles = buffer_of(sample("b")).draw(2).handles
    with pytest.raises(ValueError, match="2 handles but 1 priorities"):
        buffer.update_priorities(handles, np.ones(1))
    with pytest.raises(ValueError, match="finite and at least 0"):
        buffer.update_priorities(handles, np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="alpha must be between 0 and 1"):
        buffer.update_priorities_by_reward(2.0)
    assert not buffer.update_priority("nobody", 1.0)


def test_memory_of_a_full_buffer_is_bounded() -> None:
    """Random evictions must not leave unused memory."""
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=2000, eviction_policy=EvictionPolicy.RANDOM))
    tokens = np.arange(40_000, 40_500)
    tracemalloc.start()
    for number in range(6000):
        buffer.add(sample(str(number), input_ids=tokens, loss_mask=np.ones(500, np.uint8)))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    total_tokens = buffer.total_tokens
    assert total_tokens == 2000 * 500
    # The tokens plus 25%, and the metadata.
    assert used < 1.25 * 4 * total_tokens + 2000 * 500
    assert all(np.array_equal(one.input_ids, tokens) for one in buffer.sample(20))


def test_snapshot_is_not_affected_by_later_changes() -> None:
    buffer = buffer_of(sample("a"), sample("b", length=5), sample("a"), max_size=3)
    snapshot = buffer.snapshot()
    buffer.add_batch([sample(name) for name in "cdef"])
    buffer.clear()
    assert names(list(snapshot)) == ["a", "b", "a"]
    assert snapshot.ids == ("a", "b", "a#2")
    assert snapshot.get_lengths() == {"a": 3, "b": 5, "a#2": 3}
    assert (snapshot.size, snapshot.total_added, snapshot.total_evicted) == (3, 3, 0)
    assert snapshot[-1] == sample("a")
    with pytest.raises(IndexError, match="out of range"):
        snapshot[3]
    assert (buffer.size, buffer.total_evicted) == (0, 7)


def test_loaded_buffer_draws_the_same_samples(tmp_path: Path) -> None:
    buffer = buffer_of(
        *(sample(str(n), length=1 + n % 4, difficulty=n / 50, reward=n / 7) for n in range(50)),
        max_size=40,
        eviction_policy="random",
    )
    buffer.sample(7)
    buffer.save(tmp_path / "buffer.npz")
    loaded = ReplayBuffer.load(tmp_path / "buffer.npz")
    assert loaded.config == buffer.config
    for each in (buffer, loaded):
        each.add_batch([sample(f"new{n}") for n in range(30)])
    assert loaded.get_all() == buffer.get_all()
    assert loaded.sample(20) == buffer.sample(20)
    assert loaded.mean_reward == buffer.mean_reward
    assert loaded.total_added == 80
    empty = ReplayBuffer()
    empty.save(tmp_path / "empty.npz")
    assert ReplayBuffer.load(tmp_path / "empty.npz").size == 0


def test_corrupt_file_raises_error(tmp_path: Path) -> None:
    path = tmp_path / "buffer.npz"
    buffer_of(*(sample(str(n), length=50) for n in range(50))).save(path)
    valid = path.read_bytes()
    damaged = bytearray(valid)
    # Change a byte of the largest array, so that only the checksum detects it.
    damaged[valid.index(b"tokens.npy") + 400] ^= 1
    for content in (valid[:-100], valid[: len(valid) // 2], b"", b"hello", bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"buffer\.npz is corrupt"):
            ReplayBuffer.load(path)
    np.savez(path, header=np.frombuffer(b'{"kind": "something else"}', np.uint8))
    seal(path)
    with pytest.raises(
        CorruptFileError, match=r"buffer\.npz is not a sample file, or is from an earlier version"
    ):
        ReplayBuffer.load(path)
    with pytest.raises(FileNotFoundError, match=r"No such file .*nothing\.npz"):
        ReplayBuffer.load(tmp_path / "nothing.npz")
    save_samples(path, [sample()])
    with pytest.raises(CorruptFileError, match="no replay buffer; read it with load_samples"):
        ReplayBuffer.load(path)


def test_inconsistent_arrays_raise_error(tmp_path: Path) -> None:
    path = tmp_path / "buffer.npz"
    buffer_of(sample("a"), sample("b")).save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    for name, invalid, message in (
        ("length", np.array([3, 4], np.int32), r"buffer\.npz is corrupt: tokens and length do not match"),
        ("sizes", np.array([[6, 8], [8, 8]]), "tokens and sizes do not match"),
        ("reward", np.zeros(3), "reward does not have 2 values of float64"),
    ):
        np.savez(path, **{**arrays, name: invalid})
        seal(path)
        with pytest.raises(CorruptFileError, match=message):
            ReplayBuffer.load(path)


def test_concurrent_access_loses_no_samples() -> None:
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=700))
    errors: list[Exception] = []

    def add(thread: int) -> None:
        for number in range(500):
            buffer.add(sample(f"{thread}-{number}", length=1 + number % 5, difficulty=0.5))

    def read() -> None:
        try:
            for _ in range(15):
                drawn = buffer.draw(8)
                buffer.update_priorities(drawn.handles, np.full(len(drawn.samples), 2.0))
                snapshot = buffer.snapshot()
                assert len(snapshot.samples) == snapshot.size
                assert buffer.size <= 700
        except (AssertionError, ValueError) as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (buffer.total_added, buffer.size, buffer.total_evicted) == (2000, 700, 1300)
    held = buffer.get_all()
    assert len({one.sample_id for one in held}) == 700
    for thread in range(4):
        numbers = [int(name.split("-")[1]) for name in names(held) if name.startswith(f"{thread}-")]
        assert numbers == sorted(numbers)
    assert buffer.total_tokens == sum(one.length for one in held)
