"""`phalanx data lengths`: counts the tokens in each sample and saves the counts in a length cache."""

import contextlib
import itertools
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.data.options import (
    WITHOUT_LOSS,
    AddBos,
    AddEos,
    AsJson,
    CachePath,
    ChatTemplateName,
    DataFiles,
    DatasetFiles,
    RowFormat,
    Split,
    TextField,
    TokenizerName,
    Workers,
    input_errors,
    load_lengths,
    show_skipped,
)
from phalanx.cli.errors import UserError
from phalanx.cli.output import format_fields, print_json, progress

app = typer.Typer(help="Length caches: build, stats.", no_args_is_help=True, add_completion=False)


@app.command()
def build(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Cache: .npz for fast loading, others are JSONL.")
    ],
    data: DataFiles = None,
    dataset: DatasetFiles = None,
    tokenizer: TokenizerName = "bytes",
    row_format: RowFormat = "auto",
    chat_template: ChatTemplateName = None,
    add_bos: AddBos = False,
    add_eos: AddEos = None,
    text_field: TextField = "text",
    split: Split = None,
    workers: Workers = None,
    use_ray: Annotated[
        bool, typer.Option("--ray", help="Count with Ray tasks; the result is the same.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Running Ray cluster that can read the dataset; without it, Ray is started here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the tokens in every sample. New samples are added to an existing length cache.

    phalanx data lengths build a.jsonl b.parquet c.txt --output lengths.npz
    """
    from phalanx.data.length_cache import LengthCache
    from phalanx.data.packed_dataset import find_chat_template
    from phalanx.data.readers import total_bytes
    from phalanx.data.tokenization import TokenizeConfig, TokenizeStats, iter_lengths
    from phalanx.data.tokenizers import load_tokenizer

    paths = [*(dataset or ()), *(data or ())]
    if not paths:
        raise UserError("no files to read; use `phalanx data lengths build train.jsonl -o FILE`")
    if not use_ray and ray_address is not None:
        raise UserError("--ray-address needs --ray")
    done, found = 0, TokenizeStats()
    # In kilobytes, because the number of samples is not known in advance.
    with input_errors(), progress("tokenizing", "kB", total_bytes(paths) >> 10, quiet=as_json) as advance:

        def show_progress(now: int, total: int) -> None:
            nonlocal done
            advance((now >> 10) - done)
            done = now >> 10

        used = load_tokenizer(tokenizer)
        config = TokenizeConfig(
            format=row_format,
            text_field=text_field,
            add_bos=add_bos,
            add_eos=add_eos,
            chat_template=chat_template,
        )
        chat = find_chat_template(paths, tokenizer, config, split)
        tokenizer_hash = config.tokenizer_hash(used, chat)
        counts = iter_lengths(
            paths,
            used,
            config,
            chat=chat,
            split=split,
            workers=workers,
            use_ray=use_ray,
            ray_address=ray_address,
            stats=found,
            on_bytes=show_progress,
        )
        # Closed even if the cache rejects an entry, so that no worker process is left behind.
        with contextlib.closing(counts):
            # Counted before the cache is created, so that invalid input does not create a file.
            first = list(itertools.islice(counts, 1))
            with LengthCache.create(output, tokenizer_hash) as cache:
                for ids, lengths in itertools.chain(first, counts):
                    cache.add_many(ids, lengths)
    tokens = int(cache.lengths.sum(dtype="int64"))
    if as_json:
        counted = {"output": str(output), "samples": len(cache), "tokens": tokens}
        skipped = [{"sample_id": name, "reason": WITHOUT_LOSS} for name in found.skipped]
        values = {"tokenizer": tokenizer, "tokenizer_hash": tokenizer_hash, "num_skipped": len(skipped)}
        print_json({**counted, **values, "skipped": skipped})
    else:
        typer.echo(f"{output}: {len(cache):,} samples, {tokens:,} tokens ({tokenizer})")
        show_skipped(found.skipped, WITHOUT_LOSS)


@app.command()
def stats(cache: CachePath, as_json: AsJson = False) -> None:
    """Show the number of samples in a cache and the distribution of their lengths."""
    from phalanx.data.length_histogram import compute_length_histogram

    lengths = load_lengths(cache)
    found = compute_length_histogram(lengths.table())
    if as_json:
        values = found.model_dump(exclude={"bins"})
        print_json({"cache": str(cache), "tokenizer_hash": lengths.tokenizer_hash, **values})
        return
    fields = [
        ("cache", cache),
        ("tokenizer", lengths.tokenizer_hash),
        ("samples", found.total_samples),
        ("tokens", found.total_tokens),
        ("shortest", found.min_length),
        ("mean", f"{found.mean_length:.1f}"),
        ("deviation", f"{found.std_length:.1f}"),
        ("longest", found.max_length),
    ]
    percentiles = ("p25", "p50", "p75", "p90", "p95", "p99")
    typer.echo(format_fields([*fields, *((name, getattr(found, name)) for name in percentiles)]))
