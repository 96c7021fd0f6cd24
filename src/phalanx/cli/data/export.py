"""`phalanx data batch`: turn a plan and a dataset into batch files that a trainer only has to load.

The files are written by `phalanx.data.BatchWriter` and read by `BatchReader`.
"""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.data.options import (
    AddBos,
    AddEos,
    AsJson,
    PadId,
    Split,
    TextField,
    input_errors,
    read_plan,
    read_tokens,
)
from phalanx.cli.errors import UserError
from phalanx.cli.output import print_json, progress

app = typer.Typer(name="batch", help="Batch files: generate.", no_args_is_help=True, add_completion=False)


@app.callback()
def _batch() -> None:
    pass


@app.command()
def generate(
    plan: Annotated[Path, typer.Option("--plan", "-p", help="The folder of a plan, whole or of one rank.")],
    dataset: Annotated[Path, typer.Option("--dataset", "-d", help="The dataset whose lengths were planned.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="The tokenizer that the lengths were counted with.")
    ] = "bytes",
    add_bos: AddBos = False,
    add_eos: AddEos = False,
    text_field: TextField = "text",
    split: Split = None,
    pad_id: PadId = None,
    as_json: AsJson = False,
) -> None:
    """Write one NPZ file for each batch; writing that was interrupted goes on where it stopped."""
    from phalanx.data.batch_files import BatchWriter
    from phalanx.data.tokenizers import load_tokenizer

    opened = read_plan(plan)
    with input_errors():
        used = load_tokenizer(tokenizer, add_bos=add_bos, add_eos=add_eos)
    made = opened.meta.tokenizer_hash
    if made and made != used.tokenizer_hash:
        raise UserError(
            f"{plan} was made with tokenizer {made}, but {tokenizer!r} is {used.tokenizer_hash}; "
            f"use the tokenizer that the lengths were counted with, and --add-bos and --add-eos as there"
        )
    wanted = {
        str(opened.table.ids[row]) for epoch in opened.epochs for row in set(epoch.batches.order.tolist())
    }
    with input_errors(), progress("tokenizing", "samples", len(wanted), quiet=as_json) as advance:
        samples = {}
        for sample in read_tokens(dataset, used, text_field, split):
            if sample.sample_id in wanted:
                samples[sample.sample_id] = sample
                advance(1)
    padding = pad_id if pad_id is not None else used.pad_token_id or 0
    writer = BatchWriter(opened, samples, output, pad_id=padding)
    batches = opened.total_microbatches
    with input_errors(), progress("writing", "batches", batches, quiet=as_json) as advance:
        files = writer.write_all(on_batch=lambda _: advance(1))
    if as_json:
        print_json(
            {
                "output": str(output),
                "fingerprint": opened.fingerprint,
                "epochs": opened.num_epochs,
                "batches": len(files),
                "bytes": sum(file.stat().st_size for file in files),
                "pad_id": padding,
            }
        )
    else:
        typer.echo(f"{output}: {len(files):,} batches of plan {opened.fingerprint}")
