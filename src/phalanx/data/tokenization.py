"""Tokenization of dataset rows, with chat templates, special tokens, loss masks and truncation."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int8, Int32
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.data.chat_template import ChatTemplate, Message, Span
from phalanx.data.readers import (
    ID_FIELDS,
    FilePart,
    IdAssigner,
    Paths,
    Row,
    RowSource,
    as_paths,
    count_lines_before,
    iter_rows,
    read_part,
    row_id,
    split_files,
    total_bytes,
)
from phalanx.data.samples import Sample, TokenDataset, as_loss_mask, as_token_ids
from phalanx.data.tokenizers import Tokenizer, short_hash
from phalanx.io.worker_pool import ordered_map, usable_cores

RowFormat: TypeAlias = Literal["auto", "chat", "prompt_completion", "preference", "text", "tokens"]
Loss: TypeAlias = Literal["auto", "all", "completion", "assistant", "last_turn"]
Truncation: TypeAlias = Literal["error", "skip", "right", "left", "drop_turns"]

_IGNORE_INDEX = -100
_ROWS_AT_ONCE = 256
_MIN_PART_BYTES, _MAX_PART_BYTES = 1 << 20, 1 << 22
_PARTS_PER_WORKER = 8

_MESSAGE_COLUMNS = ("messages", "conversations", "conversation")
_PAIR_COLUMNS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("question", "answer"),
)
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


class TokenizeConfig(Config):
    """Settings for converting the rows of a dataset to tokenized samples."""

    renamed_settings: ClassVar[dict[str, str]] = {"template": "format"}

    format: RowFormat = "auto"
    """Format of the rows: `chat` (messages), `prompt_completion`, `preference` (pairs of a chosen and a
    rejected answer), `text`, or `tokens` (input_ids). `auto` detects the format from the columns of the first
    row."""
    text_field: str = "text"
    """Name of the column that contains the text of `text` rows."""
    loss: Loss = "auto"
    """Tokens that count in the loss: `all` tokens, those of the `completion`, of every `assistant` turn, or
    of the assistant's `last_turn`. `auto` depends on the format: assistant turns of conversations,
    completions of prompts, all tokens of texts, and the `labels` or `loss_mask` of token rows."""
    max_length: int | None = Field(default=None, ge=2)
    """Maximum number of tokens in a sample. None means no limit."""
    truncation: Truncation = "error"
    """What happens to samples that are longer than `max_length`: raise an `error`, `skip` them, truncate them
    on the `right` or `left`, or `drop_turns`, which removes the oldest turns of a conversation until it
    fits."""
    add_bos: bool = False
    """Add the beginning-of-text token to samples that do not start with it."""
    add_eos: bool | None = None
    """Add the end-of-text token to samples that do not end with it. It counts in the loss if the token before
    it does. None adds it only to texts and completions, because chat templates end their turns themselves."""
    chat_template: str | None = None
    """Name of a built-in chat template (`chatml`) or path of a Jinja file. None uses the tokenizer's own
    template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables that are passed to the chat template, such as `enable_thinking`."""

    @model_validator(mode="before")
    @classmethod
    def _reject_old_values(cls, values: Any) -> Any:
        renamed = {
            "format": {"prompt": "prompt_completion"},
            "loss": {"last": "last_turn"},
            "truncation": {"turns": "drop_turns"},
        }
        for name, old in renamed.items():
            value = values.get(name) if isinstance(values, Mapping) else None
            if isinstance(value, str) and value in old:
                raise ValueError(f"{name}={value!r} was renamed to {old[value]!r}")
        return values

    @model_validator(mode="after")
    def _check_truncation(self) -> "TokenizeConfig":
        if self.truncation != "error" and self.max_length is None:
            raise ValueError(f"truncation={self.truncation!r} needs max_length")
        return self

    def tokenizer_hash(self, tokenizer: Tokenizer, chat: ChatTemplate | None = None) -> str:
        """Return a hash of the tokenizer, the settings and the chat template, which determine the tokens.

        If the settings do not affect the tokens, this is the tokenizer's own hash.
        """
        settings = self.model_dump(mode="json", exclude={"chat_template", "loss", "text_field"})
        plain = TokenizeConfig().model_dump(mode="json", exclude={"chat_template", "loss", "text_field"})
        ignored = (
            {"format", "add_eos"} if self.add_eos is False and self.format in ("text", "tokens") else set()
        )
        if self.add_eos is False and self.format == "auto":
            ignored = {"add_eos"}
        if chat is None and all(settings[name] == plain[name] for name in plain if name not in ignored):
            return tokenizer.tokenizer_hash
        parts = [tokenizer.tokenizer_hash, sorted(settings.items()), None if chat is None else chat.digest]
        return short_hash(repr(parts).encode())


@dataclasses.dataclass
class TokenizeStats:
    """Statistics of tokenization."""

    samples: int = 0
    truncated: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Ids of the samples that were skipped, because they were too long or no token counts in the loss."""


