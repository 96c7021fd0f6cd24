"""Fine-tuning data from files, `datasets` or any iterable, row after row, by one process or several.

How a row becomes samples is in `samples`; how files are cut into parts is in `phalanx.data`.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int8, Int32

from phalanx.data.chat_template import ChatTemplate
from phalanx.data.corpus import FilePart, LengthWorkerError, RowPlaces, lines_before, part_rows
from phalanx.data.finetuning.formats import template_of
from phalanx.data.finetuning.samples import Outcome, TokenizeConfig, TokenizeStats, outcomes
from phalanx.data.processes import PartFault, corpus_parts, in_processes, usable_cores
from phalanx.data.readers import ID_FIELDS, IdCheck, TokenizedSample, file_of, iterate_rows
from phalanx.data.tokenizers import Tokenizer

Source: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A file or folder, several of them, or rows: a `datasets.Dataset`, a streaming one, a list of mappings."""
Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""Where it is, for messages, and its columns."""

_ROWS_AT_ONCE = 256


def tokenize_rows(
    source: Source,
    tokenizer: Tokenizer,
    config: TokenizeConfig | None = None,
    *,
    chat: ChatTemplate | None = None,
    split: str | None = None,
    counts: TokenizeStats | None = None,
    on_rows: Callable[[int], None] | None = None,
    workers: int | None = 1,
) -> Generator[TokenizedSample, None, None]:
    """The samples of fine-tuning data, in order, some rows in memory at a time.

    A preference pair gives two samples, `ID/chosen` and `ID/rejected`. `counts` is told what was cut or left
    out, `on_rows` how many rows more are done. Files may be read by several `workers` (None: as many as there
    are cores), with the same result; a script then needs `if __name__ == "__main__":`, and the iterator is to
    be closed if it is not read to its end.
    """
    config = config or TokenizeConfig()
    reading = _Reading(tokenizer, config, chat, counts if counts is not None else TokenizeStats())
    if workers == 1:
        yield from reading.here(rows_of(source, split), on_rows)
    else:
        yield from reading.in_parts(_paths(source), split, on_rows, workers)


def rows_of(source: Source, split: str | None = None) -> Iterator[Row]:
    """(where, row) of a file or folder, of several, or of any iterable of rows."""
    if isinstance(source, str | os.PathLike):
        yield from iterate_rows(Path(source), split)
        return
    if isinstance(source, Mapping):
        raise TypeError(f"choose a split: {', '.join(map(str, source))}")
    for number, item in enumerate(source):
        if isinstance(item, str | os.PathLike):
            yield from iterate_rows(Path(item), split)
        elif isinstance(item, Mapping):
            yield f"row {number}", item
        else:
            raise TypeError(f"row {number} must be a mapping or a path, got {type(item).__name__}")


def _paths(source: Source) -> list[Path]:
    paths = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(paths, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in paths):
        raise ValueError("several workers read files; rows in memory and streams are for workers=1")
    return [Path(one) for one in paths]


class _PartSamples(NamedTuple):
    """The samples of a part of the files, end to end: arrays are sent from process to process, not lists."""

    ids: list[str]
    """Of its rows; empty where they have none."""
    facts: list[tuple[int, str, bool, bool, int]]
    """Of each sample: its row, what its name has behind the row's, whether it is kept, whether it was cut,
    how many tokens are kept."""
    tokens: Int32[np.ndarray, " tokens"]
    mask: Int8[np.ndarray, " tokens"]


class _Reading:
    """One pass over fine-tuning data: the names of rows over all files, and what became of them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: TokenizeConfig,
        chat: ChatTemplate | None,
        counts: TokenizeStats,
    ) -> None:
        self._tokenizer, self._config, self._chat, self._counts = tokenizer, config, chat, counts
        self._ids, self._places = IdCheck(), RowPlaces()
        self._rows = 0

    def here(self, rows: Iterator[Row], on_rows: Callable[[int], None] | None) -> Iterator[TokenizedSample]:
        """Read and tokenize in this process."""
        while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            self._settle(some[0])
            named = [(where, self._name(_told_id(row), where, file_of(where)), row) for where, row in some]
            yield from self._kept(outcomes(named, self._tokenizer, self._config, self._chat))
            if on_rows is not None:
                on_rows(len(some))

    def in_parts(
        self,
        paths: list[Path],
        split: str | None,
        on_rows: Callable[[int], None] | None,
        workers: int | None,
    ) -> Iterator[TokenizedSample]:
        """Let workers read and tokenize; names are given here, in order."""
        parts = corpus_parts(paths, split, workers)
        if min(workers or usable_cores(), len(parts)) <= 1:
            yield from self.here(rows_of(paths, split), on_rows)
            return
        if (first := next(rows_of(paths, split), None)) is not None:
            self._settle(first)
        work = functools.partial(
            tokenize_part, tokenizer=self._tokenizer, config=self._config, chat=self._chat
        )
        with contextlib.closing(in_processes(work, parts, workers)) as found:
            for part, outcome in zip(parts, found, strict=True):
                if isinstance(outcome, PartFault):
                    # Met again here, where rows have their names and lines.
                    yield from self.here(part_rows(part, None, lines_before(part) + 1), on_rows)
                    raise LengthWorkerError(f"a worker could not read part of {part.path} ({outcome.text})")
                self._places.begin(part, self._rows)
                names = [self._name(told, self._rows, part.path) for told in outcome.ids]
                yield from self._kept(_samples_of(outcome, names))
                if on_rows is not None:
                    on_rows(len(names))

    def _settle(self, row: Row) -> None:
        """What rows are goes by the columns of the first."""
        if self._config.template == "auto":
            self._config = self._config.model_copy(update={"template": template_of(row[1])})

    def _name(self, told: str, place: str | int, file: str) -> str:
        name = self._ids.accept(told, self._rows, place, file=file, in_words=self._in_words)
        self._rows += 1
        return name

    def _in_words(self, place: str | int) -> str:
        return place if isinstance(place, str) else self._places.where(place)

    def _kept(self, found: Iterator[Outcome]) -> Iterator[TokenizedSample]:
        for _, sample, kept, cut in found:
            self._counts.truncated += cut
            if kept:
                self._counts.samples += 1
                yield sample
            else:
                self._counts.skipped.append(sample.sample_id)


