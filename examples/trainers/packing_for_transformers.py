"""Train a Hugging Face model on packed rows, and check that each sample has the same loss as without packing.

python examples/trainers/packing_for_transformers.py

It needs transformers and datasets (`pip install ".[trl]"`). It downloads nothing, because the model has
random weights.
"""

import argparse
from collections import Counter
from typing import Any

import datasets
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, ByteTokenizer, PackingConfig
from phalanx.integrations.hf_datasets import HFDatasetSamples
from phalanx.integrations.torch_data import PlanDataset, PlanLoader, TorchBatch

WIDTH = 128


def corpus(count: int) -> datasets.Dataset:
    """Create texts of different lengths."""
    texts = [f"{n} + {n} = " + "hm, " * (n * 7 % 23) + f"{2 * n}." for n in range(count)]
    return datasets.Dataset.from_dict({"text": texts})


def tiny_model(vocab_size: int) -> LlamaForCausalLM:
    """Create a model with two layers and random weights."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=WIDTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def sample_losses(model: LlamaForCausalLM, batch: TorchBatch) -> dict[str, float]:
    """Return the mean loss of each sample in a batch."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits, labels = model(**inputs).logits[:, :-1], batch["labels"][:, 1:]
    costs = torch.nn.functional.cross_entropy(logits.mT, labels, ignore_index=-100, reduction="none")
    segment = (batch["position_ids"] == 0).int().cumsum(1)[:, 1:]
    placed: Counter[int] = Counter()
    losses = {}
    for name, row in zip(batch.sample_ids, batch.sample_rows, strict=True):
        placed[row] += 1
        mine = (segment[row] == placed[row]) & (labels[row] != -100)
        losses[name] = float(costs[row][mine].mean())
    return losses


def all_losses(
    model: LlamaForCausalLM, plan: BatchPlan, samples: HFDatasetSamples, *, keep_mask: bool = True
) -> torch.Tensor:
    """Return the loss of every sample, in the order of the dataset."""
    losses: dict[str, float] = {}
    for batch in PlanDataset(plan, samples):
        if not keep_mask:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        losses |= sample_losses(model, batch)
    return torch.tensor([losses[name] for name in samples])


def train(model: LlamaForCausalLM, loader: PlanLoader, steps: int) -> list[float]:
    """Train with AdamW for some steps, and return the losses."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for epoch in range(loader.dataset.plan.num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss: Any = model(**batch).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                return losses
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = ByteTokenizer(add_special_tokens=True)
    samples = HFDatasetSamples(corpus(options.samples), "text", tokenizer=tokenizer)
    lengths = samples.lengths()
    print(f"{len(lengths)} samples of {lengths.lengths.min()} to {lengths.lengths.max()} tokens")

    # Few batches are sorted together, as in a shuffle; sorting all would pad little and mix badly.
    batching = BatchingConfig.throughput(
        token_budget=8 * WIDTH, bucket_edges=(64,), max_sample_length=WIDTH, pool_batches=1
    )
    padded = BatchPlanBuilder(lengths, batching).build()
    packed = BatchPlanBuilder(lengths, batching, packing=PackingConfig(max_length=WIDTH)).build(4)
    for name, plan in (("padded", padded), ("packed", packed)):
        epoch = plan.get_epoch(0)
        print(f"{name}: {len(epoch)} batches an epoch, {plan.compute_metrics().efficiency:.0%} real tokens")

    model = tiny_model(tokenizer.vocab_size)
    alone = all_losses(model, padded, samples)
    worst = (all_losses(model, packed, samples) - alone).abs().max()
    leaky = (all_losses(model, packed, samples, keep_mask=False) - alone).abs().max()
    print(f"{len(alone)} losses, at most {worst:.1e} from the unpacked ones: equal {bool(worst < 1e-5)}")
    print(f"without the mask of segments up to {leaky:.1e}: equal {bool(leaky < 1e-5)}")

    losses = train(model, PlanLoader(PlanDataset(packed, samples)), options.steps)
    print(f"{len(losses)} steps: loss {losses[0]:.2f} to {losses[-1]:.2f}; learned {losses[-1] < losses[0]}")


if __name__ == "__main__":
    main()
