"""`phalanx data pack DATA...`: fine-tuning data as packed batches in a folder, with the plan beside them.

What rows mean is in `phalanx.data`; packs of lengths and of plain tokens are made in `pack`.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.data.options import PackMode, Tokens, input_errors
from phalanx.cli.errors import UserError
from phalanx.cli.output import format_fields, print_json, progress

if TYPE_CHECKING:
    from phalanx.data.chat_template import ChatTemplate
    from phalanx.data.finetuning.samples import TokenizeConfig, TokenizeStats
    from phalanx.data.tokenizers import Tokenizer


def pack_finetuning(
    data: list[Path],
    output: Path,
    settings: Mapping[str, Any],
    *,
    tokenizer: str,
    chat_template: str | None,
    split: str | None,
    mode: PackMode,
    rows: int,
    epochs: int,
    seed: int,
    pad_id: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Tokenize, plan and write; what was cut or left out is printed."""
    from phalanx.data.batch_files import BatchWriter
    from phalanx.data.chat_template import load_chat_template
    from phalanx.data.finetuning.samples import TokenizeConfig, TokenizeStats
    from phalanx.data.packing_config import PackingConfig
    from phalanx.data.plans.batching_config import BatchingConfig
    from phalanx.data.plans.builder import BatchPlanBuilder
    from phalanx.data.plans.plan_files import save_batch_plan
    from phalanx.data.tokenizers import load_tokenizer

    if output.suffix in (".npz", ".jsonl"):
        raise UserError(f"--out is a folder of batches, got {output}")
    with input_errors():
        config, used = TokenizeConfig(**settings), load_tokenizer(tokenizer)
        chat = None
        if config.template in ("auto", "chat", "prompt", "preference"):
            # Only conversations need one; a tokenizer without is told when the first comes.
            needed = config.template == "chat" or chat_template is not None
            try:
                chat = load_chat_template(tokenizer, chat_template)
            except ValueError:
                if needed:
                    raise
    counts = TokenizeStats()
    samples = _read(data, used, config, chat, split, counts, workers, quiet=as_json)
    length = config.max_length or 0
    with input_errors():
        if not samples:
            raise ValueError(f"{', '.join(map(str, data))}: no samples are left")
        longest = PackingConfig(mode=mode, max_length=length)
        batching = BatchingConfig.throughput(rows * length, (length - 1,), length, seed)
        builder = BatchPlanBuilder(
            {name: len(sample.input_ids) for name, sample in samples.items()},
            batching,
            tokenizer_hash=used.tokenizer_hash,
            packing=longest,
        )
        plan = builder.build_now(epochs)
        padding = pad_id if pad_id is not None else used.pad_token_id or 0
        writer = BatchWriter(plan, samples, output, pad_id=padding)
        with progress("writing", "batches", plan.total_microbatches, quiet=as_json) as advance:
            writer.write_all(on_batch=lambda _: advance(1))
        save_batch_plan(plan, output / "plan", overwrite=True)
    metrics = plan.compute_metrics()
    learned = sum(int(sample.loss_mask.sum()) for sample in samples.values())
    found = {
        "output": str(output),
        "samples": counts.samples,
        "truncated": counts.truncated,
        "skipped": counts.skipped if as_json else len(counts.skipped),
        "tokens": metrics.total_tokens,
        "loss_tokens": learned,
        "batches": plan.total_microbatches,
        "efficiency": metrics.efficiency,
        "fingerprint": plan.fingerprint,
    }
    print_json(found) if as_json else typer.echo(format_fields(list(found.items())))


def _read(
    data: list[Path],
    tokenizer: "Tokenizer",
    config: "TokenizeConfig",
    chat: "ChatTemplate | None",
    split: str | None,
    counts: "TokenizeStats",
    workers: int | None,
    *,
    quiet: bool,
) -> dict[str, Tokens]:
    import numpy as np

    from phalanx.data.corpus import LengthWorkerError
    from phalanx.data.tokenization import tokenize_rows

    samples = {}
    with input_errors(), progress("tokenizing", "rows", quiet=quiet) as advance:
        found = tokenize_rows(
            data,
            tokenizer,
            config,
            chat=chat,
            split=split,
            counts=counts,
            on_rows=advance,
            workers=workers,
        )
        try:
            # Closed also when Ctrl-C ends it, so that no worker stays behind.
            with contextlib.closing(found):
                for sample in found:
                    ids, mask = np.array(sample.input_ids, np.int32), np.array(sample.loss_mask, np.int8)
                    samples[sample.sample_id] = Tokens(sample.sample_id, ids, mask)
        except LengthWorkerError as error:
            raise UserError(str(error)) from error
    return samples