def tokenize_part(
    part: FilePart, tokenizer: Tokenizer, config: TokenizeConfig, chat: ChatTemplate | None
) -> _PartSamples:
    """What a worker does with a part: all but the rows' names, which depend on the parts before."""
    ids: list[str] = []
    facts = []
    tokens, masks = [np.zeros(0, np.int32)], [np.zeros(0, np.int8)]
    rows = part_rows(part, None, 1)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        unnamed = [(where, "", row) for where, row in some]
        for row, sample, kept, cut in outcomes(unnamed, tokenizer, config, chat):
            facts.append((len(ids) + row, sample.sample_id, kept, cut, sample.length if kept else 0))
            if kept:
                tokens.append(np.array(sample.input_ids, np.int32))
                masks.append(np.array(sample.loss_mask, np.int8))
        ids += [_told_id(row) for _, row in some]
    return _PartSamples(ids, facts, np.concatenate(tokens), np.concatenate(masks))


def _samples_of(found: _PartSamples, names: list[str]) -> Iterator[Outcome]:
    end = 0
    for row, behind, kept, cut, length in found.facts:
        begin, end = end, end + length
        tokens, mask = found.tokens[begin:end].tolist(), found.mask[begin:end].tolist()
        yield Outcome(row, TokenizedSample(names[row] + behind, tokens, mask), kept, cut)


def _told_id(row: Mapping[str, Any]) -> str:
    return str(next((row[field] for field in ID_FIELDS if row.get(field) is not None), ""))
