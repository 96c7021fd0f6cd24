"""What the token commands share: options, and reading caches, plans and tokens; a mistake becomes one line.

What is printed is in `phalanx.cli.output`; the files themselves are described in `phalanx.data`.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    import numpy as np

    from phalanx.data.length_cache import LengthCache
    from phalanx.data.plans.batch_plan import BatchPlan
    from phalanx.data.tokenizers import Tokenizer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CachePath = Annotated[Path, typer.Option("--cache", "-c", help="A length cache.")]
BucketEdges = Annotated[str, typer.Option(help="Longest length of each bucket but the last.")]
TextField = Annotated[str, typer.Option(help="The column that holds the text.")]
Split = Annotated[str | None, typer.Option(help="Which split of a saved Hugging Face dataset.")]
PadId = Annotated[
    int | None, typer.Option(help="The token that fills rows up.", show_default="the tokenizer's, or 0")
]
AddBos = Annotated[bool, typer.Option("--add-bos", help="Put the begin of text before every text.")]
AddEos = Annotated[bool, typer.Option("--add-eos", help="Put the end of text after every text.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that read and tokenize.", show_default="the cores")
]
PackMode = Literal["best_fit_decreasing", "hybrid", "best_fit", "first_fit", "greedy"]


class Tokens(NamedTuple):
    """A sample as arrays, because lists of numbers take several times the memory."""

    sample_id: str
    input_ids: "np.ndarray"
    loss_mask: "np.ndarray"


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """`user_errors`, for work that may also need an optional library."""
    try:
        with user_errors():
            yield
    except ImportError as error:
        # Anything else that cannot be imported is a fault of the program, and keeps its traceback.
        if "pip install" not in str(error):
            raise
        raise UserError(str(error)) from error


def read_lengths(path: Path) -> "LengthCache":
    """A whole length cache."""
    from phalanx.data.length_cache import LengthCache

    with input_errors():
        cache = asyncio.run(LengthCache.load(path))
        if not len(cache):
            raise ValueError(f"{path}: the length cache is empty; build it with `phalanx data lengths build`")
    return cache


def read_plan(path: Path) -> "BatchPlan":
    """A saved plan; its batches stay on disk until they are used."""
    from phalanx.data.plans.plan_files import load_batch_plan

    with user_errors():
        return load_batch_plan(path)


def read_tokens(
    dataset: Path, tokenizer: "Tokenizer", text_field: str, split: str | None
) -> Iterator[Tokens]:
    """The tokens of every sample of a dataset, in order."""
    import numpy as np

    from phalanx.data.readers import iterate_samples, tokenize_samples

    for sample in tokenize_samples(iterate_samples(dataset, text_field=text_field, split=split), tokenizer):
        yield Tokens(
            sample.sample_id, np.array(sample.input_ids, np.int32), np.array(sample.loss_mask, np.int8)
        )


def parse_edges(text: str) -> tuple[int, ...]:
    """`128,256,512` as numbers; whether they ascend is for the buckets to say."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--bucket-edges takes whole numbers with commas, as in 128,256,512; got {text!r}"
        ) from None
