"""Offline streams of chuk-lazarus, and sample files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.compat.chuk_lazarus.data.batching.streaming import (
    AsyncOfflineDatasetStream,
    OfflineDatasetStream,
    SampleSource,
    StreamSample,
    StreamState,
)
from phalanx.data import ReplayBuffer, save_samples
from tests.helpers.sample_cases import sample, samples


def stream_sample(*args: Any, **fields: Any) -> StreamSample:
    return StreamSample.from_sample(sample(*args, **fields))


def names(stream: OfflineDatasetStream) -> list[str]:
    return [one.sample_id for one in stream]


@settings(max_examples=25, deadline=None)
@given(st.lists(samples(), max_size=5), st.sampled_from([".npz", ".jsonl"]))
def test_written_samples_are_read_back(made: list[StreamSample], suffix: str) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, f"samples{suffix}")
        assert save_samples(path, made) == len(made)
        read = list(OfflineDatasetStream(path))
    assert read == [StreamSample.from_sample(one) for one in made]
    assert [one.timestamp for one in read] == [one.info.timestamp for one in made]


def test_stream_counts_returned_and_skipped_samples() -> None:
    stream = OfflineDatasetStream(
        [
            stream_sample("short", length=1),
            stream_sample("a"),
            stream_sample("lost", success=False),
            stream_sample("long", length=9),
        ],
        min_length=2,
        max_length=8,
        filter_failures=True,
    )
    assert stream.state is StreamState.IDLE
    assert names(stream) == ["a"]
    assert stream.state is StreamState.EXHAUSTED
    assert (stream.metrics.samples_produced, stream.metrics.samples_filtered) == (1, 3)
    assert names(stream) == []
    stream.reset()
    assert (names(stream), stream.metrics.samples_produced) == (["a"], 1)
    stream.close()
    stream.close()


def test_stream_continues_from_its_position() -> None:
    stream = OfflineDatasetStream([stream_sample(name) for name in "abc"])
    assert next(iter(stream)).sample_id == "a"
    assert stream.state is StreamState.STREAMING
    assert names(stream) == ["b", "c"]


def test_shuffled_order_depends_on_the_epoch_but_not_on_the_run() -> None:
    def epochs(seed: int) -> list[list[str]]:
        stream = OfflineDatasetStream([stream_sample(str(n)) for n in range(30)], shuffle=True, seed=seed)
        first = names(stream)
        stream.reset()
        return [first, names(stream)]

    assert epochs(1) == epochs(1)
    assert epochs(1)[0] != epochs(1)[1]
    assert epochs(1)[0] != epochs(2)[0]
    assert sorted(epochs(1)[0]) == sorted(map(str, range(30)))


def test_saved_buffer_is_read_as_a_dataset_oldest_first(tmp_path: Path) -> None:
    from phalanx.data import ReplayBufferConfig

    buffer = ReplayBuffer(ReplayBufferConfig(max_size=3))
    buffer.add_batch([sample(name) for name in "abcde"])
    buffer.save(tmp_path / "buffer.npz")
    assert names(OfflineDatasetStream(tmp_path / "buffer.npz")) == ["c", "d", "e"]


def test_rows_of_tokens_become_samples(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [{"id": "x", "input_ids": [1, 2], "loss_mask": [0, 1]}, {"id": "y", "input_ids": [3]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = OfflineDatasetStream(path)
    assert (first.sample_id, first.input_ids, first.loss_mask) == ("x", (1, 2), (0, 1))
    assert (second.loss_mask, second.dataset_id, second.source) == ((1,), "train", SampleSource.OFFLINE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sample_id": "b", "source": "gym"}', "the row has no input_ids"),
        ("{", "Expecting property name"),
        ("[1]", "expected a JSON object"),
        (json.dumps({**sample().to_dict(), "loss_mask": [1]}), "3 input_ids but 1 entries in loss_mask"),
        (json.dumps({**sample().to_dict(), "input_ids": "abc"}), "input_ids"),
        (json.dumps({**sample().to_dict(), "timestamp": "late"}), "late"),
    ],
)
def test_invalid_line_is_reported_by_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "samples.jsonl"
    save_samples(path, [sample()])
    with path.open("a") as file:
        file.write(line + "\n")
    stream = OfflineDatasetStream(path)
    with pytest.raises(ValueError, match=rf"samples\.jsonl:2: .*{message}"):
        list(stream)
    assert stream.state is StreamState.ERROR


def test_invalid_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        OfflineDatasetStream(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match=r"max_length \(1\) must be at least min_length \(2\)"):
        OfflineDatasetStream([], min_length=2, max_length=1)
    with pytest.raises(ValueError, match=r"as \.jsonl or \.npz, not '\.csv'"):
        save_samples(tmp_path / "samples.csv", [])


def test_rows_without_a_source_keep_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"sample_id": "a", "input_ids": [1, 2], "difficulty": 0.5, "success": True, "reward": 1.5}
    path.write_text(json.dumps({**row, "episode_id": "e", "step_index": 3}) + "\n")
    (found,) = OfflineDatasetStream(path)
    assert (found.difficulty, found.success, found.reward) == (0.5, True, 1.5)
    assert (found.episode_id, found.step_index, found.source) == ("e", 3, SampleSource.OFFLINE)


def test_asynchronous_stream_continues_after_a_loop_that_was_left() -> None:
    stream = AsyncOfflineDatasetStream([stream_sample(name) for name in "abc"])

    async def first() -> str:
        async for one in stream:
            return one.sample_id
        raise AssertionError("the stream is empty")

    async def read() -> list[str]:
        return [await first(), await first(), *[one.sample_id async for one in stream]]

    assert asyncio.run(read()) == ["a", "b", "c"]
