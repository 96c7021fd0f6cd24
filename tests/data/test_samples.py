"""Samples, datasets of samples and sample files."""

import copy
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    Sample,
    TokenDataset,
    collate,
    load_samples,
    save_samples,
)
from phalanx.data.samples import SampleInfo
from phalanx.io.checksum import CorruptFileError
from tests.helpers.sample_cases import sample, samples


@pytest.mark.parametrize("kind", [tuple, list, np.array, lambda values: np.array(values, np.uint16)])
def test_tokens_can_be_any_sequence_of_integers(kind: Any):
    created = sample(input_ids=kind([7, 8, 9]), loss_mask=kind([0, 1, 1]), segment_ids=kind([0, 0, 1]))
    assert created.input_ids.dtype == np.int32 and created.loss_mask.dtype == np.int8
    assert created.input_ids.tolist() == [7, 8, 9] and created.loss_mask.tolist() == [0, 1, 1]
    assert (created.length, created.num_loss_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_mask": (0, 1)}, "sample 'a': 3 input_ids but 2 entries in loss_mask"),
        ({"loss_mask": (0, 1, 2)}, r"loss_mask\[2\] must be 0 or 1, got 2"),
        ({"input_ids": (1, 2, -3)}, "input_ids must be between 0 and 2147483647, got -3"),
        ({"input_ids": (1, 2, 2**31)}, "input_ids must be between 0 and 2147483647, got 2147483648"),
        ({"input_ids": (1, 2, 3.5)}, "input_ids must be a list of integers"),
        ({"input_ids": (), "loss_mask": ()}, "at least one token"),
        ({"segment_ids": (0, 0)}, "3 input_ids but 2 entries in segment_ids"),
        ({"difficulty": 1.1}, "difficulty must be between 0 and 1, got 1.1"),
        ({"reward": float("inf")}, "reward must be finite"),
        ({"priority": -1.0}, "priority must be finite and at least 0"),
        ({"step_index": -1}, "step_index must be between 0"),
        ({"episode_id": "a\0b"}, "must not contain a NUL"),
        ({"origin": "radio"}, "'radio' is not a valid SampleOrigin"),
    ],
)
def test_invalid_samples_are_rejected(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        sample(**fields)


def test_timestamp_is_ignored_in_comparisons():
    assert sample(timestamp=datetime(2024, 2, 29, tzinfo=UTC)) == sample()
    assert sample() != sample(length=4) and sample() != "a"


@settings(deadline=None)
@given(samples())
def test_samples_are_restored_from_json(created: Sample):
    assert Sample.from_dict(json.loads(json.dumps(created.to_dict()))) == created


@pytest.mark.parametrize("suffix", [".jsonl", ".npz"])
def test_lone_surrogate_is_read_back(tmp_path: Path, suffix: str):
    path = tmp_path / f"samples{suffix}"
    save_samples(path, [Sample("a\ud800b", np.array([1, 2], np.int32), np.array([1, 1], np.int8))])
    assert [sample.sample_id for sample in load_samples(path)] == ["a\ud800b"]


def test_fields_of_earlier_versions_are_rejected():
    with pytest.raises(ValueError, match="'source', which was renamed to 'origin'"):
        Sample.from_dict({**sample().to_dict(), "source": "gym"})
    with pytest.raises(ValueError, match="no field 'color'"):
        Sample.from_dict({**sample().to_dict(), "color": 1})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(created=st.lists(samples(), max_size=5))
@pytest.mark.parametrize("suffix", [".jsonl", ".npz"])
def test_sample_files_are_read_back_unchanged(tmp_path: Path, suffix: str, created: list[Sample]):
    path = tmp_path / f"a{suffix}"
    assert save_samples(path, created) == len(created)
    assert load_samples(path) == created


def test_corrupt_sample_files_are_rejected(tmp_path: Path):
    save_samples(tmp_path / "a.npz", [sample()])
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    with pytest.raises(CorruptFileError, match=r"a\.npz"):
        load_samples(tmp_path / "a.npz")
    (tmp_path / "b.jsonl").write_text('{"sample_id": "a"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl:1: not a sample: a sample needs the field 'input_ids'"):
        load_samples(tmp_path / "b.jsonl")


def test_dataset_is_a_mapping_and_can_be_collated():
    created = [sample(f"s{n}", length=1 + n % 7) for n in range(30)]
    dataset = TokenDataset.from_samples(created)
    assert len(dataset) == 30 and dataset["s4"] == created[4] and "nothing" not in dataset
    plan = BatchPlanBuilder(dataset.lengths, BatchingConfig.throughput(32, (4,), 8)).build()
    for spec in plan.batches():
        ours, theirs = collate(spec, dataset), collate(spec, {s.sample_id: s for s in created})
        for name in ours.keys():  # noqa: SIM118 - a batch is not iterable
            np.testing.assert_array_equal(ours[name], theirs[name])
    with pytest.raises(ValueError, match="sample id 's0' occurs more than once"):
        TokenDataset.from_samples([created[0], created[0]])


def test_columns_are_collated():
    created = {
        f"s{n}": Sample(f"s{n}", [n + 1] * (n + 1), [1] * (n + 1), {"logps": np.full(n + 1, n + 0.5)})
        for n in range(4)
    }
    plan = BatchPlanBuilder(
        {k: s.length for k, s in created.items()}, BatchingConfig.throughput(64, (2,), 4)
    ).build()
    batch = collate(next(plan.batches()), created, num_rows=6)
    assert batch["logps"].shape == batch.input_ids.shape and len(batch) == 6
    assert (batch["logps"][batch.segment_ids > 0] == batch.input_ids[batch.segment_ids > 0] - 0.5).all()


def test_samples_can_be_pickled_and_copied_and_are_immutable():
    created = Sample("a", [1, 2], [0, 1], {"weight": [0.5, 1.0]}, SampleInfo(reward=1.0))
    assert pickle.loads(pickle.dumps(created)) == copy.deepcopy(created) == created
    assert hash(pickle.loads(pickle.dumps(created))) == hash(created)
    without_info = Sample("a", [1, 2], [0, 1])
    assert pickle.loads(pickle.dumps(without_info)) == copy.deepcopy(without_info) == without_info
    with pytest.raises(AttributeError):
        created.sample_id = "b"  # type: ignore[misc]
