"""`phalanx data pack`: packs samples into rows of a fixed length.

The result is a folder of batches or a single file. If the only input is a length cache, nothing is tokenized,
and the result lists which samples share a row.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.data.options import (
    WITHOUT_LOSS,
    AddBos,
    AddEos,
    AsJson,
    ChatTemplateName,
    DataFiles,
    DatasetFiles,
    PackMode,
    PadId,
    RowFormat,
    Split,
    TextField,
    TokenizerName,
    Workers,
    input_errors,
    load_lengths,
    show_skipped,
)
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, print_json, progress

if TYPE_CHECKING:
    from phalanx.data.lengths import LengthTable
    from phalanx.data.packing import PackingConfig
    from phalanx.data.samples import TokenDataset

app = typer.Typer(name="pack", help="Pack samples into rows.", add_completion=False)


@app.command()
def pack(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "--out", "-o", help="Folder of batches, or .npz; with --lengths, .npz or .jsonl."
        ),
    ],
    data: DataFiles = None,
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", "-l", help="Length cache: only decide which samples share a row."),
    ] = None,
    dataset: DatasetFiles = None,
    tokenizer: TokenizerName = "bytes",
    row_format: RowFormat = "auto",
    chat_template: ChatTemplateName = None,
    loss_tokens: Annotated[
        Literal["auto", "all", "completion", "assistant", "last_turn"],
        typer.Option(help="Which tokens count toward the loss."),
    ] = "auto",
    truncation: Annotated[
        Literal["error", "skip", "right", "left", "drop_turns"],
        typer.Option(help="How to handle samples longer than a row, if the output is a folder."),
    ] = "error",
    packs_per_batch: Annotated[int, typer.Option(min=1, help="Number of rows in a batch.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs, each packed differently.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed for shuffling.")] = 42,
    max_length: Annotated[int, typer.Option(min=1, help="Length of a row in tokens.")] = 2048,
    mode: Annotated[
        PackMode, typer.Option("--mode", "-m", help="Packing algorithm.")
    ] = "best_fit_decreasing",
    overlong: Annotated[
        Literal["error", "skip", "truncate", "split"],
        typer.Option(help="How to handle samples longer than a row, if the output is a file."),
    ] = "error",
    separator: Annotated[
        int | None, typer.Option(help="Token between the samples of a row.", show_default="none")
    ] = None,
    pad_id: PadId = None,
    add_bos: AddBos = False,
    add_eos: AddEos = None,
    text_field: TextField = "text",
    split: Split = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize files and pack the samples into rows. Writes a folder of batches or one .npz file.

    With --lengths, nothing is tokenized, and the output lists which samples share a row.

    phalanx data pack train.jsonl --tokenizer T --format chat --max-length 4096 -o FOLDER
    """
    from phalanx.data.packed_dataset import find_chat_template, pack_dataset
    from phalanx.data.packing import PackingConfig
    from phalanx.data.tokenization import TokenizeConfig, TokenizeStats, tokenize_dataset
    from phalanx.data.tokenizers import load_tokenizer

    paths = [*(dataset or ()), *(data or ())]
    if bool(paths) == (lengths is not None):
        raise UserError("pass files to pack, or --lengths with a length cache")
    to_file = output.suffix == ".npz"
    with user_errors():
        packing = PackingConfig(
            mode=mode, max_length=max_length, overlong=overlong, separator_token_id=separator
        )
        config = TokenizeConfig(
            format=row_format,
            text_field=text_field,
            loss_tokens=loss_tokens,
            truncation=truncation,
            max_length=None if to_file else max_length,
            add_bos=add_bos,
            add_eos=add_eos,
            chat_template=chat_template,
        )
    if lengths is not None:
        if workers is not None:
            raise UserError("--workers cannot be used with --lengths, which needs no tokenization")
        if output.suffix not in (".npz", ".jsonl"):
            raise UserError(f"--output must end in .npz or .jsonl with --lengths, got {output}")
        _pack_to_file(output, packing, load_lengths(lengths).table(), None, 0, as_json)
        return
    if output.suffix == ".jsonl":
        raise UserError(f"--output must be a folder or a .npz file, got {output}")
    if to_file:
        with input_errors(), progress("tokenizing", "rows", quiet=as_json) as advance:
            used, chat = load_tokenizer(tokenizer), find_chat_template(paths, tokenizer, config, split)
            stats = TokenizeStats()
            tokens = tokenize_dataset(
                paths, used, config, chat=chat, split=split, stats=stats, on_rows=advance, workers=workers
            )
            if not len(tokens):
                raise ValueError(f"{', '.join(map(str, paths))}: there are no samples")
        padding = pad_id if pad_id is not None else used.pad_token_id or 0
        _pack_to_file(output, packing, tokens.lengths, tokens, padding, as_json, without_loss=stats.skipped)
        return
    with input_errors(), progress("packing", "rows", quiet=as_json) as advance:
        packed = pack_dataset(
            paths,
            output,
            config,
            tokenizer=tokenizer,
            split=split,
            mode=mode,
            packs_per_batch=packs_per_batch,
            num_epochs=epochs,
            seed=seed,
            pad_id=pad_id,
            workers=workers,
            on_rows=advance,
        )
    metrics = packed.plan.compute_metrics()
    skipped = packed.stats.skipped
    values: dict[str, Any] = {
        "output": str(output),
        "samples": packed.stats.samples,
        "truncated": packed.stats.truncated,
        "skipped": skipped if as_json else len(skipped),
        "tokens": metrics.total_tokens,
        "loss_tokens": int(packed.dataset.loss_mask.sum(dtype="int64")),
        "batches": packed.plan.num_batches,
        "efficiency": metrics.efficiency,
        "fingerprint": packed.plan.fingerprint,
    }
    if as_json:
        print_json(values)
        return
    for name in ("tokens", "loss_tokens"):
        values[name] = f"{values[name]:,} per epoch"
    values["batches"] = f"{packed.plan.num_batches:,} in {epochs} epoch{'s' if epochs > 1 else ''}"
    typer.echo(format_fields(list(values.items())))


