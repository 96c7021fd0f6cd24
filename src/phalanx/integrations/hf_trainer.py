"""Mixin that feeds the batches of a plan to the Hugging Face `Trainer` or TRL's `SFTTrainer`."""

import copy
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.extras import require_extra
from phalanx.integrations.torch_data import PlanDataset, choose_attention
from phalanx.io.atomic import atomic_write

with require_extra(__name__, "trl", "torch", "transformers"):
    import torch
    from torch.utils.data import DataLoader
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

_STATE_FILE = "plan_state.json"


class PlanTrainerMixin:
    """Mixin for a trainer that trains on the batches of a plan, as one sequence of steps over all epochs.

    The constructor of `class PlanTrainer(PlanTrainerMixin, Trainer)` takes a `batches` argument instead of a
    training dataset. `batches` is a `PlanDataset` with `all_epochs=True`. Every checkpoint contains the
    position in the plan, so training can be resumed with the next batch, possibly on a different number of
    ranks. Epochs can have different numbers of batches, so the `epoch` that the trainer reports is not an
    epoch of the plan: it is the number of steps taken so far, divided by the total number of steps in the
    plan.

    The plan determines the batch size and the number of steps. Set `max_steps` to stop earlier.

    If the model is a `transformers` model, the constructor tests with it whether the `attention` format of
    `batches` keeps packed samples apart. If `batches` has no format, it gets the first one that does (see
    `choose_attention`).
    """

    def __init__(
        self, *, batches: Any, args: Any, callbacks: Sequence[TrainerCallback] | None = None, **others: Any
    ) -> None:
        if not isinstance(batches, PlanDataset) or not batches.all_epochs:
            raise TypeError("batches must be a PlanDataset with all_epochs=True")
        # Copied, because settings are changed below.
        args = copy.copy(args)
        # Otherwise, the trainer would read all batches up to its step and discard them.
        args.ignore_data_skip = True
        num_steps, unused = divmod(len(batches), args.gradient_accumulation_steps)
        self._step_limit = args.max_steps if args.max_steps > 0 else None
        if self._step_limit is not None and self._step_limit > num_steps:
            raise ValueError(
                f"max_steps is {self._step_limit}, but the plan has only {num_steps} steps; build it with "
                f"more epochs, or remove max_steps"
            )
        args.max_steps = self._step_limit or num_steps
        if unused:
            # The trainer counts batches from where it was resumed, so only some runs would have an incomplete
            # last step.
            warnings.warn(
                f"{len(batches)} batches are not a multiple of gradient_accumulation_steps "
                f"({args.gradient_accumulation_steps}): the last {unused} are not used",
                stacklevel=2,
            )
        others.setdefault("train_dataset", batches)
        self.batches = batches
        self._position = _PlanPosition(batches, num_steps)
        # The callback is the first one, so that the others see the corrected epoch. The next class is the
        # trainer, whose type is unknown here.
        super().__init__(args=args, callbacks=[self._position, *(callbacks or ())], **others)  # type: ignore[call-arg]
        self._set_attention()

    def _set_attention(self) -> None:
        trainer: Any = self
        model, batches = trainer.model, self.batches
        if not hasattr(getattr(model, "config", None), "_attn_implementation"):
            return
        if batches.attention is not None:
            choose_attention(model, batches.plan, (batches.attention,))
        else:
            batches.attention, batches.dtype = choose_attention(model, batches.plan), model.dtype

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train from the beginning of the plan, or resume from a checkpoint.

        Args:
            resume_from_checkpoint: Path of a checkpoint, or True for the latest checkpoint in the output
                folder. If None, training starts from the beginning.
            **options: Additional arguments to the trainer's `train` method.

        Raises:
            ValueError: If there is no checkpoint to resume from, or if it belongs to a different plan.
        """
        trainer: Any = self
        path = resume_from_checkpoint
        if path is True:
            folder = trainer.args.output_dir
            path = get_last_checkpoint(folder) if Path(folder).is_dir() else None
            if path is None:
                raise ValueError(
                    f"there is no checkpoint in {folder}; to start from the beginning, call train() without "
                    f"resume_from_checkpoint"
                )
        trainer.batches.set_epoch(trainer.batches.plan.epochs[0].epoch)
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
        num_steps = step + self.batches.num_remaining // trainer.args.gradient_accumulation_steps
        self._position.num_steps = num_steps
        trainer.args.max_steps = min(self._step_limit or num_steps, num_steps)

    def get_train_dataloader(self) -> DataLoader:
        """Return a data loader for the plan's batches."""
        # Not prepared by accelerate, which would divide the batches among ranks a second time. The loader has
        # its own generator, so that it does not advance torch's global generator, which dropout uses.
        return DataLoader(self.batches, batch_size=None, generator=torch.Generator())


class _PlanPosition(TrainerCallback):
    """Saves the position in the plan with every checkpoint, and corrects the epoch after resuming."""

    # Not PlanDataset: a run-time type checker would warn about its base class in torch.
    def __init__(self, batches: Any, num_steps: int) -> None:
        self.num_steps = num_steps
        """Number of steps in the plan, including those before training was resumed."""
        self._batches = batches
        self._first_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first_step = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The trainer computes the epoch only from the steps since training was resumed.
        state.epoch = state.global_step / self.num_steps

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        used = (state.global_step - self._first_step) * args.gradient_accumulation_steps
        with atomic_write(folder / _STATE_FILE, "w") as file:
            json.dump(self._batches.state_dict(used), file)
