"""Train on a batch plan with Lightning, and resume in the middle of an epoch from its checkpoints.

python examples/trainers/lightning_training.py

It needs transformers (`pip install ".[trl]"`) and Lightning (`pip install lightning`). It downloads nothing,
because the model has random weights.
"""

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_model import Samples, learned_tokens, planned, same_weights, sums, tiny_model

from phalanx.data import BatchPlan
from phalanx.integrations.torch_data import PlanDataset, PlanLoader, TorchBatch


class PlannedData(lightning.LightningDataModule):
    """Data module for a plan. Lightning saves the state of the loader in its checkpoints."""

    def __init__(self, plan: BatchPlan, samples: Samples) -> None:
        super().__init__()
        self.plan, self.samples = plan, samples

    def train_dataloader(self) -> PlanLoader:
        """Return the loader of the current epoch. Lightning calls this method in every epoch."""
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        tokens = PlanDataset(self.plan, self.samples, rank=rank, world_size=ranks)
        # With a generator of its own it draws nothing from torch's, whose state is dropout's.
        loader = PlanLoader(tokens, generator=torch.Generator())
        loader.set_epoch(self.trainer.current_epoch)
        return loader


class LanguageModel(lightning.LightningModule):
    """A model that records losses and samples, and can be interrupted after a given step."""

    def __init__(self, kill_after: int | None = None) -> None:
        super().__init__()
        self.model = tiny_model()
        self.kill_after = kill_after
        self.done: list[tuple[float, tuple[str, ...]]] = []

    def training_step(self, batch: TorchBatch) -> torch.Tensor:
        """Return the mean loss per token of the batch."""
        if len(self.done) == self.kill_after:
            raise RuntimeError("the machine goes away")
        loss = self.model(**batch).loss
        self.done.append((loss.item(), batch.sample_ids))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the state of the random generator for dropout, which Lightning does not save."""
        checkpoint["random"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.random = checkpoint["random"]

    def on_train_batch_start(self, *_: Any) -> None:
        if (state := self.__dict__.pop("random", None)) is not None:
            torch.set_rng_state(state)

    @torch.no_grad()
    def epoch_loss(self, batches: PlanDataset) -> float:
        """Return the mean loss per token, without dropout."""
        self.model.eval()
        total = sum(self.model(**batch, num_items_in_batch=1).loss for batch in batches)
        return float(total) / learned_tokens(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    samples = sums(options.samples)
    plan = planned(samples, options.epochs)
    losses = [
        LanguageModel().epoch_loss(PlanDataset(planned(samples, 1, packed=packed), samples))
        for packed in (True, False)
    ]
    print(f"mean loss packed and unpacked: {losses[0]:.5f} and {losses[1]:.5f}")

    def fit(model: LanguageModel, folder: Path, checkpoint: Path | None = None) -> None:
        trainer = lightning.Trainer(
            max_epochs=options.epochs,
            reload_dataloaders_every_n_epochs=1,
            # The plan knows its ranks; another sampler would deal its batches once more.
            use_distributed_sampler=False,
            callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, PlannedData(plan, samples), ckpt_path=checkpoint, weights_only=False)

    with tempfile.TemporaryDirectory() as folder:
        whole = LanguageModel()
        fit(whole, Path(folder) / "whole")
        same = True
        for cut in (len(whole.done) // 3, len(plan.get_epoch(0)), len(whole.done) - 1):
            killed, resumed = LanguageModel(kill_after=cut), LanguageModel()
            try:
                fit(killed, Path(folder) / str(cut))
            except RuntimeError:
                fit(resumed, Path(folder) / str(cut), Path(folder) / str(cut) / f"step={cut}.ckpt")
            same &= killed.done + resumed.done == whole.done and same_weights(whole, resumed)
            print(
                f"killed after step {cut} of {len(whole.done)}: losses, samples and weights the same: {same}"
            )


if __name__ == "__main__":
    main()
