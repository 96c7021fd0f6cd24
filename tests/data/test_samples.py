"""Samples, metrics and what the package offers."""

import copy
import json
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import phalanx.data
from phalanx.data import (
    EpisodeStatus,
    OfflineDatasetStream,
    SampleSource,
    SampleStream,
    StreamMetrics,
    StreamSample,
    StreamState,
)
from tests.helpers.sample_cases import sample, samples


def test_a_sample_has_the_fields_that_it_was_made_of() -> None:
    made = StreamSample(
        input_ids=(1, 2, 3, 4, 5),
        loss_mask=(0, 0, 1, 1, 1),
        sample_id="sudoku_42_step0",
        dataset_id="puzzle_arcade",
        source=SampleSource.GYM,
        episode_id="sudoku_42",
        step_index=0,
        difficulty=0.3,
        success=True,
    )
    assert made.input_ids == (1, 2, 3, 4, 5)
    assert made.loss_mask == (0, 0, 1, 1, 1)
    assert (made.sample_id, made.dataset_id, made.episode_id) == (
        "sudoku_42_step0",
        "puzzle_arcade",
        "sudoku_42",
    )
    assert (made.source, made.step_index, made.difficulty, made.success) == (SampleSource.GYM, 0, 0.3, True)
    assert (made.segment_ids, made.episode_status, made.total_steps, made.reward) == (None, None, None, None)
    assert (made.length, made.num_loss_tokens, made.replay_count, made.priority) == (5, 3, 0, 1.0)
    assert made.is_gym_sample
    assert not made.is_replay


@pytest.mark.parametrize("kind", [tuple, list, np.array, lambda v: np.array(v, np.uint16)])
def test_tokens_may_be_any_sequence_of_integers(kind: Any) -> None:
    made = sample(input_ids=kind([7, 8, 9]), loss_mask=kind([0, 1, 1]), segment_ids=kind([0, 0, 1]))
    assert (made.input_ids, made.loss_mask, made.segment_ids) == ((7, 8, 9), (0, 1, 1), (0, 0, 1))
    assert {type(token) for token in made.input_ids} == {int}
    np.testing.assert_array_equal(made.tokens, np.array([7, 8, 9], np.int32))
    np.testing.assert_array_equal(made.mask, np.array([0, 1, 1], np.uint8))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss_mask": (0, 1)}, "sample 'a': 3 input_ids but 2 in loss_mask"),
        ({"loss_mask": (0, 1, 2)}, "loss_mask must hold 0 and 1 only, got 2"),
        ({"loss_mask": (0, 1, -1)}, "loss_mask must hold 0 and 1 only"),
        ({"loss_mask": (0, 1, 0.5)}, "loss_mask must hold 0 and 1 only"),
        ({"loss_mask": np.array([0, 1, 0.5])}, "loss_mask must hold 0 and 1 only"),
        ({"loss_mask": np.array([0, 1, 257])}, "loss_mask must hold 0 and 1 only"),
        ({"input_ids": (1, 2, -3)}, "input_ids must not be negative, got -3"),
        ({"input_ids": (1, 2, 2**31)}, "input_ids must be integers from 0 to 2147483647"),
        ({"input_ids": (1, 2, 3.5)}, "input_ids must be integers"),
        ({"input_ids": np.array([1, 2, -3])}, "input_ids must be integers from 0 to 2147483647, got -3"),
        ({"input_ids": np.array([1.0, 2.0, 3.0])}, "input_ids must be integers"),
        ({"input_ids": (), "loss_mask": ()}, "at least one token"),
        ({"segment_ids": (0, 0)}, "3 input_ids but 2 segment_ids"),
        ({"difficulty": 1.1}, "difficulty must lie between 0 and 1, got 1.1"),
        ({"difficulty": float("nan")}, "difficulty must lie between 0 and 1"),
        ({"reward": float("inf")}, "reward must be a finite number"),
        ({"priority": -1.0}, "priority must be a finite number of at least 0"),
        ({"step_index": -1}, "count from 0"),
        ({"total_steps": 2**31}, "a number does not fit"),
        ({"episode_id": "a\0b"}, "ids must not hold a NUL"),
        ({"source": "radio"}, "'radio' is not a valid SampleSource"),
    ],
)
def test_a_sample_that_makes_no_sense_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sample(**fields)


