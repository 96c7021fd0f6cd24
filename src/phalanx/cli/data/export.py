"""`phalanx data export`: writes the batches of a plan to files."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.data.options import (
    AddBos,
    AddEos,
    AsJson,
    ChatTemplateName,
    PadId,
    RowFormat,
    Split,
    TextField,
    input_errors,
    load_plan,
)
from phalanx.cli.output import print_json, progress

app = typer.Typer(name="export", help="Write the batches of a plan to files.", add_completion=False)
batch_app = typer.Typer(name="batch", help="Batch files.", no_args_is_help=True, add_completion=False)


@batch_app.callback()
def _batch() -> None:
    pass


@batch_app.command("generate")
@app.command()
def export(
    plan: Annotated[Path, typer.Option("--plan", "-p", help="Complete plan, or the plan of one rank.")],
    dataset: Annotated[Path, typer.Option("--dataset", "-d", help="Dataset that the plan was built for.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="Tokenizer that the lengths were counted with.")
    ] = "bytes",
    row_format: RowFormat = "auto",
    chat_template: ChatTemplateName = None,
    add_bos: AddBos = False,
    add_eos: AddEos = None,
    text_field: TextField = "text",
    split: Split = None,
    pad_id: PadId = None,
    as_json: AsJson = False,
) -> None:
    """Write one NPZ file per batch of a plan.

    If the command is interrupted, run it again to write the remaining files.
    """
    from phalanx.data.batch_files import BatchWriter
    from phalanx.data.packed_dataset import find_chat_template
    from phalanx.data.samples import TokenDataset
    from phalanx.data.tokenization import TokenizeConfig, check_tokenizer_hash, tokenize_rows
    from phalanx.data.tokenizers import load_tokenizer

    loaded = load_plan(plan)
    with input_errors():
        used = load_tokenizer(tokenizer)
        config = TokenizeConfig(
            format=row_format,
            text_field=text_field,
            add_bos=add_bos,
            add_eos=add_eos,
            chat_template=chat_template,
        )
        chat = find_chat_template([dataset], tokenizer, config, split)
        actual = config.tokenizer_hash(used, chat)
        check_tokenizer_hash(loaded.meta.tokenizer_hash, actual, where=str(plan), tokenizer=tokenizer)
    wanted = {
        str(loaded.table.ids[row]) for epoch in loaded.epochs for row in set(epoch.batches.order.tolist())
    }
    with input_errors(), progress("tokenizing", "samples", len(wanted), quiet=as_json) as advance:
        samples = []
        for sample in tokenize_rows(dataset, used, config, chat=chat, split=split):
            if sample.sample_id in wanted:
                samples.append(sample)
                advance(1)
        tokens = TokenDataset.from_samples(samples)
    padding = pad_id if pad_id is not None else used.pad_token_id or 0
    writer = BatchWriter(loaded, tokens, output, pad_id=padding)
    with input_errors(), progress("writing", "batches", loaded.num_batches, quiet=as_json) as advance:
        files = writer.write_all(on_batch=lambda _: advance(1))
    if not as_json:
        typer.echo(f"{output}: {len(files):,} batches of plan {loaded.fingerprint}")
        return
    print_json(
        {
            "output": str(output),
            "fingerprint": loaded.fingerprint,
            "epochs": loaded.num_epochs,
            "batches": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "pad_id": padding,
        }
    )
