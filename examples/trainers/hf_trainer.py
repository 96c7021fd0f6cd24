"""Train on a batch plan with the Hugging Face Trainer, and resume with the next batch after an interruption.

python examples/trainers/hf_trainer.py

It needs transformers and accelerate (`pip install ".[trl]"`). It downloads nothing, because the model has
random weights.
"""

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from tiny_model import Samples, learned_tokens, planned, same_weights, sums, tiny_model
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from phalanx.data import BatchPlan
from phalanx.integrations.hf_trainer import PlanTrainerMixin
from phalanx.integrations.torch_data import PlanDataset


class PlanTrainer(PlanTrainerMixin, Trainer):
    """A trainer that trains on the batches of a plan."""


class Killed(TrainerCallback):
    """Callback that interrupts training after a given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def losses(trainer: Trainer) -> list[float]:
    """Return the loss of every step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@torch.no_grad()
def epoch_loss(trainer: Trainer, batches: PlanDataset) -> float:
    """Return the mean loss per token as the trainer computes it, without dropout."""
    trainer.model.eval()
    total = sum(trainer.compute_loss(trainer.model, batch, num_items_in_batch=1) for batch in batches)
    return float(total) / learned_tokens(batches)


def show(make: Callable[..., Trainer], plans: Callable[[bool], BatchPlan], samples: Samples) -> None:
    """Compare an uninterrupted run with an interrupted and resumed one, and packed with unpacked losses."""
    with tempfile.TemporaryDirectory() as folder:
        whole = make(f"{folder}/whole")
        packed, unpacked = (epoch_loss(whole, PlanDataset(plans(how), samples)) for how in (True, False))
        print(f"mean loss packed and unpacked: {packed:.5f} and {unpacked:.5f}")
        whole.train()
        cut = max(3, whole.state.global_step // 2)
        killed = make(f"{folder}/killed", Killed(cut))
        try:
            killed.train()
        except KeyboardInterrupt:
            print(f"killed after step {killed.state.global_step} of {whole.state.global_step}")
        again = make(f"{folder}/killed")
        again.train(resume_from_checkpoint=True)
    print(f"{len(losses(whole))} losses, after the resume the same: {losses(again) == losses(whole)}")
    print(f"the same weights in the end: {same_weights(whole.model, again.model)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    disable_progress_bar()
    samples = sums(options.samples)
    plan = planned(samples, options.epochs)
    print(f"batches of each epoch: {[len(epoch) for epoch in plan.epochs]}")

    def trainer(folder: str, *callbacks: TrainerCallback) -> PlanTrainer:
        arguments = TrainingArguments(
            output_dir=folder,
            gradient_accumulation_steps=options.accumulate,
            learning_rate=3e-3,
            logging_steps=1,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        batches = PlanDataset(plan, samples, all_epochs=True)
        made = PlanTrainer(model=tiny_model(), args=arguments, batches=batches, callbacks=callbacks)
        made.remove_callback(PrinterCallback)
        return made

    show(trainer, lambda packed: planned(samples, 1, packed=packed), samples)


if __name__ == "__main__":
    main()