def test_a_sample_cannot_be_changed() -> None:
    made = sample()
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.reward = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        made.tokens[0] = 5


def test_a_replay_counts_and_says_so() -> None:
    again = sample(reward=0.5).with_replay().with_replay()
    assert (again.source, again.replay_count, again.is_replay) == (SampleSource.REPLAY, 2, True)
    assert again.replace(source=SampleSource.GYM, replay_count=0) == sample(reward=0.5)


def test_time_is_kept_to_the_microsecond_and_does_not_count() -> None:
    then = datetime(2024, 2, 29, 12, 0, 0, 123457, tzinfo=timezone(timedelta(hours=2)))
    assert sample(timestamp=then).timestamp == then
    assert sample(timestamp=then).timestamp.tzinfo is UTC
    assert sample(timestamp=then) == sample()
    assert sample() != sample(length=4)
    assert sample() != "a"


@settings(deadline=None)
@given(samples())
def test_a_sample_survives_json_pickle_and_copying(made: StreamSample) -> None:
    assert StreamSample.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert StreamSample.from_dict(made.to_dict()).timestamp == made.timestamp
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert hash(made.replace()) == hash(made)


def test_a_dictionary_that_is_no_sample_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="a sample needs 'loss_mask'"):
        StreamSample.from_dict({"input_ids": [1]})
    with pytest.raises(ValueError, match="no field 'color'"):
        StreamSample.from_dict({**sample().to_dict(), "color": 3})


def test_metrics_count_samples_and_episodes() -> None:
    metrics = StreamMetrics()
    metrics.record_sample(sample(length=2, difficulty=0.5, reward=1.0))
    metrics.record_sample(sample(length=4))
    metrics.record_filtered()
    metrics.record_error()
    metrics.record_episode(success=True)
    metrics.record_episode(success=False)
    metrics.total_time_seconds = 2.0
    assert (metrics.samples_total, metrics.samples_errored, metrics.total_tokens) == (3, 1, 6)
    assert metrics.to_dict() == {
        "samples_produced": 2,
        "samples_filtered": 1,
        "filter_rate": 1 / 3,
        "samples_per_second": 1.0,
        "tokens_per_second": 3.0,
        "mean_length": 3.0,
        "mean_difficulty": 0.5,
        "mean_reward": 1.0,
        "success_rate": 0.5,
        "episodes_completed": 2,
    }
    assert (metrics.min_length_seen, metrics.max_length_seen, metrics.total_loss_tokens) == (2, 4, 2)
    assert StreamMetrics().to_dict()["mean_length"] == 0.0


def test_a_stream_is_known_by_what_it_offers() -> None:
    stream = OfflineDatasetStream([sample()])
    assert isinstance(stream, SampleStream)
    assert stream.state is StreamState.IDLE
    assert not isinstance([sample()], SampleStream)


def test_every_public_name_is_there_and_is_loaded_when_asked_for() -> None:
    for name in phalanx.data.__all__:
        assert getattr(phalanx.data, name) is not None
    with pytest.raises(AttributeError, match="attribute Nothing"):
        phalanx.data.Nothing  # noqa: B018
    code = "import sys, phalanx.data; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_kinds_have_the_names_that_users_know() -> None:
    assert [source.value for source in SampleSource] == ["offline", "gym", "replay", "synthetic"]
    assert [status.value for status in EpisodeStatus] == [
        "pending",
        "running",
        "success",
        "failure",
        "timeout",
        "error",
    ]