def tokenize_rows(
    source: RowSource,
    tokenizer: Tokenizer,
    config: TokenizeConfig | None = None,
    *,
    chat: ChatTemplate | None = None,
    split: str | None = None,
    stats: TokenizeStats | None = None,
    on_rows: Callable[[int], None] | None = None,
    workers: int | None = 1,
) -> Generator[Sample, None, None]:
    """Tokenize a dataset, and yield its samples in order.

    A preference row yields two samples with the ids `ID/chosen` and `ID/rejected`. If there are several
    workers and the generator is not exhausted, close it.

    Args:
        source: Files, folders or an iterable of rows.
        tokenizer: Tokenizer.
        config: Tokenization settings. None uses the defaults.
        chat: Chat template, which conversations require.
        split: Name of the split to read from a saved Hugging Face dataset.
        stats: Statistics that are updated during the iteration.
        on_rows: Progress callback, which is called with the number of rows after each group of rows.
        workers: Number of processes that read and tokenize files. None uses the number of cores. The result
            does not depend on it.
    """
    config = config or TokenizeConfig()
    stats = stats if stats is not None else TokenizeStats()
    ids = IdAssigner()
    for part, block in _tokenize_blocks(source, tokenizer, config, chat, split, workers):
        if part is not _SAME_PART:
            ids.begin_part(part)
        names = [ids.assign(name) for name in block.row_ids]
        for sample, (_, _, kept, truncated, _) in zip(block.samples(names), block.outcomes, strict=True):
            stats.truncated += truncated
            if isinstance(sample, Sample) and kept:
                stats.samples += 1
                yield sample
            else:
                stats.skipped.append(str(sample))
        if on_rows is not None:
            on_rows(len(names))


def tokenize_dataset(
    source: RowSource,
    tokenizer: Tokenizer,
    config: TokenizeConfig | None = None,
    *,
    chat: ChatTemplate | None = None,
    split: str | None = None,
    workers: int | None = 1,
    **settings: Any,
) -> TokenDataset:
    """Tokenize a dataset into memory.

    Args:
        source: Files, folders or an iterable of rows.
        tokenizer: Tokenizer.
        config: Tokenization settings. None uses the defaults.
        chat: Chat template, which conversations require.
        split: Name of the split to read from a saved Hugging Face dataset.
        workers: Number of processes that read and tokenize files. None uses the number of cores.
        **settings: Fields of `TokenizeConfig`, which override those of `config`.
    """
    if settings:
        config = TokenizeConfig(**{**(config.model_dump() if config else {}), **settings})
    samples = tokenize_rows(source, tokenizer, config, chat=chat, split=split, workers=workers)
    return TokenDataset.from_samples(samples)


