"""`phalanx data lengths`: count the tokens of a dataset's samples once, and look at the counts.

The cache file is `phalanx.tokens.LengthCache`; datasets are read by `phalanx.tokens.sources`.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.printing import facts, print_json, progress
from phalanx.cli.token_inputs import input_errors, read_lengths

if TYPE_CHECKING:
    from phalanx.tokens import LengthCache

app = typer.Typer(
    name="lengths", help="Length caches: build, stats.", no_args_is_help=True, add_completion=False
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    dataset: Annotated[
        Path,
        typer.Option("--dataset", "-d", help="JSONL, Parquet, a folder of those, or a saved HF dataset."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The cache: .npz and .arrow are binary, others JSONL.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", "-t", help="bytes, a tokenizer.json or its folder, or a Hugging Face name."
        ),
    ] = "bytes",
    text_field: Annotated[str, typer.Option(help="The column that holds the text.")] = "text",
    split: Annotated[str | None, typer.Option(help="Which split of a saved Hugging Face dataset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize a dataset and write the length of every sample; an interrupted cache is continued."""
    from phalanx.tokens import LengthCache, iterate_lengths, iterate_samples, load_tokenizer

    async def fill(cache: "LengthCache", advance: Callable[[int], None]) -> None:
        async with cache:
            for ids, lengths in iterate_lengths(samples, used):
                await cache.add_many(ids, lengths)
                advance(len(ids))

    with input_errors(), progress("tokenizing", "samples", quiet=as_json) as advance:
        used = load_tokenizer(tokenizer)
        samples = iterate_samples(dataset, text_field=text_field, split=split)
        cache = LengthCache.create(output, used.tokenizer_hash)
        asyncio.run(fill(cache, advance))
    tokens = int(cache.lengths.sum(dtype="int64"))
    if as_json:
        print_json(
            {
                "output": str(output),
                "samples": len(cache),
                "tokens": tokens,
                "tokenizer": tokenizer,
                "tokenizer_hash": used.tokenizer_hash,
            }
        )
    else:
        typer.echo(f"{output}: {len(cache):,} samples, {tokens:,} tokens ({tokenizer})")


@app.command()
def stats(
    cache: Annotated[Path, typer.Option("--cache", "-c", help="A length cache.")],
    as_json: AsJson = False,
) -> None:
    """Show how many samples a cache holds and how long they are."""
    from phalanx.tokens import compute_length_histogram

    lengths = read_lengths(cache)
    found = compute_length_histogram(lengths.table())
    if as_json:
        figures = found.model_dump(exclude={"bins"})
        print_json({"cache": str(cache), "tokenizer_hash": lengths.tokenizer_hash, **figures})
        return
    percentiles = ("p25", "p50", "p75", "p90", "p95", "p99")
    typer.echo(
        facts(
            [
                ("cache", cache),
                ("tokenizer", lengths.tokenizer_hash),
                ("samples", found.total_samples),
                ("tokens", found.total_tokens),
                ("shortest", found.min_length),
                ("mean", f"{found.mean_length:.1f}"),
                ("deviation", f"{found.std_length:.1f}"),
                ("longest", found.max_length),
                *((name, getattr(found, name)) for name in percentiles),
            ]
        )
    )
