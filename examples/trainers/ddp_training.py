"""Train on a batch plan with `DistributedDataParallel`, and resume all ranks in the middle of an epoch.

python examples/trainers/ddp_training.py --ranks 2

It needs PyTorch (`pip install ".[torch]"`). The ranks are processes on this machine that communicate with
gloo.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.data import BatchingConfig, BatchPlanBuilder, ByteTokenizer, PackingConfig, ShardingConfig
from phalanx.integrations.torch_data import PlanDataset, PlanLoader, TorchBatch

WIDTH = 64


class TinyModel(nn.Module):
    """Language model over bytes with one attention head, in which samples of a row are separated."""

    def __init__(self, vocab_size: int, size: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.positions = nn.Embedding(WIDTH, size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, vocab_size)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of the next tokens."""
        seen = self.embedding(input_ids) + self.positions(position_ids)
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        mixed = nn.functional.scaled_dot_product_attention(*self.qkv(seen).chunk(3, -1), same.tril())
        return self.out(torch.tanh(seen + mixed))


def loader_of(rank: int, world_size: int, count: int, epochs: int = 2, *, packed: bool = True) -> PlanLoader:
    """Return the loader of a rank. All ranks build the same plan and take their part of it."""
    texts = {str(n): f"{n} + {n} = " + "hm, " * (n * 7 % 11) + f"{2 * n}." for n in range(count)}
    samples = {name: {"input_ids": ByteTokenizer().encode(text)} for name, text in texts.items()}
    lengths = {name: len(sample["input_ids"]) for name, sample in samples.items()}
    batching = BatchingConfig.throughput(2 * WIDTH, bucket_edges=(WIDTH // 2,), max_sample_length=WIDTH)
    packing = PackingConfig(max_length=WIDTH) if packed else None
    plan = BatchPlanBuilder(lengths, batching, packing=packing).build(epochs)
    shard = ShardingConfig(world_size=world_size, balance=True)
    tokens = PlanDataset(plan, samples, rank=rank, world_size=shard, attention="segments")
    return PlanLoader(tokens)


def total_loss(model: nn.Module, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss of this rank's batch, and the number of tokens of all ranks."""
    labels = batch["labels"][:, 1:]
    scores = model(batch["input_ids"], batch["position_ids"], batch["segment_ids"])[:, :-1]
    tokens = (labels != -100).sum()
    dist.all_reduce(tokens)
    return nn.functional.cross_entropy(scores.mT, labels, ignore_index=-100, reduction="sum"), tokens


@torch.no_grad()
def epoch_loss(loader: PlanLoader) -> float:
    """Return the mean loss per token of an untrained model, over all ranks."""
    torch.manual_seed(0)
    model = TinyModel(ByteTokenizer().vocab_size)
    losses, tokens = zip(*(total_loss(model, batch) for batch in loader), strict=True)
    total = torch.stack(losses).sum()
    dist.all_reduce(total)
    return float(total / torch.stack(tokens).sum())


def train(
    rank: int, world_size: int, count: int, checkpoint: Path, kill_after: int | None = None
) -> list[tuple[float, tuple[str, ...]]]:
    """Train from the checkpoint, if it exists, and return the loss and the samples of every step."""
    torch.manual_seed(0)
    loader = loader_of(rank, world_size, count)
    model = DistributedDataParallel(TinyModel(ByteTokenizer().vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if checkpoint.exists():
        saved: dict[str, Any] = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first = saved["loader"]["epoch"]
    done: list[tuple[float, tuple[str, ...]]] = []
    for epoch in range(first, loader.dataset.plan.num_epochs):
        if epoch > first:
            loader.set_epoch(epoch)
        for batch in loader:
            total, tokens = total_loss(model, batch)
            # The mean over the tokens of all ranks: packs hold unequal numbers of them.
            loss = total * world_size / tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach() / world_size
            dist.all_reduce(mean)
            done.append((mean.item(), batch.sample_ids))
            if kill_after is not None and len(done) == kill_after:
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "loader": loader.state_dict()}, checkpoint)
                dist.barrier()
                return done
    return done


def run(rank: int, world_size: int, count: int, folder: str) -> None:
    """Run one rank: an uninterrupted run, an interrupted run, and its continuation."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    packed, unpacked = (
        epoch_loss(loader_of(rank, world_size, count, 1, packed=how)) for how in (True, False)
    )
    whole = train(rank, world_size, count, Path(folder) / "none.pt")
    cut = len(whole) // 3
    before = train(rank, world_size, count, Path(folder) / "checkpoint.pt", kill_after=cut)
    after = train(rank, world_size, count, Path(folder) / "checkpoint.pt")
    same = torch.tensor(int(before + after == whole))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    handed: list[Any] = [None] * world_size
    dist.all_gather_object(handed, [name for _, names in whole for name in names])
    if rank == 0:
        names = sorted(name for part in handed for name in part)
        print(f"{world_size} ranks, {len(whole)} steps each; loss {whole[0][0]:.2f} to {whole[-1][0]:.2f}")
        print(f"mean loss packed and unpacked: {packed:.5f} and {unpacked:.5f}")
        print(f"every sample once an epoch: {names == sorted([str(n) for n in range(count)] * 2)}")
        print(f"killed after step {cut}; losses and samples after the resume the same: {bool(same)}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (options.ranks, options.samples, folder), options.ranks)


if __name__ == "__main__":
    main()
