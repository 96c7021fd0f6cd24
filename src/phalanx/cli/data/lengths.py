"""`phalanx data lengths`: count the tokens of a dataset's samples once, and look at the counts.

The cache file is `phalanx.tokens.LengthCache`; datasets are read by `iterate_samples` there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.data.inputs import (
    AddBos,
    AddEos,
    AsJson,
    CachePath,
    Split,
    TextField,
    input_errors,
    read_lengths,
)
from phalanx.cli.errors import UserError
from phalanx.cli.printing import facts, print_json, progress

if TYPE_CHECKING:
    from phalanx.tokens import LengthCache, Tokenizer

app = typer.Typer(
    name="lengths", help="Length caches: build, stats.", no_args_is_help=True, add_completion=False
)


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
    add_bos: AddBos = False,
    add_eos: AddEos = False,
    text_field: TextField = "text",
    split: Split = None,
    on_ray: Annotated[
        bool, typer.Option("--ray", help="Count with many processes on Ray; the result is the same.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster that sees the dataset; without it Ray is started here."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that count on Ray; all cores unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize a dataset and write the length of every sample; an interrupted cache is continued."""
    from phalanx.tokens import LengthCache, iterate_lengths, iterate_samples, load_tokenizer

    if not on_ray and (ray_address is not None or workers is not None):
        raise UserError("--ray-address and --workers are for --ray; add it, or leave them out")
    if on_ray and split is not None:
        raise UserError("--split chooses from a saved Hugging Face dataset, which is not read with --ray")

    async def fill(cache: "LengthCache", advance: Callable[[int], None]) -> None:
        async with cache:
            for ids, lengths in counted:
                await cache.add_many(ids, lengths)
                advance(len(ids))

    shown = progress("tokenizing", "samples", quiet=as_json)
    with input_errors(), shown as advance, contextlib.ExitStack() as stack:
        used = load_tokenizer(tokenizer, add_bos=add_bos, add_eos=add_eos)
        counted = iterate_lengths(iterate_samples(dataset, text_field=text_field, split=split), used)
        if on_ray:
            on_workers = _count_on_ray(dataset, used, text_field, ray_address, workers)
            # Closed also when the cache refuses something, so that no cluster stays behind.
            counted = stack.enter_context(contextlib.closing(on_workers))
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


def _count_on_ray(
    dataset: Path, tokenizer: "Tokenizer", text_field: str, address: str | None, workers: int | None
) -> Generator[tuple[list[str], list[int]], None, None]:
    from phalanx.tokens import RayWorkerError, iterate_lengths_on_ray

    try:
        yield from iterate_lengths_on_ray(
            dataset, tokenizer, text_field=text_field, address=address, workers=workers
        )
    except RayWorkerError as error:
        raise UserError(str(error)) from error


@app.command()
def stats(cache: CachePath, as_json: AsJson = False) -> None:
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
