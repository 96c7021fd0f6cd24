"""Mixin that feeds the batches of a plan to the Hugging Face `Trainer` or TRL's `SFTTrainer`."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from phalanx.integrations.torch_data import PlanDataset
from phalanx.io.atomic import atomic_write

_STATE_FILE = "plan_state.json"


class PlanTrainerMixin:
    """Mixin for a trainer that trains on the batches of a plan, as one sequence of steps over all epochs.

    `class PlanTrainer(PlanTrainerMixin, Trainer)` takes the argument `batches`, a `PlanDataset` with
    `all_epochs=True`, instead of a training dataset. Every checkpoint contains the position in the plan, so
    training can be resumed with the next batch, possibly on a different number of ranks. Epochs can have
    different numbers of batches, so the `epoch` that the trainer reports is not an epoch of the plan: it is
    the number of steps taken so far, divided by the number of all steps.
    """

    def __init__(
        self, *, batches: Any, args: Any, callbacks: Sequence[TrainerCallback] | None = None, **others: Any
    ) -> None:
        if not isinstance(batches, PlanDataset) or not batches.all_epochs:
            raise TypeError("batches must be a PlanDataset with all_epochs=True")
        # Otherwise, the trainer would read all batches up to its step and discard them.
        args.ignore_data_skip = True
        args.max_steps, unused = divmod(len(batches), args.gradient_accumulation_steps)
        if unused:
            # The trainer counts from the resume on, so only some runs would have an incomplete last step.
            warnings.warn(
                f"{len(batches)} batches are not a multiple of gradient_accumulation_steps "
                f"({args.gradient_accumulation_steps}): the last {unused} are not used",
                stacklevel=2,
            )
        others.setdefault("train_dataset", batches)
        self.batches = batches
        # The next class is the trainer, whose type is unknown here.
        super().__init__(args=args, callbacks=[*(callbacks or ()), _SavePosition(batches)], **others)  # type: ignore[call-arg]

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train from the beginning of the plan, or resume from a checkpoint.

        Args:
            resume_from_checkpoint: Path of a checkpoint, or True for the latest checkpoint in the output
                folder. None starts from the beginning.
            **options: Further arguments of the trainer's `train` method.
        """
        trainer: Any = self
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(trainer.args.output_dir)
        self.batches.set_step(0)
        if path:
            self._load_position(Path(str(path)))
        return super().train(resume_from_checkpoint=path, **options)  # type: ignore[misc]

    def _load_position(self, checkpoint: Path) -> None:
        trainer: Any = self
        file = checkpoint / _STATE_FILE
        if not file.is_file():
            raise ValueError(f"{checkpoint} has no {_STATE_FILE}, so its position in the plan is unknown")
        self.batches.load_state_dict(json.loads(file.read_text(encoding="utf-8")))
        step = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
        trainer.args.max_steps = step + self.batches.num_remaining // trainer.args.gradient_accumulation_steps

    def get_train_dataloader(self) -> DataLoader:
        """Return a data loader for the plan's batches."""
        # Not prepared by accelerate, which would divide the batches among ranks a second time. The loader has
        # its own generator, so that it does not advance torch's global generator, which dropout uses.
        return DataLoader(self.batches, batch_size=None, generator=torch.Generator())


class _SavePosition(TrainerCallback):
    """Saves the position in the plan with every checkpoint."""

    # Not PlanDataset: a run-time type checker would warn about its base class in torch.
    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._first_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first_step = state.global_step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        used = (state.global_step - self._first_step) * args.gradient_accumulation_steps
        with atomic_write(folder / _STATE_FILE, "w") as file:
            json.dump(self._batches.state_dict(used), file)
