"""Data, batch plan and tiny model for the other examples in this folder.

Replace them with your own data and model.
"""

from collections.abc import Iterable, Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, ByteTokenizer, PackingConfig

WIDTH = 64
Samples = dict[str, dict[str, list[int]]]


def sums(count: int) -> Samples:
    """Create texts of different lengths, tokenized as bytes."""
    texts = {str(n): f"{n} + {n} = " + "hm, " * (n * 7 % 11) + f"{2 * n}." for n in range(count)}
    return {name: {"input_ids": ByteTokenizer().encode(text)} for name, text in texts.items()}


def planned(samples: Samples, epochs: int, *, packed: bool = True) -> BatchPlan:
    """Build a plan with packed batches of two rows, or with padded batches of one sample per row."""
    lengths = {name: len(sample["input_ids"]) for name, sample in samples.items()}
    batching = BatchingConfig.throughput(2 * WIDTH, bucket_edges=(WIDTH // 2,), max_sample_length=WIDTH)
    packing = PackingConfig(max_length=WIDTH) if packed else None
    return BatchPlanBuilder(lengths, batching, packing=packing).build(epochs)


def tiny_model(vocabulary: int = ByteTokenizer().vocab_size, dropout: float = 0.1) -> LlamaForCausalLM:
    """Create a model, which has the same weights in each call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=WIDTH,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return whether all weights are bitwise equal."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(mine, yours) for mine, yours in pairs)


def learned_tokens(batches: Iterable[Mapping[str, torch.Tensor]]) -> int:
    """Return the number of tokens that count toward the loss."""
    return sum(int((batch["labels"] != -100).sum()) for batch in batches)
