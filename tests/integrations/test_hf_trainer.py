"""The Hugging Face trainer on the batches of a plan: epochs, number of steps, and resuming."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from phalanx.data import BatchingConfig, BatchPlanBuilder, PackingConfig  # noqa: E402
from phalanx.integrations.hf_trainer import PlanTrainerMixin  # noqa: E402
from phalanx.integrations.torch_data import PlanDataset  # noqa: E402

SAMPLES = {str(row): {"input_ids": [1 + row % 7, 2, 3, 4]} for row in range(16)}

pytestmark = pytest.mark.filterwarnings("default")


class PlanTrainer(PlanTrainerMixin, transformers.Trainer):
    """A trainer that trains on the batches of a plan."""


def create_trainer(folder: Path, **settings: Any) -> PlanTrainer:
    """Create a trainer for a plan of two epochs with four batches each."""
    config = BatchingConfig.throughput(token_budget=16, bucket_edges=(4,), max_sample_length=8)
    lengths = dict.fromkeys(SAMPLES, 4)
    plan = BatchPlanBuilder(lengths, config, packing=PackingConfig(max_length=8)).build(2)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        logging_steps=1,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )
    return PlanTrainer(model=model, args=args, batches=PlanDataset(plan, SAMPLES, all_epochs=True))


def epochs(trainer: PlanTrainer) -> list[float]:
    return [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]


def test_epoch_continues_after_a_resume(tmp_path: Path, one_torch_thread: None) -> None:
    create_trainer(tmp_path).train()
    resumed = create_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert epochs(resumed) == [step / 8 for step in range(1, 9)]


def test_max_steps_stops_early_and_can_be_increased(tmp_path: Path, one_torch_thread: None) -> None:
    trainer = create_trainer(tmp_path, max_steps=4)
    trainer.train()
    assert epochs(trainer) == [1 / 8, 2 / 8, 3 / 8, 4 / 8]
    resumed = create_trainer(tmp_path, max_steps=6)
    resumed.train(resume_from_checkpoint=True)
    assert epochs(resumed) == [step / 8 for step in range(1, 7)]


def test_max_steps_larger_than_the_plan_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps is 9, but the plan has only 8 steps"):
        create_trainer(tmp_path, max_steps=9)


@pytest.mark.parametrize("exists", [False, True])
def test_resuming_without_a_checkpoint_is_an_error(tmp_path: Path, exists: bool) -> None:
    trainer = create_trainer(tmp_path / "out")
    if exists:
        (tmp_path / "out").mkdir(exist_ok=True)
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        trainer.train(resume_from_checkpoint=True)
