"""`phalanx data pack`: packs samples into rows of a fixed length.

The result is a folder of batches or one file. Given only a length cache, the command decides which samples
share a row, without tokenizing anything.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.data.options import (
    AddBos,
    AsJson,
    PackMode,
    PadId,
    Split,
    TextField,
    Workers,
    input_errors,
    read_lengths,
)
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, print_json, progress

if TYPE_CHECKING:
    from phalanx.data.metrics import BatchMetrics
    from phalanx.data.packing import PackingConfig, PackLayout
    from phalanx.data.tokenization import TokenizeConfig

app = typer.Typer(name="pack", help="Pack samples into rows.", add_completion=False)


@app.command()
def pack(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "--out", "-o", help="Folder of batches, or .npz; with --lengths, .npz or .jsonl."
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Argument(help="JSONL, Parquet or text files, or folders of them.", show_default=False),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", "-l", help="Length cache: only decide which samples share a row."),
    ] = None,
    dataset: Annotated[
        list[Path] | None, typer.Option("--dataset", "-d", help="Same as DATA.", show_default=False)
    ] = None,
    tokenizer: Annotated[str, typer.Option("--tokenizer", "-t", help="Tokenizer.")] = "bytes",
    row_format: Annotated[
        Literal["auto", "chat", "prompt_completion", "preference", "text", "tokens"],
        typer.Option("--format", help="Format of the rows; auto decides by their columns."),
    ] = "auto",
    chat_template: Annotated[
        str | None, typer.Option(help="chatml or a Jinja file.", show_default="the tokenizer's")
    ] = None,
    loss: Annotated[
        Literal["auto", "all", "completion", "assistant", "last_turn"],
        typer.Option(help="Which tokens count in the loss."),
    ] = "auto",
    truncation: Annotated[
        Literal["error", "skip", "right", "left", "drop_turns"],
        typer.Option(help="How to handle samples longer than a row, if the output is a folder."),
    ] = "error",
    packs_per_batch: Annotated[int, typer.Option(min=1, help="Number of rows in a batch.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs, each packed differently.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the shuffles.")] = 42,
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
    add_eos: Annotated[
        bool | None,
        typer.Option(
            "--add-eos/--no-add-eos",
            help="Add the end-of-text token.",
            show_default="to texts and completions",
        ),
    ] = None,
    text_field: TextField = "text",
    split: Split = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize files and pack them into a folder of batches, or into one .npz file.

    phalanx data pack train.jsonl --tokenizer T --format chat --max-length 4096 -o FOLDER
    """
    from phalanx.data.packing import PackingConfig, PackingMode
    from phalanx.data.tokenization import TokenizeConfig

    paths = [*(dataset or ()), *(data or ())]
    if bool(paths) == (lengths is not None):
        raise UserError("pass files to pack, or --lengths with a length cache")
    with user_errors():
        packing = PackingConfig(
            mode=PackingMode(mode), max_length=max_length, overlong=overlong, separator_token_id=separator
        )
    if lengths is not None:
        if workers is not None:
            raise UserError("--workers cannot be used with --lengths, which needs no tokenization")
        _pack_lengths(lengths, output, packing, as_json)
        return
    to_file = output.suffix == ".npz"
    if output.suffix == ".jsonl":
        raise UserError(f"--output must be a folder or a .npz file, got {output}")
    with user_errors():
        config = TokenizeConfig(
            format=row_format,
            text_field=text_field,
            loss=loss,
            truncation=truncation,
            max_length=None if to_file else max_length,
            add_bos=add_bos,
            add_eos=add_eos,
            chat_template=chat_template,
        )
    if to_file:
        _pack_to_file(paths, output, config, packing, tokenizer, split, pad_id, workers, as_json)
        return
    from phalanx.data.packed_dataset import pack_dataset

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
    values = {
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
    print_json(values) if as_json else typer.echo(format_fields(list(values.items())))


def _pack_lengths(lengths: Path, output: Path, packing: "PackingConfig", as_json: bool) -> None:
    from phalanx.data.metrics import compute_packing_metrics
    from phalanx.data.packing import assign_packs

    if output.suffix not in (".npz", ".jsonl"):
        raise UserError(f"--output must end in .npz or .jsonl with --lengths, got {output}")
    table = read_lengths(lengths).table()
    with user_errors():
        layout = assign_packs(table.lengths, packing, sample_ids=table.ids)
        if output.suffix == ".npz":
            _write_npz(output, _layout_arrays(layout, table.ids))
        else:
            _write_jsonl(output, layout, table.ids)
    _print_metrics(output, packing, layout, table.ids, compute_packing_metrics(layout), as_json)


def _pack_to_file(
    paths: Sequence[Path],
    output: Path,
    config: "TokenizeConfig",
    packing: "PackingConfig",
    tokenizer: str,
    split: str | None,
    pad_id: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    from contextlib import closing

    from phalanx.data.collation import TOKEN_ARRAYS, pack_tokens
    from phalanx.data.metrics import compute_packing_metrics
    from phalanx.data.packed_dataset import find_chat_template
    from phalanx.data.packing import assign_packs
    from phalanx.data.samples import TokenDataset
    from phalanx.data.tokenization import tokenize_rows
    from phalanx.data.tokenizers import load_tokenizer

    with input_errors(), progress("tokenizing", "rows", quiet=as_json) as advance:
        used = load_tokenizer(tokenizer)
        rows = tokenize_rows(
            list(paths),
            used,
            config,
            chat=find_chat_template(tokenizer, config),
            split=split,
            on_rows=advance,
            workers=workers,
        )
        with closing(rows):
            dataset = TokenDataset.from_samples(rows)
        if not len(dataset):
            raise ValueError(f"{', '.join(map(str, paths))}: there are no samples")
    padding = pad_id if pad_id is not None else used.pad_token_id or 0
    with user_errors():
        layout = assign_packs(dataset.lengths.lengths, packing, sample_ids=dataset.ids)
        batch = pack_tokens(
            dataset.tokens,
            dataset.offsets,
            packing,
            loss_mask=dataset.loss_mask,
            pad_id=padding,
            layout=layout,
        )
        arrays = {name: getattr(batch, name) for name in TOKEN_ARRAYS}
        _write_npz(output, {**arrays, **_layout_arrays(layout, dataset.ids)})
    metrics = compute_packing_metrics(layout, batch.loss_mask)
    _print_metrics(output, packing, layout, dataset.ids, metrics, as_json)


def _print_metrics(
    output: Path,
    packing: "PackingConfig",
    layout: "PackLayout",
    ids: Sequence[str],
    metrics: "BatchMetrics",
    as_json: bool,
) -> None:
    values = metrics.summary()
    skipped = [str(ids[row]) for row in layout.skipped.tolist()]
    if as_json:
        header = {"output": str(output), "mode": str(packing.mode), "max_length": packing.max_length}
        print_json({**header, **values, "skipped": skipped})
        return
    names = ("num_rows", "num_samples", "total_tokens", "packing_ratio", "efficiency")
    typer.echo(format_fields([("output", output), *((name, values[name]) for name in names)]))
    if skipped:
        typer.echo(f"skipped: {len(skipped):,} samples longer than {packing.max_length}: {_list(skipped)}")


def _list(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit:,} more (--json lists all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _layout_arrays(layout: "PackLayout", ids: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    return {
        "segment_samples": np.array([str(ids[row]) for row in layout.samples.tolist()], np.str_),
        "segment_starts": np.zeros_like(layout.samples) if layout.starts is None else layout.starts,
        "segment_lengths": layout.lengths,
        "pack_offsets": layout.offsets,
    }


def _write_jsonl(output: Path, layout: "PackLayout", ids: Sequence[str]) -> None:
    from phalanx.io.atomic import atomic_write

    starts = _layout_arrays(layout, ids)["segment_starts"]
    with atomic_write(output, "w") as file:
        for number, (begin, end) in enumerate(itertools.pairwise(layout.offsets.tolist())):
            line = {
                "pack": number,
                "samples": [str(ids[row]) for row in layout.samples[begin:end].tolist()],
                "starts": starts[begin:end].tolist(),
                "lengths": layout.lengths[begin:end].tolist(),
            }
            file.write(json.dumps(line) + "\n")


def _write_npz(output: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from phalanx.io.atomic import atomic_write

    with atomic_write(output, checksum=True) as file:
        np.savez(file, allow_pickle=False, **arrays)
