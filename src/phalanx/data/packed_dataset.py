"""Tokenizes files, and writes the samples to a folder of packed batches."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from phalanx.data.batch_files import BatchWriter
from phalanx.data.chat_template import ChatTemplate, load_chat_template
from phalanx.data.packing import PackingConfig, PackingMode
from phalanx.data.plans.batch_plan import BatchPlan, BatchPlanBuilder
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.readers import Paths, as_paths, iter_rows
from phalanx.data.samples import TokenDataset
from phalanx.data.tokenization import TokenizeConfig, TokenizeStats, detect_format, tokenize_dataset
from phalanx.data.tokenizers import load_tokenizer


class PackDatasetResult(NamedTuple):
    """Result of `pack_dataset`."""

    plan: BatchPlan
    """Plan of the packed batches."""
    dataset: TokenDataset
    """Tokenized samples."""
    stats: TokenizeStats
    """Tokenization statistics."""
    files: list[Path]
    """Paths of the batch files."""


def pack_dataset(
    source: Paths,
    output: str | os.PathLike[str],
    config: TokenizeConfig,
    *,
    tokenizer: str = "bytes",
    split: str | None = None,
    mode: PackingMode | str = PackingMode.BEST_FIT_DECREASING,
    packs_per_batch: int = 1,
    num_epochs: int = 1,
    seed: int = 42,
    pad_id: int | None = None,
    workers: int | None = 1,
    on_rows: Callable[[int], None] | None = None,
) -> PackDatasetResult:
    """Tokenize files, plan packed batches, and write the batches and the plan to a folder.

    Args:
        source: Files or folders to read.
        output: Folder to which the batches and the plan are written.
        config: Tokenization settings. `max_length` is required and is the row length of the packed batches.
        tokenizer: Name or path of the tokenizer, as in `load_tokenizer`.
        split: Split to read if the source is a saved Hugging Face dataset.
        mode: Packing algorithm.
        packs_per_batch: Number of rows in a batch.
        num_epochs: Number of epochs. Each epoch is packed differently.
        seed: Random seed for shuffling.
        pad_id: Padding token. Defaults to the tokenizer's padding token, or to 0 if it has none.
        workers: Number of tokenization processes. If None, all cores are used.
        on_rows: Progress callback. After each group of rows, it is called with the number of rows in the
            group.
    """
    if config.max_length is None:
        raise ValueError("max_length is required: it is the length of a pack")
    length = config.max_length
    loaded = load_tokenizer(tokenizer)
    paths = as_paths(source)
    chat = find_chat_template(paths, tokenizer, config, split)
    stats = TokenizeStats()
    dataset = tokenize_dataset(
        paths, loaded, config, chat=chat, split=split, stats=stats, on_rows=on_rows, workers=workers
    )
    if not len(dataset):
        names = ", ".join(map(str, paths))
        if not stats.skipped:
            raise ValueError(f"{names}: there are no samples")
        raise ValueError(
            f"{names}: all {len(stats.skipped)} samples were skipped, because they are longer than "
            f"max_length ({length}) or have no tokens that count toward the loss"
        )
    builder = BatchPlanBuilder(
        dataset.lengths,
        BatchingConfig.throughput(packs_per_batch * length, (length - 1,), length, seed),
        tokenizer_hash=config.tokenizer_hash(loaded, chat),
        packing=PackingConfig(mode=PackingMode(mode), max_length=length),
    )
    plan = builder.build(num_epochs)
    padding = pad_id if pad_id is not None else loaded.pad_token_id or 0
    writer = BatchWriter(plan, dataset, output, pad_id=padding)
    return PackDatasetResult(plan, dataset, stats, writer.write_all())


def find_chat_template(
    source: Paths, tokenizer: str, config: TokenizeConfig, split: str | None = None
) -> ChatTemplate | None:
    """Load the chat template that the tokenization of files needs.

    Args:
        source: Files or folders to read.
        tokenizer: Name or path of the tokenizer, as in `load_tokenizer`.
        config: Tokenization settings. If the format is `auto`, it is detected from the first row.
        split: Split to read if the source is a saved Hugging Face dataset.

    Returns:
        The template. None if the rows are texts or tokens, or if the tokenizer has no template and the
        config does not require one.
    """
    row_format = config.format
    if row_format == "auto":
        # The hash of texts must not depend on a chat template that is not used.
        row_format = detect_format(iter_rows(as_paths(source), split))
    if row_format in ("text", "tokens"):
        return None
    try:
        return load_chat_template(tokenizer, config.chat_template)
    except ValueError:
        # Prompts and completions can be plain text; a conversation without a template raises an error later.
        if row_format == "chat" or config.chat_template is not None:
            raise
        return None