def _pack_to_file(
    output: Path,
    packing: "PackingConfig",
    table: "LengthTable",
    dataset: "TokenDataset | None",
    pad_id: int,
    as_json: bool,
    *,
    without_loss: Sequence[str] = (),
) -> None:
    """Assign samples to rows, write the rows to a file, and print metrics.

    If `dataset` is None, the file only lists which samples are in each row. Otherwise, it also contains the
    tokens. `without_loss` lists samples that were skipped because none of their tokens counts toward the
    loss.
    """
    import numpy as np

    from phalanx.data.collation import pack_tokens
    from phalanx.data.metrics import compute_packing_metrics
    from phalanx.data.npz_files import write_npz
    from phalanx.data.packing import assign_packs
    from phalanx.io.atomic import atomic_write

    with user_errors():
        layout = assign_packs(table.lengths, packing, sample_ids=table.ids)
    samples = [str(table.ids[row]) for row in layout.samples.tolist()]
    starts = np.zeros_like(layout.samples) if layout.starts is None else layout.starts
    arrays = {
        "segment_samples": np.array(samples, np.str_),
        "segment_starts": starts,
        "segment_lengths": layout.lengths,
        "pack_offsets": layout.offsets,
    }
    loss_mask = None
    if dataset is not None:
        batch = pack_tokens(
            dataset.tokens,
            dataset.offsets,
            packing,
            loss_mask=dataset.loss_mask,
            columns=dataset.columns,
            pad_id=pad_id,
            layout=layout,
        )
        loss_mask = batch.loss_mask
        arrays = {**batch.arrays(), **arrays}
    with user_errors():
        if output.suffix == ".npz":
            write_npz(output, arrays)
        else:
            with atomic_write(output, "w") as file:
                for number, (begin, end) in enumerate(itertools.pairwise(layout.offsets.tolist())):
                    line = {
                        "pack": number,
                        "samples": samples[begin:end],
                        "starts": starts[begin:end].tolist(),
                        "lengths": layout.lengths[begin:end].tolist(),
                    }
                    file.write(json.dumps(line) + "\n")
    values = compute_packing_metrics(layout, loss_mask).summary()
    skipped = [str(table.ids[row]) for row in layout.skipped.tolist()]
    if as_json:
        header = {"output": str(output), "mode": str(packing.mode), "max_length": packing.max_length}
        print_json({**header, **values, "skipped": [*without_loss, *skipped]})
        return
    names = ("num_rows", "num_samples", "total_tokens", "packing_ratio", "efficiency")
    typer.echo(format_fields([("output", output), *((name, values[name]) for name in names)]))
    show_skipped(without_loss, WITHOUT_LOSS)
    show_skipped(skipped, f"longer than {packing.max_length}")