def iter_lengths(
    source: Paths,
    tokenizer: Tokenizer,
    config: TokenizeConfig | None = None,
    *,
    chat: ChatTemplate | None = None,
    split: str | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    use_ray: bool = False,
    part_bytes: int | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Generator[tuple[list[str], list[int]], None, None]:
    """Compute the lengths of a dataset's samples. Yields lists of ids and lengths, in order.

    The lengths are those of the samples that `tokenize_rows` yields with the same settings. The result does
    not depend on the number of workers. Close the generator if it is not exhausted.

    Args:
        source: Files or folders.
        tokenizer: Tokenizer.
        config: Tokenization settings. None uses the defaults, but without adding end-of-text tokens.
        chat: Chat template, which conversations require.
        split: Name of the split to read from a saved Hugging Face dataset.
        workers: Number of processes, or of concurrent Ray tasks. None uses the number of cores.
        ray_address: Address of a running Ray cluster, which must be able to read the files under the same
            paths.
        use_ray: Use Ray. If there is no address, a local cluster is started.
        part_bytes: Size of the parts of files that a worker reads at a time. None chooses it automatically.
        on_bytes: Progress callback, which is called with the approximate number of bytes read so far and the
            total number of bytes.
    """
    config = config or TokenizeConfig(add_eos=False)
    paths = as_paths(source)
    if not paths:
        raise ValueError("no files to read")
    if part_bytes is not None and part_bytes < 1:
        raise ValueError(f"part_bytes must be at least 1, got {part_bytes}")
    paths = [path.resolve() for path in paths] if use_ray or ray_address is not None else paths
    parts = split_files(paths, part_bytes or _part_bytes(paths, workers), split)
    config = _settle_format(config, iter_rows([str(path) for path in paths], split))
    count = functools.partial(_count_part, tokenizer=tokenizer, config=config, chat=chat)
    total = total_bytes(paths) if on_bytes is not None else 0
    if on_bytes is not None:
        on_bytes(0, total)
    ids = IdAssigner()
    results = ordered_map(count, parts, workers=workers, ray_address=ray_address, use_ray=use_ray)
    try:
        for number, (part, (row_ids, rows, suffixes, lengths)) in enumerate(
            zip(parts, results, strict=True), 1
        ):
            ids.begin_part(part)
            names = [ids.assign(name) for name in row_ids]
            if lengths:
                yield [names[row] + suffix for row, suffix in zip(rows, suffixes, strict=True)], lengths
            if on_bytes is not None:
                on_bytes(total * number // len(parts), total)
    finally:
        results.close()


def _part_bytes(paths: Sequence[Path], workers: int | None) -> int:
    per_worker = total_bytes(paths) // (workers or usable_cores())
    return min(_MAX_PART_BYTES, max(_MIN_PART_BYTES, per_worker // _PARTS_PER_WORKER))


def _count_part(
    part: FilePart, tokenizer: Tokenizer, config: TokenizeConfig, chat: ChatTemplate | None
) -> tuple[list[str], list[int], list[str], list[int]]:
    """Compute the lengths of the samples in a part of a file.

    Returns:
        The ids of the rows, and for each sample its row, the suffix of its id and its length.
    """
    if (
        config.format == "text"
        and not config.add_bos
        and config.add_eos is False
        and config.max_length is None
    ):
        # Counting is faster than tokenizing, and gives the same lengths.
        return _with_line_numbers(part, functools.partial(_count_texts, part, tokenizer, config))
    block = _tokenize_part(part, tokenizer, config, chat)
    kept = [outcome for outcome in block.outcomes if outcome[2]]
    return block.row_ids, [o[0] for o in kept], [o[1] for o in kept], [o[4] for o in kept]


def _count_texts(
    part: FilePart, tokenizer: Tokenizer, config: TokenizeConfig, first_line: int
) -> tuple[list[str], list[int], list[str], list[int]]:
    ids: list[str] = []
    lengths: list[int] = []
    rows = _read(part, config, first_line)
    while block := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        texts = []
        for where, row in block:
            try:
                texts.append(_text_of_row(row, config))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            ids.append(row_id(row, where))
        counts = tokenizer.count_batch(texts)
        for (where, _), count in zip(block, counts, strict=True):
            if not count:
                raise ValueError(f"{where}: the sample has no tokens; remove the row")
        lengths += counts
    return ids, list(range(len(ids))), [""] * len(ids), lengths


_SAME_PART: Any = object()


class _Outcome(NamedTuple):
    """Result of tokenizing one sample."""

    row: int
    """Index of the row in its block."""
    suffix: str
    """Suffix of the sample's id, which is appended to the row's id."""
    kept: bool
    """False if the sample is skipped, because it is too long or no token counts in the loss."""
    truncated: bool
    length: int


class _Block(NamedTuple):
    """Concatenated samples of several rows. Arrays are sent between processes faster than lists."""

    row_ids: list[str]
    """Id of each row. Empty strings for rows without an id."""
    outcomes: list[_Outcome]
    tokens: Int32[np.ndarray, " tokens"]
    """Concatenated tokens of the samples that are kept."""
    loss_mask: Int8[np.ndarray, " tokens"]

    def samples(self, names: Sequence[str]) -> Iterator[Sample | str]:
        """Yield each sample, or only its id if it was skipped. `names` has the final id of each row."""
        end = 0
        for row, suffix, kept, _, length in self.outcomes:
            name = names[row] + suffix
            if not kept:
                yield name
                continue
            begin, end = end, end + length
            yield Sample(name, self.tokens[begin:end], self.loss_mask[begin:end])


def _tokenize_blocks(
    source: RowSource,
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    chat: ChatTemplate | None,
    split: str | None,
    workers: int | None,
) -> Iterator[tuple[FilePart | None, _Block]]:
    """Tokenize a dataset block by block.

    Yields pairs of a part of a file and its samples. The part is `_SAME_PART` if the block continues the
    previous part, and None if the rows are not from a file.
    """
    if isinstance(source, str | os.PathLike):
        source = [source]
    if isinstance(source, list | tuple) and source and all(isinstance(s, str | os.PathLike) for s in source):
        paths = as_paths(source)
        many = workers is None or workers > 1
        parts = split_files(paths, _part_bytes(paths, workers) if many else None, split)
        config = _settle_format(config, iter_rows(source, split))
        if min(workers or usable_cores(), len(parts)) > 1:
            work = functools.partial(_tokenize_part, tokenizer=tokenizer, config=config, chat=chat)
            results = ordered_map(work, parts, workers=workers)
            try:
                yield from zip(parts, results, strict=True)
            finally:
                results.close()
            return
        for part in parts:
            blocks = _tokenize_in_blocks(
                _read(part, config, count_lines_before(part) + 1), tokenizer, config, chat
            )
            for block in blocks:
                yield part, block
                part = _SAME_PART
        return
    if workers != 1:
        raise ValueError("several workers can only read files; use workers=1 for rows in memory and streams")
    rows = iter_rows(source, split)
    first = next(rows, None)
    if first is None:
        return
    config = _settle_format(config, iter([first]))
    marker: FilePart | None = None
    for block in _tokenize_in_blocks(itertools.chain([first], rows), tokenizer, config, chat):
        yield marker, block
        marker = _SAME_PART


def _settle_format(config: TokenizeConfig, rows: Iterator[Row]) -> TokenizeConfig:
    """Return the settings with the format `auto` replaced by the format of the first row."""
    if config.format != "auto":
        return config
    first = next(rows, None)
    return config if first is None else config.model_copy(update={"format": detect_format(first[1])})


def detect_format(row: Mapping[str, Any]) -> RowFormat:
    """Detect the format of a row from its columns."""
    if row.get("input_ids") is not None:
        return "tokens"
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return "preference"
    if any(row.get(name) is not None for name in _MESSAGE_COLUMNS):
        return "chat"
    if _find_pair(row) is not None:
        return "prompt_completion"
    return "text"


def _read(part: FilePart, config: TokenizeConfig, first_line: int) -> Iterator[Row]:
    columns = None
    if config.format in ("text", "tokens"):
        columns = (*ID_FIELDS, config.text_field, "input_ids", "loss_mask", "labels")
    return read_part(part, first_line=first_line, columns=columns, text_field=config.text_field)


def _with_line_numbers(part: FilePart, function: Callable[[int], Any]) -> Any:
    """Call a function with the line number at which a part starts.

    Counting the lines before the part is slow. Therefore the function is first called with 1, and called
    again with the actual number only if it raises `ValueError`.
    """
    try:
        return function(1)
    except ValueError:
        if not part.has_lines or not part.begin:
            raise
    return function(count_lines_before(part) + 1)


def _tokenize_part(
    part: FilePart, tokenizer: Tokenizer, config: TokenizeConfig, chat: ChatTemplate | None
) -> _Block:
    """Tokenize a part of a file. The final ids are assigned later, because they depend on earlier parts."""

    def tokenize(first_line: int) -> _Block:
        return _join_blocks(_tokenize_in_blocks(_read(part, config, first_line), tokenizer, config, chat))

    return _with_line_numbers(part, tokenize)


def _join_blocks(blocks: Iterable[_Block]) -> _Block:
    ids: list[str] = []
    outcomes: list[_Outcome] = []
    tokens, masks = [np.zeros(0, np.int32)], [np.zeros(0, np.int8)]
    for block in blocks:
        outcomes += [outcome._replace(row=outcome.row + len(ids)) for outcome in block.outcomes]
        ids += block.row_ids
        tokens.append(block.tokens)
        masks.append(block.loss_mask)
    return _Block(ids, outcomes, np.concatenate(tokens), np.concatenate(masks))


class _FormattedText(NamedTuple):
    """A sample as text, before tokenization."""

    suffix: str
    """Suffix of the sample's id. Empty except for the two answers of a preference pair."""
    text: str
    loss_spans: list[Span]
    """Character ranges of the text that count in the loss."""
    count_overlap: bool
    """Whether a token counts if it starts before a range and overlaps with it, as in `transformers`."""
    add_eos: bool
    """Whether the end-of-text token is added if `TokenizeConfig.add_eos` is None."""
    messages: tuple[Message, ...] = ()
    first_turn: int = 0
    """Index of the first message that can count in the loss."""
    tools: Any = None


class _Tokens(NamedTuple):
    ids: list[int]
    mask: list[int]


def _tokenize_in_blocks(
    rows: Iterator[Row], tokenizer: Tokenizer, config: TokenizeConfig, chat: ChatTemplate | None
) -> Iterator[_Block]:
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield _tokenize_block(some, tokenizer, config, chat)


def _tokenize_block(
    rows: Sequence[Row], tokenizer: Tokenizer, config: TokenizeConfig, chat: ChatTemplate | None
) -> _Block:
    work: list[tuple[int, str, _FormattedText | _Tokens]] = []
    for number, (where, row) in enumerate(rows):
        try:
            if config.format == "tokens":
                work.append((number, where, _tokens_of_row(row)))
            else:
                work += [(number, where, text) for text in format_row(row, config, chat)]
        except (ValueError, ImportError) as error:
            raise type(error)(f"{where}: {error}") from error
    texts = [item.text for _, _, item in work if isinstance(item, _FormattedText)]
    encoded = iter(tokenizer.encode_with_offsets(texts))
    outcomes: list[_Outcome] = []
    tokens, masks = [np.zeros(0, np.int32)], [np.zeros(0, np.int8)]
    for number, where, item in work:
        suffix, sample = "", item
        try:
            if isinstance(item, _FormattedText):
                suffix = item.suffix
                sample = _encode(item, *next(encoded), tokenizer, config)
            assert isinstance(sample, _Tokens)
            if not sample.ids:
                raise ValueError("the sample has no tokens; remove the row")
            fitted, truncated = _fit(sample, item, tokenizer, config, chat)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        # The first token has no token before it, so it has no loss.
        kept = fitted is not None and (any(fitted.mask[1:]) or not _needs_loss(item, truncated))
        outcomes.append(
            _Outcome(
                number,
                suffix,
                kept,
                truncated and fitted is not None,
                len(fitted.ids) if fitted is not None and kept else 0,
            )
        )
        if fitted is not None and kept:
            tokens.append(np.array(fitted.ids, np.int32))
            masks.append(np.array(fitted.mask, np.int8))
    ids = [row_id(row, where) for where, row in rows]
    return _Block(ids, outcomes, np.concatenate(tokens), np.concatenate(masks))


def _needs_loss(item: _FormattedText | _Tokens, truncated: bool) -> bool:
    """Return whether a sample is skipped if no token counts in the loss."""
    return isinstance(item, _FormattedText) and (truncated or item.loss_spans != [(0, len(item.text))])


def format_row(
    row: Mapping[str, Any], config: TokenizeConfig, chat: ChatTemplate | None
) -> list[_FormattedText]:
    """Convert a row to texts. A preference pair gives two texts, and any other row gives one."""
    match config.format:
        case "chat":
            messages = next((row[name] for name in _MESSAGE_COLUMNS if row.get(name) is not None), None)
            if messages is None:
                raise ValueError(f"a chat row needs {' or '.join(_MESSAGE_COLUMNS)}; it has {_columns(row)}")
            return [_format_chat(check_messages(messages), config, chat, tools=row.get("tools"))]
        case "prompt_completion":
            pair = _find_pair(row)
            if pair is None:
                expected = ", or ".join(" and ".join(names) for names in _PAIR_COLUMNS)
                raise ValueError(f"the row needs {expected}; it has {_columns(row)}")
            return [_format_completion(*pair, "", config, chat, row.get("tools"))]
        case "preference":
            for name in ("chosen", "rejected"):
                if row.get(name) is None:
                    raise ValueError(f"a preference row needs chosen and rejected; it has {_columns(row)}")
            prompt = row.get("prompt")
            return [
                _format_completion(
                    ("" if isinstance(row[name], str) else []) if prompt is None else prompt,
                    row[name],
                    f"/{name}",
                    config,
                    chat,
                    row.get("tools"),
                )
                for name in ("chosen", "rejected")
            ]
    text = _text_of_row(row, config)
    if config.loss not in ("auto", "all"):
        raise ValueError(f"a text has no turns for loss={config.loss!r}; use loss='all'")
    return [_FormattedText("", text, [(0, len(text))], False, add_eos=True)]


def _text_of_row(row: Mapping[str, Any], config: TokenizeConfig) -> str:
    text = row.get(config.text_field)
    if not isinstance(text, str):
        found = (
            f"{config.text_field!r} is {text!r:.60}"
            if config.text_field in row
            else f"it has {_columns(row)}"
        )
        raise ValueError(f"the row needs a text in {config.text_field!r}; {found}")
    return text


def _tokens_of_row(row: Mapping[str, Any]) -> _Tokens:
    if row.get("input_ids") is None:
        raise ValueError(f"the row needs input_ids; it has {_columns(row)}")
    ids = _check_integers(row["input_ids"], "input_ids")
    labels, mask = row.get("labels"), row.get("loss_mask")
    if labels is not None:
        if len(labels) != len(ids):
            raise ValueError(f"{len(ids)} input_ids but {len(labels)} labels")
        wrong = [n for n, (a, b) in enumerate(zip(ids, labels, strict=True)) if b not in (a, _IGNORE_INDEX)]
        if wrong:
            raise ValueError(
                f"labels[{wrong[0]}] must be its token or {_IGNORE_INDEX}, got {labels[wrong[0]]}"
            )
        mask = [int(label != _IGNORE_INDEX) for label in labels]
    elif mask is None:
        mask = [1] * len(ids)
    elif len(mask) != len(ids):
        raise ValueError(f"{len(ids)} input_ids but {len(mask)} entries in loss_mask")
    return _Tokens(ids, as_loss_mask(mask).tolist())


def _check_integers(values: Any, name: str) -> list[int]:
    if isinstance(values, np.ndarray):
        return as_token_ids(values, name).tolist()
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise ValueError(f"{name} must be a list of integers, got {values!r:.60}")
    return as_token_ids(list(values), name).tolist()


def _format_chat(
    messages: Sequence[Message],
    config: TokenizeConfig,
    chat: ChatTemplate | None,
    *,
    suffix: str = "",
    first_turn: int = 0,
    tools: Any = None,
) -> _FormattedText:
    if chat is None:
        raise ValueError("conversations need a chat template")
    variables = dict(config.chat_template_kwargs) | ({"tools": tools} if tools else {})
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant" and n >= first_turn]
    if config.loss == "all":
        text = chat.render(messages, **variables)
        spans, count_overlap = [(0, len(text))], False
    else:
        if not turns:
            raise ValueError("the conversation has no assistant turn that counts in the loss")
        turns = turns[-1:] if config.loss == "last_turn" else turns
        text, spans = chat.render_with_spans(messages, turns, **variables)
        count_overlap = chat.marks_generation
    return _FormattedText(suffix, text, spans, count_overlap, False, tuple(messages), first_turn, tools)


def _format_completion(
    prompt: Any, completion: Any, suffix: str, config: TokenizeConfig, chat: ChatTemplate | None, tools: Any
) -> _FormattedText:
    """Format a prompt and its completion, which are either both strings or both lists of messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        if config.loss in ("assistant", "last_turn"):
            raise ValueError(f"texts have no turns for loss={config.loss!r}; use 'completion' or 'all'")
        text = prompt + completion
        begin = 0 if config.loss == "all" else len(prompt)
        return _FormattedText(suffix, text, [(begin, len(text))], False, add_eos=True)
    if isinstance(prompt, str) or isinstance(completion, str):
        raise ValueError("prompt and completion must both be texts, or both lists of messages")
    asked = check_messages(prompt) if prompt else []
    answered = check_messages(completion)
    # TRL repeats the prompt in both answers; the shared messages do not count in the loss.
    shared = next((n for n, (a, b) in enumerate(zip(asked, answered, strict=False)) if a != b), len(asked))
    messages = answered if asked and shared == len(asked) else [*asked, *answered]
    first_turn = len(asked) if asked else len(messages) - 1
    return _format_chat(messages, config, chat, suffix=suffix, first_turn=first_turn, tools=tools)


def check_messages(value: Any) -> list[Message]:
    """Validate messages and return them with the keys `role` and `content`.

    ShareGPT's `from` and `value` are converted.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"expected a list of messages, got {value!r:.60}")
    return [_check_message(message, number) for number, message in enumerate(value)]


def _check_message(message: Any, number: int) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {number} must have role and content, got {message!r:.60}")
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    has_parts = isinstance(content, Sequence) and not isinstance(content, str)
    if has_parts and not all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        raise ValueError(f"message {number} has content that is not text, which is not supported")
    has_content = has_parts or isinstance(content, str) or message.get("tool_calls")
    if not isinstance(role, str) or not has_content:
        raise ValueError(f"message {number} must have role and content, got {dict(message)!r:.80}")
    rest = {name: value for name, value in message.items() if name not in ("from", "value")}
    return rest | {"role": _ROLES.get(role, role), "content": content}


def _find_pair(row: Mapping[str, Any]) -> tuple[Any, Any] | None:
    for prompt, completion in _PAIR_COLUMNS:
        if row.get(prompt) is not None and row.get(completion) is not None:
            asked = row[prompt]
            if prompt == "instruction" and row.get("input"):
                asked = f"{asked}\n\n{row['input']}"
            return asked, row[completion]
    return None


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(row) or "no columns"


def _encode(
    item: _FormattedText,
    ids: list[int],
    offsets: Sequence[Span],
    tokenizer: Tokenizer,
    config: TokenizeConfig,
) -> _Tokens:
    """Compute the loss mask for the tokens of a text, and add special tokens."""
    mask = [0] * len(ids)
    spans = iter(item.loss_spans)
    begin, end = next(spans, (0, 0))
    # Tokens and spans are both in order.
    for index, (start, stop) in enumerate(offsets):
        while start >= end and (following := next(spans, None)) is not None:
            begin, end = following
        first = stop > begin if item.count_overlap else start >= begin
        mask[index] = int(first and start < end and stop > start)
    ids, bos, eos = list(ids), tokenizer.bos_token_id, tokenizer.eos_token_id
    add_eos = item.add_eos and eos is not None if config.add_eos is None else config.add_eos
    for wanted, token, name in ((config.add_bos, bos, "beginning"), (add_eos, eos, "end")):
        if wanted and token is None:
            raise ValueError(f"the tokenizer has no {name}-of-text token in its tokenizer_config.json")
    if add_eos and eos is not None and ids[-1:] != [eos]:
        counted = mask[-1] if mask else 1
        ids.append(eos)
        mask.append(counted)
    if config.add_bos and bos is not None and ids[:1] != [bos]:
        ids.insert(0, bos)
        mask.insert(0, 0)
    return _Tokens(ids, mask)


def _fit(
    sample: _Tokens,
    item: _FormattedText | _Tokens,
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    chat: ChatTemplate | None,
) -> tuple[_Tokens | None, bool]:
    """Truncate a sample if it is longer than `max_length`.

    Returns:
        The sample, or None if it is skipped; and whether it was too long.
    """
    limit = config.max_length
    if limit is None or len(sample.ids) <= limit:
        return sample, False
    match config.truncation:
        case "error":
            raise ValueError(
                f"the sample has {len(sample.ids)} tokens, more than max_length {limit}; choose a truncation "
                f"(skip, right, left, drop_turns) or increase max_length"
            )
        case "skip":
            return None, True
        case "right":
            return _Tokens(sample.ids[:limit], sample.mask[:limit]), True
        case "left":
            return _Tokens(sample.ids[-limit:], sample.mask[-limit:]), True
    if not isinstance(item, _FormattedText) or not item.messages:
        raise ValueError("truncation='drop_turns' needs a conversation; use 'right', 'left' or 'skip'")
    messages, first_turn = list(item.messages), item.first_turn
    system = int(messages[0]["role"] == "system")
    while len(messages) > system + 1:
        del messages[system]
        first_turn = max(first_turn - 1, 0)
        if messages[system]["role"] != "user":
            continue
        shorter = _format_chat(messages, config, chat, first_turn=first_turn, tools=item.tools)
        ((ids, offsets),) = tokenizer.encode_with_offsets([shorter.text])
        tokens = _encode(shorter, ids, offsets, tokenizer, config)
        if len(tokens.ids) <= limit:
            return tokens, True
    return None, True
