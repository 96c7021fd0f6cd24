"""Plans and batch files with tokens outside the vocabulary are rejected before training starts."""

import json
from pathlib import Path

import pytest

from phalanx.config import load_config
from phalanx.data import BatchingConfig, BatchPlanBuilder, BatchWriter, save_batch_plan
from phalanx.training.sft import SFTConfig, open_data

TOKENS = {f"t{i}": [2 + (i + j) % 9 for j in range(3 + i % 5)] for i in range(20)}


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A plan of samples with token ids up to 10, its dataset, and its batch files."""
    lengths = {name: len(tokens) for name, tokens in TOKENS.items()}
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(64)).build(2)
    save_batch_plan(plan, tmp_path / "plan")
    lines = [json.dumps({"id": name, "input_ids": tokens}) + "\n" for name, tokens in TOKENS.items()]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    samples = {name: {"input_ids": tokens} for name, tokens in TOKENS.items()}
    BatchWriter(plan, samples, tmp_path / "files").write_all()
    return tmp_path


@pytest.mark.parametrize("source", ["plan", "files"])
def test_tokens_outside_the_vocabulary_are_rejected(planned: Path, source: str) -> None:
    settings = [f"data.plan={planned / source}"]
    if source == "plan":
        settings.append(f"data.planned_dataset={planned / 'data.jsonl'}")
    with pytest.raises(
        ValueError, match=r"tokens up to 10, but model\.vocab_size is 10; set model\.vocab_size=11"
    ):
        open_data(load_config(SFTConfig, None, [*settings, "model.vocab_size=10"]))
    assert open_data(load_config(SFTConfig, None, [*settings, "model.vocab_size=11"])).plan
