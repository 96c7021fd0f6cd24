"""Hugging Face's `Trainer`, and those made from it such as TRL's `SFTTrainer`, on the batches of a plan.

The batches are made in `token_loader`; whole recipes are the files of `examples/trainers`.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback


class PlannedBatches:
    """Named before a trainer class, it feeds a plan's batches, epoch after epoch, as one run of steps.

    `class PlannedTrainer(PlannedBatches, Trainer)` takes `batches`, a `PlanSteps`, instead of a training
    dataset. A resumed trainer goes on with the very next batch and reads none of those before. Epochs that
    are packed anew differ in length; a trainer that divides its step by an epoch's length would resume in
    the wrong place, which is why its own `epoch` counts parts of all steps since the resume.
    """

    def __init__(
        self, *, batches: Any, args: Any, callbacks: Sequence[TrainerCallback] | None = None, **others: Any
    ) -> None:
        # Otherwise it would read all batches up to its step to throw them away.
        args.ignore_data_skip = True
        args.max_steps, left_out = divmod(len(batches), args.gradient_accumulation_steps)
        if left_out:
            # The trainer counts from the resume, so that a last, smaller step would come in some runs only.
            warnings.warn(
                f"{len(batches)} batches are no multiple of gradient_accumulation_steps "
                f"({args.gradient_accumulation_steps}): the last {left_out} of the plan are left out",
                stacklevel=2,
            )
        others.setdefault("train_dataset", batches)
        self.batches = batches
        told = [*(callbacks or ()), _GoOn(batches)]
        # The next class is the trainer, of which nothing is known here.
        super().__init__(args=args, callbacks=told, **others)  # type: ignore[call-arg]

    def get_train_dataloader(self) -> DataLoader:
        """The plan's batches as they are."""
        # Not prepared by accelerate, which would deal the batches once more: PlannedTokens knows its rank.
        # With a generator of its own it draws nothing from torch's, whose state is dropout's.
        return DataLoader(self.batches, batch_size=None, generator=torch.Generator())


class _GoOn(TrainerCallback):
    """Tells the batches where training begins: at a resumed trainer's step, else at 0."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._batches.set_step(state.global_step * args.gradient_accumulation_steps)
