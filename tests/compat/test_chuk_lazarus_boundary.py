"""Pydantic models, saved plans, masks and offline rows of chuk-lazarus."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    BatchReader,
    BatchWriter,
    EpochPlan,
    create_segment_attention_mask,
)
from phalanx.compat.chuk_lazarus.data.batching.streaming import OfflineDatasetStream, StreamSample


@pytest.mark.parametrize("model", [BatchPlan, EpochPlan, StreamSample])
def test_plans_and_samples_are_pydantic_models(model: type) -> None:
    assert issubclass(model, BaseModel)


def test_a_plan_can_be_dumped_and_validated() -> None:
    plan = BatchPlanBuilder({"a": 3, "b": 5}, BatchingConfig.predictable(64)).build_sync(num_epochs=2)
    assert plan.model_dump()["epochs"].keys() == {0, 1}
    epoch = plan.get_epoch(0)
    assert EpochPlan.model_validate(epoch.model_dump()) == epoch


def test_writer_saves_the_plan_with_the_batches(tmp_path: Path) -> None:
    plan = BatchPlanBuilder({"a": 3, "b": 5}, BatchingConfig.predictable(64)).build_sync()
    samples = {"a": {"input_ids": [1, 2, 3]}, "b": {"input_ids": [1] * 5}}
    BatchWriter(plan, samples, tmp_path / "batches").write_all()
    assert BatchReader(tmp_path / "batches").plan.fingerprint == plan.fingerprint


def test_a_mask_of_segments_counted_from_0_is_rejected() -> None:
    with pytest.raises(ValueError, match="from 1"):
        create_segment_attention_mask([0, 0, 0, 0])


def test_rows_without_a_source_keep_their_episode(tmp_path: Path) -> None:
    row = {
        "sample_id": "a",
        "input_ids": [1, 2],
        "loss_mask": [0, 1],
        "meta": {"difficulty": 0.7, "success": True, "reward": 0.5, "episode_id": "e1"},
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (sample,) = OfflineDatasetStream(tmp_path / "rows.jsonl")
    found = (sample.difficulty, sample.success, sample.reward, sample.episode_id)
    assert found == (0.7, True, 0.5, "e1")
