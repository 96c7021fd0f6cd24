"""Options and functions that the `phalanx data` commands share."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.data.length_cache import LengthCache
    from phalanx.data.plans.batch_plan import BatchPlan

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CachePath = Annotated[Path, typer.Option("--cache", "-c", help="Length cache.")]
DataFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        help="JSONL, Parquet or text files (one sample per line), folders of them, or saved HF datasets.",
        show_default=False,
    ),
]
DatasetFiles = Annotated[
    list[Path] | None, typer.Option("--dataset", "-d", help="Same as DATA.", show_default=False)
]
TokenizerName = Annotated[
    str,
    typer.Option("--tokenizer", "-t", help="bytes, a tokenizer.json or its folder, or a Hugging Face name."),
]
RowFormat = Annotated[
    Literal["auto", "chat", "prompt_completion", "preference", "text", "tokens"],
    typer.Option("--format", help="Format of the rows; auto decides by their columns."),
]
ChatTemplateName = Annotated[
    str | None,
    typer.Option("--chat-template", help="chatml or a Jinja file.", show_default="the tokenizer's"),
]
BucketEdges = Annotated[str, typer.Option(help="Maximum length of each bucket except the last.")]
MaxSampleLength = Annotated[
    int, typer.Option(help="Maximum sample length in tokens. Longer samples are skipped.")
]
TextField = Annotated[str, typer.Option(help="Column with the text.")]
Split = Annotated[str | None, typer.Option(help="Split of a saved Hugging Face dataset.")]
PadId = Annotated[int | None, typer.Option(help="Token for padding.", show_default="the tokenizer's, or 0")]
AddBos = Annotated[bool, typer.Option("--add-bos", help="Add the beginning-of-text token to every text.")]
AddEos = Annotated[
    bool | None,
    typer.Option(
        "--add-eos/--no-add-eos",
        help="Add the end-of-text token.",
        show_default="to texts and completions",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes that read and tokenize.", show_default="number of cores"),
]
WITHOUT_LOSS = "without tokens that count toward the loss"
"""Why tokenization skips a sample of any length."""
PackMode = Literal["best_fit_decreasing", "subset_sum", "best_fit", "first_fit", "next_fit"]


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """Convert errors in the `with` block to `UserError` if invalid input or a worker process caused them."""
    from phalanx.io.worker_pool import WorkerPoolError

    try:
        with user_errors():
            yield
    except WorkerPoolError as error:
        raise UserError(str(error)) from error


def load_lengths(path: Path) -> "LengthCache":
    """Read a length cache. Raise `UserError` if it is invalid or empty."""
    from phalanx.data.length_cache import LengthCache

    with input_errors():
        cache = LengthCache.load(path)
        if not len(cache):
            raise ValueError(f"{path}: the length cache is empty; build it with `phalanx data lengths build`")
    return cache


def load_plan(path: Path) -> "BatchPlan":
    """Read a saved batch plan. Raise `UserError` if it is invalid."""
    from phalanx.data.plans.plan_files import load_batch_plan

    with user_errors():
        return load_batch_plan(path)


def parse_edges(text: str) -> tuple[int, ...]:
    """Parse comma-separated bucket edges, such as `128,256,512`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--bucket-edges must be integers separated by commas, such as 128,256,512; got {text!r}"
        ) from None


def show_skipped(sample_ids: Sequence[str], reason: str) -> None:
    """Print the number of skipped samples, the reason, and the first ids. Print nothing if there are none."""
    if sample_ids:
        more = f" and {len(sample_ids) - 3:,} more (--json lists all)" if len(sample_ids) > 3 else ""
        first = ", ".join(sample_ids[:3])
        typer.echo(f"skipped: {len(sample_ids):,} samples {reason}: {first}{more}")
