"""Renamed functions and arguments of chuk-lazarus are reported with their new names."""

import asyncio
import json
from pathlib import Path

import pytest

import phalanx.compat.chuk_lazarus.data.batching.streaming as streams
from phalanx.compat.chuk_lazarus.data.batching.streaming import (
    AsyncOfflineDatasetStream,
    OfflineDatasetStream,
    ReplayBuffer,
    ReplayBufferConfig,
    RollingBatchPlanWindow,
    WindowConfig,
    WindowState,
)
from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import GymConfig, GymEpisodeStream


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: ReplayBuffer().to_dict, r"ReplayBuffer has no to_dict: use save\(path\)"),
        (lambda: RollingBatchPlanWindow(ReplayBuffer()).build_next_window, r"await next_window\(\)"),
        (lambda: GymEpisodeStream().connect, "it connects when it is iterated"),
        (lambda: WindowState().progress, r"WindowState has no progress: use iter_from"),
        (lambda: WindowConfig().to_batching_config, "use the argument batching_config"),
        (lambda: ReplayBuffer().nonsense, "'ReplayBuffer' object has no attribute 'nonsense'"),
        (lambda: streams.nonsense, "nonsense"),
    ],
)
def test_moved_name_is_reported_with_its_new_module(ask, sentence: str):
    with pytest.raises(AttributeError, match=sentence):
        ask()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: WindowConfig(window_microbatches=3),
            "WindowConfig has no window_microbatches: use window_size",
        ),
        (lambda: WindowConfig(token_budget=9), "use the argument batching_config"),
        (lambda: GymConfig(puzzle_types=["sudoku"]), "GymConfig has no puzzle_types: use games"),
        (lambda: ReplayBufferConfig(default_priority=2.0), "the priority of each StreamSample"),
    ],
)
def test_moved_argument_is_reported_with_its_new_name(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make()


def rows(path: Path) -> Path:
    lines = [
        {"input_ids": [1, 2, 3], "meta": {"sample_id": "a", "reward": 0.5, "difficulty": "Hard"}},
        {"input_ids": [4], "loss_mask": [0], "meta": {"difficulty_score": 0.2, "success": True}},
        {"input_ids": [5, 6], "meta": {"sample_id": "c", "episode_id": "e"}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_row_metadata_becomes_fields_of_the_sample(tmp_path: Path):
    stream = OfflineDatasetStream(path=rows(tmp_path / "train.jsonl"), min_length=2)
    assert stream.count_samples() == 3
    assert stream.get_length_distribution() == {"a": 3, "train_1": 1, "c": 2}
    assert [sample.sample_id for sample in stream.peek(1)] == ["a"]
    first, second = stream
    assert (first.sample_id, first.reward, first.difficulty, first.loss_mask) == ("a", 0.5, 0.7, (1, 1, 1))
    assert (second.sample_id, second.episode_id, second.dataset_id) == ("c", "e", "train")
    assert stream.metrics.samples_filtered == 1
    (tmp_path / "bad.jsonl").write_text('{"input_ids": [1], "meta": {"difficulty": "odd"}}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl:1: difficulty must be a number or one of trivial"):
        list(OfflineDatasetStream(tmp_path / "bad.jsonl"))
    with pytest.raises(TypeError, match="needs a source"):
        OfflineDatasetStream()


def test_async_stream_returns_the_same_samples(tmp_path: Path):
    path = rows(tmp_path / "train.jsonl")

    async def ids() -> list[str]:
        async with AsyncOfflineDatasetStream(path, dataset_id="d", max_length=2) as stream:
            found = [sample.sample_id async for sample in stream]
            assert stream.metrics.samples_produced == 2 and stream.state == "exhausted"
            await stream.reset()
            assert [sample.sample_id async for sample in stream] == found
            return found

    assert asyncio.run(ids()) == ["d_1", "c"]


def test_signature_matches_the_original(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    rows = [{"id": f"s{n}", "input_ids": [1] * n} for n in range(1, 6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stream = OfflineDatasetStream(path, "d", 2, 4, False, 7)
    samples = list(stream)
    assert [sample.length for sample in samples] == [2, 3, 4] and stream.seed == 7
    buffer = ReplayBuffer()
    buffer.add_batch(samples)
    assert [one.length for one in buffer.filter(predicate=lambda sample: sample.length > 2)] == [3, 4]
    with pytest.raises(ValueError, match="set min_sample_length and max_sample_length in"):
        GymEpisodeStream(max_length=100)
