"""Train on a batch plan with Accelerate, and resume in the middle of an epoch.

The position of the loader is part of Accelerate's checkpoints. With torchrun, the script runs on several
processes.

python examples/trainers/accelerate_training.py

It needs transformers and accelerate (`pip install ".[trl]"`). It downloads nothing, because the model has
random weights.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from tiny_model import Samples, learned_tokens, planned, sums, tiny_model

from phalanx.data import BatchPlan, ShardingConfig
from phalanx.integrations.torch_data import PlanDataset, PlanLoader


class Training:
    """A model, its optimizer, and this process's part of a plan."""

    def __init__(self, accelerator: Accelerator, plan: BatchPlan, samples: Samples) -> None:
        rank, ranks = accelerator.process_index, accelerator.num_processes
        # Not prepared by accelerate, which would deal the batches once more. With a generator of its own the
        # loader draws nothing from torch's, whose state is dropout's.
        shard = ShardingConfig(world_size=ranks, balance=True)
        tokens = PlanDataset(plan, samples, rank=rank, world_size=shard)
        self.loader = PlanLoader(tokens, generator=torch.Generator())
        model = tiny_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(self.loader)
        self.accelerator = accelerator

    def run(self, checkpoint: Path, *, kill_after: int | None = None, resume: bool = False) -> list[float]:
        """Train from the start or a checkpoint, until the end or `kill_after` steps. Returns the losses."""
        if resume:
            self.accelerator.load_state(checkpoint)
        losses: list[float] = []
        first = self.loader.state_dict()["epoch"]
        for epoch in range(first, self.loader.dataset.plan.num_epochs):
            if epoch > first:
                self.loader.set_epoch(epoch)
            for batch in self.loader:
                # The mean over the tokens of all ranks: packs hold unequal numbers of them.
                tokens = self.accelerator.reduce(torch.tensor(learned_tokens([batch])))
                total = self.model(**batch, num_items_in_batch=1).loss
                self.accelerator.backward(total * self.accelerator.num_processes / tokens)
                self.optimizer.step()
                self.optimizer.zero_grad()
                losses.append(float(self.accelerator.reduce(total.detach()) / tokens))
                if len(losses) == kill_after:
                    self.accelerator.save_state(checkpoint)
                    return losses
        return losses

    @torch.no_grad()
    def epoch_loss(self) -> float:
        """Return the mean loss per token in the first epoch, without dropout."""
        self.model.eval()
        total = sum(self.model(**batch, num_items_in_batch=1).loss for batch in self.loader.dataset)
        tokens = torch.tensor(learned_tokens(self.loader.dataset))
        return float(self.accelerator.reduce(total) / self.accelerator.reduce(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    options = parser.parse_args()
    samples = sums(options.samples)

    def training(epochs: int = 2, *, packed: bool = True) -> Training:
        return Training(Accelerator(cpu=True), planned(samples, epochs, packed=packed), samples)

    packed, unpacked = (training(1, packed=how).epoch_loss() for how in (True, False))
    with tempfile.TemporaryDirectory() as own:
        (folder,) = broadcast_object_list([own])
        whole = training().run(Path(folder))
        cut = len(whole) // 3
        before = training().run(Path(folder) / "checkpoint", kill_after=cut)
        resumed = training()
        after = resumed.run(Path(folder) / "checkpoint", resume=True)
        resumed.accelerator.wait_for_everyone()
    same = all(gather_object([before + after == whole]))
    resumed.accelerator.print(f"mean loss packed and unpacked: {packed:.5f} and {unpacked:.5f}")
    resumed.accelerator.print(f"{resumed.accelerator.num_processes} processes, {len(whole)} steps each")
    resumed.accelerator.print(f"killed after step {cut}; losses after the resume the same: {same}")


if __name__ == "__main__":
    main()
