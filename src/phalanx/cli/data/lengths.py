"""`phalanx data lengths`: count the tokens of a dataset's samples once, and look at the counts.

The cache file is `phalanx.data.LengthCache`; datasets are read by `iterate_samples` there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.data.options import (
    AddBos,
    AddEos,
    AsJson,
    CachePath,
    Split,
    TextField,
    Workers,
    input_errors,
    read_lengths,
)
from phalanx.cli.errors import UserError
from phalanx.cli.output import format_fields, print_json, progress

if TYPE_CHECKING:
    from phalanx.data.length_cache import LengthCache

app = typer.Typer(
    name="lengths", help="Length caches: build, stats.", no_args_is_help=True, add_completion=False
)


@app.command()
def build(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The cache: .npz and .arrow are binary, others JSONL.")
    ],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="JSONL, Parquet, text (a sample a line), folders of those, saved HF datasets.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        list[Path] | None, typer.Option("--dataset", "-d", help="The same, as an option.", show_default=False)
    ] = None,
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
    workers: Workers = None,
    on_ray: Annotated[
        bool, typer.Option("--ray", help="Count with many processes on Ray; the result is the same.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster that sees the dataset; without it Ray is started here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize datasets and write the length of every sample; an interrupted cache is continued.

    phalanx data lengths build a.jsonl b.parquet c.txt --output lengths.npz
    """
    from phalanx.data.corpus import LengthWorkerError
    from phalanx.data.length_cache import LengthCache
    from phalanx.data.processes import iterate_lengths_in_processes
    from phalanx.data.ray_lengths import iterate_lengths_on_ray
    from phalanx.data.tokenizers import load_tokenizer

    paths = [*(dataset or ()), *(data or ())]
    if not paths:
        raise UserError("name the files to count, as in `phalanx data lengths build train.jsonl -o FILE`")
    if not on_ray and ray_address is not None:
        raise UserError("--ray-address is for --ray; add it, or leave it out")
    if on_ray and split is not None:
        raise UserError("--split chooses from a saved Hugging Face dataset, which is not read with --ray")
    counted: Generator[tuple[list[str], list[int]], None, None]
    advance: Callable[[int], None] | None = None
    with input_errors(), contextlib.ExitStack() as stack:
        used = load_tokenizer(tokenizer, add_bos=add_bos, add_eos=add_eos)
        if on_ray:
            counted = iterate_lengths_on_ray(
                paths, used, text_field=text_field, address=ray_address, workers=workers
            )
            advance = stack.enter_context(progress("tokenizing", "samples", quiet=as_json))
        else:
            on_bytes = stack.enter_context(_bytes_done(quiet=as_json))
            counted = iterate_lengths_in_processes(
                paths, used, text_field=text_field, split=split, workers=workers, on_bytes=on_bytes
            )
        # Closed also when the cache refuses something, so that no process stays behind.
        stack.enter_context(contextlib.closing(counted))
        cache = LengthCache.create(output, used.tokenizer_hash)
        try:
            _fill(cache, counted, advance)
        except LengthWorkerError as error:
            raise UserError(str(error)) from error
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


def _fill(
    cache: "LengthCache",
    counted: Iterator[tuple[list[str], list[int]]],
    advance: Callable[[int], None] | None,
) -> None:
    """Write what is counted as it comes; Ctrl-C ends it at once and keeps what was written."""
    # Not one coroutine for all of it: that would hear of Ctrl-C only when it waits for something.
    with asyncio.Runner() as runner:
        runner.run(cache.__aenter__())
        try:
            for ids, lengths in counted:
                runner.run(cache.add_many(ids, lengths))
                if advance is not None:
                    advance(len(ids))
        finally:
            runner.run(cache.__aexit__(None, None, None))


@contextlib.contextmanager
def _bytes_done(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Progress in kilobytes of all files, of which the number is known beforehand, that of samples not."""
    done = 0
    with contextlib.ExitStack() as stack:
        advance: Callable[[int], None] | None = None

        def told(now: int, total: int) -> None:
            nonlocal done, advance
            if advance is None:
                advance = stack.enter_context(progress("tokenizing", "kB", total >> 10, quiet=quiet))
            advance((now >> 10) - done)
            done = now >> 10

        yield told


@app.command()
def stats(cache: CachePath, as_json: AsJson = False) -> None:
    """Show how many samples a cache holds and how long they are."""
    from phalanx.data.length_analysis import compute_length_histogram

    lengths = read_lengths(cache)
    found = compute_length_histogram(lengths.table())
    if as_json:
        figures = found.model_dump(exclude={"bins"})
        print_json({"cache": str(cache), "tokenizer_hash": lengths.tokenizer_hash, **figures})
        return
    percentiles = ("p25", "p50", "p75", "p90", "p95", "p99")
    typer.echo(
        format_fields(
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
