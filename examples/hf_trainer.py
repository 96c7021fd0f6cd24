"""Hugging Face's Trainer on a plan: its batches as planned, and after a kill the very next one.

python examples/hf_trainer.py

It needs phalanx[torch], transformers and accelerate, and downloads nothing: the model has random weights.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils.logging import disable_progress_bar

from phalanx.adapters.token_loader import PlannedTokens, PlanSteps
from phalanx.tokens import BatchingConfig, BatchPlan, BatchPlanBuilder, ByteTokenizer, PackingConfig

WIDTH = 64


class GoOn(TrainerCallback):
    """Tells the batches where training begins: at a resumed trainer's step, else at 0."""

    def __init__(self, batches: PlanSteps) -> None:
        self.batches = batches

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.batches.set_step(state.global_step * args.gradient_accumulation_steps)


class PlannedTrainer(Trainer):
    """A Trainer whose batches are a plan's, epoch after epoch, as one run of steps."""

    def __init__(self, *, batches: PlanSteps, args: TrainingArguments, **others: Any) -> None:
        # Otherwise it would read all batches up to its step to throw them away.
        args.ignore_data_skip = True
        args.max_steps = len(batches) // args.gradient_accumulation_steps
        super().__init__(args=args, train_dataset=batches, **others)
        self.add_callback(GoOn(batches))

    def get_train_dataloader(self) -> DataLoader:
        # Not prepared by accelerate, which would deal the batches once more: PlannedTokens knows its rank.
        # With a generator of its own it draws nothing from torch's, whose state is dropout's.
        return DataLoader(self.train_dataset, batch_size=None, generator=torch.Generator())


class Killed(TrainerCallback):
    """Ends training as a machine that goes away does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def planned(count: int, epochs: int) -> tuple[BatchPlan, dict[str, dict[str, list[int]]]]:
    """Sums in words, packed anew in every epoch."""
    texts = {str(n): f"{n} + {n} = " + "hm, " * (n * 7 % 11) + f"{2 * n}." for n in range(count)}
    samples = {name: {"input_ids": ByteTokenizer().encode(text)} for name, text in texts.items()}
    lengths = {name: len(sample["input_ids"]) for name, sample in samples.items()}
    batching = BatchingConfig.throughput(2 * WIDTH, bucket_edges=(WIDTH // 2,), overflow_max=WIDTH)
    return BatchPlanBuilder(lengths, batching, packing=PackingConfig(max_length=WIDTH)).build_now(
        epochs
    ), samples


def tiny_model() -> LlamaForCausalLM:
    """One layer, with the same random weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=ByteTokenizer().vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=WIDTH,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def losses(trainer: Trainer) -> list[float]:
    """Of every step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    disable_progress_bar()
    plan, samples = planned(options.samples, options.epochs)
    print(f"batches of each epoch: {[len(epoch) for epoch in plan.epochs]}")

    def trainer(folder: str, *callbacks: TrainerCallback) -> PlannedTrainer:
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
        batches = PlanSteps(PlannedTokens(plan, samples))
        made = PlannedTrainer(model=tiny_model(), args=arguments, batches=batches, callbacks=list(callbacks))
        made.remove_callback(PrinterCallback)
        return made

    with tempfile.TemporaryDirectory() as folder:
        whole = trainer(str(Path(folder) / "whole"))
        whole.train()
        cut = max(3, whole.state.global_step // 2)
        killed = trainer(str(Path(folder) / "killed"), Killed(cut))
        try:
            killed.train()
        except KeyboardInterrupt:
            print(f"killed after step {killed.state.global_step} of {whole.state.global_step}")
        again = trainer(str(Path(folder) / "killed"))
        again.train(resume_from_checkpoint=True)
    same = losses(again) == losses(whole)
    weights = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    print(f"{len(losses(whole))} losses, after the resume the same: {same}")
    print(f"the same weights in the end: {all(torch.equal(a, b) for a, b in weights)}")


if __name__ == "__main__":
    main()
