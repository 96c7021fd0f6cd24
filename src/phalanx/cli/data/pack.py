"""`phalanx data pack`: put samples into packs, from their lengths alone or with their tokens.

Which sample goes where is decided by `phalanx.data.assign_packs`; `pack_tokens` copies the tokens.
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
    read_tokens,
)
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, print_json, progress

if TYPE_CHECKING:
    import numpy as np

    from phalanx.data.packing import PackLayout
    from phalanx.data.tokenizers import Tokenizer

app = typer.Typer(name="pack", help="Pack samples into rows of one length.", add_completion=False)


@app.command()
def pack(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "--out",
            "-o",
            help="A folder of batches; .npz with --dataset; .npz or .jsonl with --lengths.",
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Fine-tuning data: .jsonl, .parquet, .txt, or folders of them.", show_default=False
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", "-l", help="A length cache: decide who shares a pack."),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", "-d", help="A dataset: also write the packed tokens.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="With --dataset: what makes the tokens.")
    ] = "bytes",
    template: Annotated[
        Literal["auto", "chat", "prompt", "text", "preference", "tokens"],
        typer.Option(help="What rows of fine-tuning data are; auto goes by their columns."),
    ] = "auto",
    chat_template: Annotated[
        str | None, typer.Option(help="chatml or a Jinja file.", show_default="the tokenizer's")
    ] = None,
    loss: Annotated[
        Literal["auto", "all", "completion", "assistant", "last"],
        typer.Option(help="What of fine-tuning data is learned."),
    ] = "auto",
    truncation: Annotated[
        Literal["error", "skip", "right", "left", "turns"],
        typer.Option(help="What becomes of fine-tuning samples longer than a pack."),
    ] = "error",
    rows: Annotated[int, typer.Option(min=1, help="Packs in a batch of fine-tuning data.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of batches, each packed anew.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Decides the order of the batches.")] = 42,
    max_length: Annotated[
        int, typer.Option("--max-length", "--length", min=1, help="Tokens in a pack.")
    ] = 2048,
    mode: Annotated[
        PackMode, typer.Option("--mode", "-m", help="How samples choose their packs.")
    ] = "best_fit_decreasing",
    overlong: Annotated[
        Literal["error", "skip", "truncate", "split"],
        typer.Option(help="What to do with samples longer than a pack."),
    ] = "error",
    separator: Annotated[
        int | None, typer.Option(help="Put this token between samples.", show_default="none")
    ] = None,
    pad_id: PadId = None,
    add_bos: AddBos = False,
    add_eos: Annotated[
        bool | None,
        typer.Option(
            "--add-eos/--no-add-eos",
            help="Put the end of text after every text.",
            show_default="after texts and completions of fine-tuning data",
        ),
    ] = None,
    text_field: TextField = "text",
    split: Split = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Pack fine-tuning data into batches, or samples from their lengths or tokens into packs.

    phalanx data pack train.jsonl --tokenizer T --template chat --length 4096 --out DIR

    Never more in a pack than fits, and each sample whole unless --truncation or --overlong says otherwise.
    """
    if data:
        if lengths is not None or dataset is not None:
            raise UserError("give the data itself, or --lengths, or --dataset")
        from phalanx.cli.data.finetuning import pack_finetuning

        pack_finetuning(
            data,
            output,
            {
                "template": template,
                "loss": loss,
                "truncation": truncation,
                "max_length": max_length,
                "add_bos": add_bos,
                "add_eos": add_eos,
            },
            tokenizer=tokenizer,
            chat_template=chat_template,
            split=split,
            mode=mode,
            rows=rows,
            epochs=epochs,
            seed=seed,
            pad_id=pad_id,
            workers=workers,
            as_json=as_json,
        )
        return
    if workers is not None:
        raise UserError("--workers read files of fine-tuning data; leave it out with --lengths and --dataset")
    from phalanx.data.packed_batch import pack_tokens
    from phalanx.data.packing import assign_packs
    from phalanx.data.packing_config import PackingConfig
    from phalanx.data.sequences import compute_packing_metrics

    if (lengths is None) == (dataset is None):
        raise UserError(
            "give either --lengths (which samples share a pack), or --dataset (with tokens), or files of "
            "fine-tuning data"
        )
    if output.suffix not in ((".npz", ".jsonl") if dataset is None else (".npz",)):
        kinds = ".npz or .jsonl" if dataset is None else ".npz"
        raise UserError(f"--output must end in {kinds}, got {output}")
    with user_errors():
        config = PackingConfig(
            mode=mode,
            max_length=max_length,
            overlong=overlong,
            add_separator=separator is not None,
            separator_token_id=separator,
        )
    if lengths is not None:
        table = read_lengths(lengths).table()
        with user_errors():
            layout = assign_packs(table.lengths, config, sample_ids=table.ids)
        _write_layout(output, layout, table.ids)
        metrics = compute_packing_metrics(layout)
    else:
        assert dataset is not None
        from phalanx.data.tokenizers import load_tokenizer

        with input_errors():
            used = load_tokenizer(tokenizer, add_bos=add_bos, add_eos=bool(add_eos))
        ids, tokens, offsets, mask = _read(dataset, used, text_field, split, quiet=as_json)
        padding = pad_id if pad_id is not None else used.pad_token_id or 0
        import numpy as np

        with user_errors():
            layout = assign_packs(np.diff(offsets), config, sample_ids=ids)
        batch = pack_tokens(tokens, offsets, config, loss_mask=mask, pad_token_id=padding, layout=layout)
        arrays = {
            name: getattr(batch, name) for name in ("input_ids", "loss_mask", "segment_ids", "position_ids")
        }
        _write_npz(output, {**arrays, **_layout_arrays(layout, ids)})
        metrics = compute_packing_metrics(batch)
    figures = metrics.summary()
    skipped = [str((table.ids if lengths is not None else ids)[row]) for row in layout.skipped.tolist()]
    if as_json:
        print_json(
            {"output": str(output), "mode": mode, "max_length": max_length, **figures, "skipped": skipped}
        )
        return
    names = ("num_packs", "num_segments", "total_tokens", "packing_ratio", "efficiency")
    typer.echo(format_fields([("output", output), *((name, figures[name]) for name in names)]))
    if skipped:
        typer.echo(f"skipped: {len(skipped):,} samples longer than {max_length}: {_listed(skipped)}")


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most:,} more (--json lists all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _layout_arrays(layout: "PackLayout", ids: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    return {
        "segment_samples": np.array([str(ids[row]) for row in layout.samples.tolist()], np.str_),
        "segment_starts": layout.starts,
        "segment_lengths": layout.lengths,
        "pack_offsets": layout.offsets,
    }


def _write_layout(output: Path, layout: "PackLayout", ids: Sequence[str]) -> None:
    if output.suffix == ".npz":
        _write_npz(output, _layout_arrays(layout, ids))
        return
    from phalanx.io.atomic import atomic_write

    bounds = layout.offsets.tolist()
    with user_errors(), atomic_write(output, "w") as file:
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            line = {
                "pack": number,
                "samples": [str(ids[row]) for row in layout.samples[begin:end].tolist()],
                "starts": layout.starts[begin:end].tolist(),
                "lengths": layout.lengths[begin:end].tolist(),
            }
            file.write(json.dumps(line) + "\n")


def _write_npz(output: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from phalanx.io.atomic import atomic_write

    with user_errors(), atomic_write(output, checksum=True) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _read(
    dataset: Path, tokenizer: "Tokenizer", text_field: str, split: str | None, *, quiet: bool
) -> "tuple[list[str], np.ndarray, np.ndarray, np.ndarray]":
    """Ids, all tokens end to end, where each sample begins, and the loss mask."""
    import numpy as np

    samples = []
    with input_errors(), progress("tokenizing", "samples", quiet=quiet) as advance:
        for sample in read_tokens(dataset, tokenizer, text_field, split):
            samples.append(sample)
            advance(1)
        if not samples:
            raise ValueError(f"{dataset} holds no samples")
    ids, tokens, masks = zip(*samples, strict=True)
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    return list(ids), np.concatenate(tokens), offsets, np.concatenate(masks)
