"""Tokenization of dataset rows, with chat templates, special tokens, loss masks and truncation."""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Int8, Int32
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.data.chat_template import ChatTemplate, Message, Span
from phalanx.data.loss_masks import compute_loss_mask, select_loss_turns
from phalanx.data.readers import (
    ID_FIELDS,
    FilePart,
    Paths,
    Row,
    RowSource,
    SampleIdAssigner,
    as_paths,
    count_lines_before,
    iter_part,
    iter_rows,
    row_id,
    split_files,
    total_bytes,
)
from phalanx.data.samples import Sample, TokenDataset, token_arrays
from phalanx.data.tokenizers import Tokenizer, short_hash
from phalanx.io.worker_pool import ordered_map, usable_cores

RowFormat: TypeAlias = Literal["auto", "chat", "prompt_completion", "preference", "text", "tokens"]
LossTokens: TypeAlias = Literal["auto", "all", "completion", "assistant", "last_turn"]
Truncation: TypeAlias = Literal["error", "skip", "right", "left", "drop_turns"]
AnyResult = TypeVar("AnyResult")

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

    format: RowFormat = "auto"
    """Format of the rows: `chat` (messages), `prompt_completion`, `preference` (pairs of a chosen and a
    rejected answer), `text`, or `tokens` (input_ids). `auto` detects the format from the columns of the first
    row."""
    text_field: str = "text"
    """Name of the column that contains the text of `text` rows."""
    loss_tokens: LossTokens = "auto"
    """Tokens that count toward the loss: `all` tokens, those of the `completion`, of every `assistant` turn,
    or of the assistant's `last_turn`. `auto` depends on the format: assistant turns of conversations,
    completions of prompts, all tokens of texts, and the `labels` or `loss_mask` of token rows."""
    max_length: int | None = Field(default=None, ge=2)
    """Maximum number of tokens in a sample. None means no limit."""
    truncation: Truncation = "error"
    """What to do with samples that are longer than `max_length`: `error` raises an error, `skip` leaves them
    out, `right` and `left` truncate them on that side, and `drop_turns` removes the oldest turns of a
    conversation until it fits."""
    add_bos: bool = False
    """Add the beginning-of-text token to samples that do not start with it."""
    add_eos: bool | None = None
    """Add the end-of-text token to samples that do not end with it. It counts toward the loss if the token
    before it does. If None, the token is added only to texts and completions, because chat templates already
    mark the end of a turn."""
    chat_template: str | None = None
    """Name of a built-in chat template (`chatml`) or path of a Jinja file. Defaults to the tokenizer's own
    template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables that are passed to the chat template, such as `enable_thinking`."""

    @model_validator(mode="after")
    def _check_truncation(self) -> "TokenizeConfig":
        if self.truncation != "error" and self.max_length is None:
            raise ValueError(f"truncation={self.truncation!r} needs max_length")
        return self

    def tokenizer_hash(self, tokenizer: Tokenizer, chat: ChatTemplate | None = None) -> str:
        """Return a hash of the tokenizer, this config and the chat template, which determine the tokens.

        It is the hash of the tokenizer itself, followed by `-` and a hash of the settings and the chat
        template unless the settings are the defaults and there is no template. Settings that select columns
        of a row or tokens for the loss are not included.
        """
        excluded = {"format", "chat_template", "loss_tokens", "text_field"}
        settings = self.model_dump(mode="json", exclude=excluded)
        if chat is None and settings == TokenizeConfig().model_dump(mode="json", exclude=excluded):
            return tokenizer.tokenizer_hash
        parts = [sorted(settings.items()), None if chat is None else chat.digest]
        return f"{tokenizer.tokenizer_hash}-{short_hash(repr(parts).encode())}"


def check_tokenizer_hash(recorded: str, actual: str, *, where: str, tokenizer: str) -> None:
    """Raise `ValueError` if a plan was built with a different tokenizer or different tokenization settings.

    Args:
        recorded: Hash that is recorded with the plan. Not checked if it is empty.
        actual: Hash of the tokenizer and the tokenization settings that are used now.
        where: Plan or folder that the recorded hash is from, for the error message.
        tokenizer: Name of the tokenizer that is used now, for the error message.
    """
    if recorded in ("", actual):
        return
    if recorded.partition("-")[0] == actual.partition("-")[0]:
        raise ValueError(
            f"{where} was built with tokenizer {tokenizer!r}, but with another chat template, add_bos, "
            f"add_eos or truncation ({recorded}, now {actual}); use the same settings, or count the lengths "
            f"and build the plan again"
        )
    raise ValueError(
        f"{where} was built with tokenizer {recorded}, but {tokenizer!r} is {actual}; pass the name, "
        f"tokenizer.json or folder of the one that it was built with: tokenizer=NAME for `phalanx train`, "
        f"--tokenizer NAME for `phalanx data`"
    )


@dataclasses.dataclass
class TokenizeStats:
    """Number of yielded and truncated samples, and ids of skipped samples."""

    samples: int = 0
    """Number of samples that were yielded."""
    truncated: int = 0
    """Number of samples that were truncated."""
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Ids of the samples that were skipped, because they were too long or had no tokens that count toward the
    loss."""


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

    A preference row yields two samples with the ids `ID/chosen` and `ID/rejected`. If you use several workers
    and do not exhaust the generator, close it to stop the workers.

    Args:
        source: Files, folders or an iterable of rows.
        tokenizer: Tokenizer.
        config: Tokenization settings. Defaults to `TokenizeConfig()`.
        chat: Chat template. Required if the data contains conversations.
        split: Name of the split to read from a saved Hugging Face dataset.
        stats: Statistics object that is updated during the iteration.
        on_rows: Progress callback. After each group of rows, it is called with the number of rows in the
            group.
        workers: Number of processes that read and tokenize files. If None, all cores are used. The result
            does not depend on the number of processes.
    """
    stats = stats if stats is not None else TokenizeStats()
    ids = SampleIdAssigner()
    worker = _RowTokenizer(tokenizer, config or TokenizeConfig(), chat)
    blocks = _tokenize_blocks(source, worker, split, workers)
    with contextlib.closing(blocks):
        for part, block in blocks:
            names = ids.assign(part, block.row_ids)
            end, columns = 0, iter(block.columns)
            for row, suffix, length, truncated in block.outcomes:
                name = names[row] + suffix
                stats.truncated += truncated
                if not length:
                    stats.skipped.append(name)
                    continue
                stats.samples += 1
                begin, end = end, end + length
                yield Sample(name, block.tokens[begin:end], block.loss_mask[begin:end], next(columns))
            if on_rows is not None:
                on_rows(len(names))


def tokenize_dataset(
    source: RowSource,
    tokenizer: Tokenizer,
    config: TokenizeConfig | None = None,
    *,
    chat: ChatTemplate | None = None,
    split: str | None = None,
    stats: TokenizeStats | None = None,
    on_rows: Callable[[int], None] | None = None,
    workers: int | None = 1,
    **settings: Any,
) -> TokenDataset:
    """Tokenize a dataset and load the samples into memory.

    Args:
        source: Files, folders or an iterable of rows.
        tokenizer: Tokenizer.
        config: Tokenization settings. Defaults to `TokenizeConfig()`.
        chat: Chat template. Required if the data contains conversations.
        split: Name of the split to read from a saved Hugging Face dataset.
        stats: Statistics object that is updated during the tokenization.
        on_rows: Progress callback. After each group of rows, it is called with the number of rows in the
            group.
        workers: Number of processes that read and tokenize files. If None, all cores are used.
        **settings: Fields of `TokenizeConfig`, which override those of `config`.
    """
    if settings:
        config = TokenizeConfig(**{**(config.model_dump() if config else {}), **settings})
    samples = tokenize_rows(
        source, tokenizer, config, chat=chat, split=split, stats=stats, on_rows=on_rows, workers=workers
    )
    # Closed even after Ctrl-C, so that no worker is left behind.
    with contextlib.closing(samples):
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
    stats: TokenizeStats | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Generator[tuple[list[str], list[int]], None, None]:
    """Compute the lengths of a dataset's samples. Yields lists of ids and lengths, in order.

    The lengths are those of the samples that `tokenize_rows` yields with the same settings. The result does
    not depend on the number of workers. If you do not exhaust the generator, close it to stop the workers.

    Args:
        source: Files or folders.
        tokenizer: Tokenizer.
        config: Tokenization settings. Defaults to `TokenizeConfig()`.
        chat: Chat template. Required if the data contains conversations.
        split: Name of the split to read from a saved Hugging Face dataset.
        workers: Number of processes, or of concurrent Ray tasks. Defaults to the number of cores.
        ray_address: Address of a running Ray cluster, which must be able to read the files under the same
            paths.
        use_ray: Use Ray. If `ray_address` is None, a local cluster is started.
        stats: Statistics object that is updated during the iteration.
        on_bytes: Progress callback, which is called with the approximate number of bytes read so far and the
            total number of bytes.
    """
    paths = as_paths(source)
    if not paths:
        raise ValueError("no files to read")
    use_ray = use_ray or ray_address is not None
    paths = [path.resolve() for path in paths] if use_ray else paths
    parts = split_files(paths, _choose_part_bytes(paths, workers), split)
    stats = stats if stats is not None else TokenizeStats()
    worker = _RowTokenizer(tokenizer, config or TokenizeConfig(), chat)
    count = worker.detect_format(iter_rows(paths, split)).count_part
    total = total_bytes(paths)
    ids = SampleIdAssigner()
    results = ordered_map(count, parts, workers=workers, ray_address=ray_address, use_ray=use_ray)
    with contextlib.closing(results):
        for number, (part, result) in enumerate(zip(parts, results, strict=True), 1):
            row_ids, rows, suffixes, lengths, truncated = result
            assigned = ids.assign(part, row_ids)
            names = [assigned[row] + suffix for row, suffix in zip(rows, suffixes, strict=True)]
            if 0 in lengths:
                stats.skipped += [name for name, length in zip(names, lengths, strict=True) if not length]
                names = [name for name, length in zip(names, lengths, strict=True) if length]
                lengths = [length for length in lengths if length]
            stats.samples += len(names)
            stats.truncated += truncated
            if lengths:
                yield names, lengths
            if on_bytes is not None:
                on_bytes(total * number // len(parts), total)


def detect_format(rows: Iterator[Row]) -> RowFormat:
    """Return the format of the first row, which is what `TokenizeConfig(format="auto")` uses.

    If there are no rows, the format is `auto`.
    """
    _, row = next(rows, ("", None))
    if row is None:
        return "auto"
    if row.get("input_ids") is not None:
        return "tokens"
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return "preference"
    if any(row.get(name) is not None for name in _MESSAGE_COLUMNS):
        return "chat"
    return "text" if _find_pair(row) is None else "prompt_completion"


def _choose_part_bytes(paths: Sequence[Path], workers: int | None) -> int:
    per_worker = total_bytes(paths) // (workers or usable_cores())
    return min(_MAX_PART_BYTES, max(_MIN_PART_BYTES, per_worker // _PARTS_PER_WORKER))


class _Outcome(NamedTuple):
    """Result of tokenizing one sample."""

    row: int
    """Index in `_Block.row_ids` of the row that the sample was created from."""
    suffix: str
    """Suffix that is appended to the row's id to form the sample's id."""
    length: int
    """Number of tokens. 0 if the sample is skipped, because it is too long or has no tokens that count toward
    the loss."""
    truncated: bool


class _Block(NamedTuple):
    """Concatenated samples of several rows. Arrays are sent between processes faster than lists."""

    row_ids: list[str]
    """Id of each row. Empty strings for rows without an id."""
    outcomes: list[_Outcome]
    tokens: Int32[np.ndarray, " tokens"]
    """Concatenated tokens of the samples that are not skipped."""
    loss_mask: Int8[np.ndarray, " tokens"]
    columns: list[Mapping[str, np.ndarray]]
    """Columns of each sample that is not skipped."""


_Tokens: TypeAlias = tuple[list[int], list[int]]
"""Token ids and loss mask."""


class _FormattedSample(NamedTuple):
    """A sample as text, before tokenization. If the dataset already contains tokens, `text` is empty and
    `tokens` is set."""

    suffix: str
    """Suffix of the sample's id. Empty except for the two answers of a preference pair."""
    text: str
    loss_spans: list[Span]
    """Character ranges of the text that count toward the loss."""
    messages: tuple[Message, ...] = ()
    """Messages of a conversation. Empty for other texts."""
    first_turn: int = 0
    """Index of the first message that can count toward the loss."""
    tools: Any = None
    """Tools that the chat template describes. None if there are none."""
    tokens: _Tokens | None = None
    columns: Mapping[str, np.ndarray] = {}
    """Arrays with one entry per token. Empty unless the dataset already contains tokens."""


class _RowTokenizer(NamedTuple):
    """Converts rows to samples. It is sent to worker processes."""

    tokenizer: Tokenizer
    config: TokenizeConfig
    chat: ChatTemplate | None

    def detect_format(self, rows: Iterator[Row]) -> "_RowTokenizer":
        """Return a copy in which the `auto` format is replaced by the format of the first row."""
        if self.config.format != "auto":
            return self
        return self._replace(config=self.config.model_copy(update={"format": detect_format(rows)}))

    def tokenize_part(self, part: FilePart) -> _Block:
        """Tokenize a part of a file. Sample ids are assigned later: they depend on earlier parts."""
        return self._call_with_rows(part, self.tokenize_block)

    def count_part(self, part: FilePart) -> tuple[list[str], Sequence[int], list[str], list[int], int]:
        """Compute the lengths of the samples in a part of a file.

        Returns:
            The ids of the rows; for each sample the index of its row, the suffix of its id, and its length,
            which is 0 if the sample is skipped; and the number of truncated samples.
        """
        config = self.config
        is_missing_eos = config.add_eos and self.tokenizer.eos_token_id is None
        if config.format == "text" and not (config.add_bos or is_missing_eos or config.max_length):
            # Counting is faster than tokenizing, and gives the same lengths.
            ids, lengths = self._call_with_rows(part, self._count_texts)
            return ids, range(len(ids)), [""] * len(ids), lengths, 0
        block = self.tokenize_part(part)
        found = block.outcomes
        truncated = sum(o.truncated for o in found)
        return (
            block.row_ids,
            [o.row for o in found],
            [o.suffix for o in found],
            [o.length for o in found],
            truncated,
        )

    def _call_with_rows(self, part: FilePart, function: Callable[[Iterator[Row]], AnyResult]) -> AnyResult:
        """Call a function with the rows of a part of a file.

        The location of a row contains its line number, but counting the lines before the part is slow.
        Therefore, the lines of the part are at first numbered from 1. If the function raises `ValueError`, it
        is called again with the actual line numbers, so that the error message is correct.
        """
        config = self.config
        columns = (*ID_FIELDS, config.text_field) if config.format == "text" else None
        read = functools.partial(iter_part, part, columns=columns, text_field=config.text_field)
        try:
            return function(read(first_line=1))
        except ValueError:
            if not part.has_lines or not part.begin:
                raise
        return function(read(first_line=count_lines_before(part) + 1))

    def _count_texts(self, rows: Iterator[Row]) -> tuple[list[str], list[int]]:
        """Return the id of each row, and the number of tokens in its text."""
        add_eos = self.config.add_eos is not False and self.tokenizer.eos_token_id is not None
        ids: list[str] = []
        lengths: list[int] = []
        while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            texts = []
            for where, row in chunk:
                try:
                    texts.append(self._get_text(row))
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from error
                ids.append(row_id(row, where))
            counts = self.tokenizer.count_batch(texts, add_eos=add_eos)
            if 0 in counts:
                raise ValueError(f"{chunk[counts.index(0)][0]}: the sample has no tokens; remove the row")
            lengths += counts
        return ids, lengths

    def tokenize_block(self, rows: Iterator[Row]) -> _Block:
        """Tokenize rows, a few hundred at a time."""
        limit = self.config.max_length
        row_ids: list[str] = []
        outcomes: list[_Outcome] = []
        tokens, masks = [np.zeros(0, np.int32)], [np.zeros(0, np.int8)]
        columns: list[Mapping[str, np.ndarray]] = []
        # Truncation keeps either the first or the last tokens.
        side = slice(-limit, None) if limit and self.config.truncation == "left" else slice(limit)
        while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            items: list[tuple[int, str, _FormattedSample]] = []
            for index, (where, row) in enumerate(chunk, len(row_ids)):
                try:
                    items += [(index, where, item) for item in self._format_row(row)]
                except (ValueError, ImportError) as error:
                    raise type(error)(f"{where}: {error}") from error
            encoded = iter(
                self.tokenizer.encode_with_offsets([item.text for *_, item in items if not item.tokens])
            )
            for index, where, item in items:
                try:
                    ids, mask = item.tokens or self._add_special_tokens(item, *next(encoded))
                    if not ids:
                        raise ValueError("the sample has no tokens; remove the row")
                    too_long = limit is not None and len(ids) > limit
                    if too_long:
                        ids, mask = self._truncate(ids, mask, item)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from error
                needs_loss = not item.tokens and (too_long or item.loss_spans != [(0, len(item.text))])
                # The first token has no token before it, so it has no loss.
                kept = bool(ids) and (any(mask[1:]) or not needs_loss)
                outcomes.append(_Outcome(index, item.suffix, len(ids) if kept else 0, too_long and bool(ids)))
                if kept:
                    tokens.append(np.array(ids, np.int32))
                    masks.append(np.array(mask, np.int8))
                    columns.append({name: values[side] for name, values in item.columns.items()})
            row_ids += [row_id(row, where) for where, row in chunk]
        return _Block(row_ids, outcomes, np.concatenate(tokens), np.concatenate(masks), columns)

    def _format_row(self, row: Mapping[str, Any]) -> list[_FormattedSample]:
        """Convert a row to formatted samples: two for a preference pair, and one for any other row."""
        config, tools = self.config, row.get("tools")
        match config.format:
            case "chat":
                messages = next((row[name] for name in _MESSAGE_COLUMNS if row.get(name) is not None), None)
                if messages is None:
                    raise ValueError(
                        f"a chat row needs {' or '.join(_MESSAGE_COLUMNS)}; it has {_columns(row)}"
                    )
                return [self._format_chat("", _check_messages(messages), 0, tools)]
            case "prompt_completion":
                pair = _find_pair(row)
                if pair is None:
                    expected = ", or ".join(" and ".join(names) for names in _PAIR_COLUMNS)
                    raise ValueError(f"the row needs {expected}; it has {_columns(row)}")
                return [self._format_completion("", *pair, tools)]
            case "preference":
                if row.get("chosen") is None or row.get("rejected") is None:
                    raise ValueError(f"a preference row needs chosen and rejected; it has {_columns(row)}")
                return [
                    self._format_completion(f"/{name}", row.get("prompt"), row[name], tools)
                    for name in ("chosen", "rejected")
                ]
            case "tokens":
                if row.get("input_ids") is None:
                    raise ValueError(f"the row needs input_ids; it has {_columns(row)}")
                ids, mask, columns = token_arrays(row)
                return [_FormattedSample("", "", [], tokens=(ids.tolist(), mask.tolist()), columns=columns)]
        text = self._get_text(row)
        if config.loss_tokens not in ("auto", "all"):
            raise ValueError(
                f"a text has no turns for loss_tokens={config.loss_tokens!r}; use loss_tokens='all'"
            )
        return [_FormattedSample("", text, [(0, len(text))])]

    def _get_text(self, row: Mapping[str, Any]) -> str:
        name = self.config.text_field
        text = row.get(name)
        if not isinstance(text, str):
            if name in row:
                raise ValueError(f"the row needs a text in {name!r}; {name!r} is {text!r:.60}")
            raise ValueError(
                f"the row needs a text in {name!r}; it has {_columns(row)}. Choose another text column "
                f"(text_field), or use the columns of another format: messages (chat), prompt and completion "
                f"(prompt_completion), chosen and rejected (preference) or input_ids (tokens)"
            )
        return text

    def _format_chat(
        self, suffix: str, messages: Sequence[Message], first_turn: int, tools: Any
    ) -> _FormattedSample:
        chat, config = self.chat, self.config
        if chat is None:
            raise ValueError(
                "conversations need a chat template, but the tokenizer has none; set chat_template to "
                "'chatml' or a Jinja file"
            )
        variables = dict(config.chat_template_kwargs) | ({"tools": tools} if tools else {})
        if config.loss_tokens == "all":
            text = chat.render(messages, **variables)
            spans = [(0, len(text))]
        else:
            turns = select_loss_turns(messages, first_turn, last_only=config.loss_tokens == "last_turn")
            text, spans = chat.render_with_spans(messages, turns, **variables)
        return _FormattedSample(suffix, text, spans, tuple(messages), first_turn, tools)

    def _format_completion(self, suffix: str, prompt: Any, completion: Any, tools: Any) -> _FormattedSample:
        """Format a prompt and its completion, which are either both strings or both lists of messages.

        If the prompt is None, it is treated as empty.
        """
        loss_tokens = self.config.loss_tokens
        if prompt is None:
            prompt = "" if isinstance(completion, str) else []
        if isinstance(prompt, str) and isinstance(completion, str):
            if loss_tokens in ("assistant", "last_turn"):
                raise ValueError(
                    f"texts have no turns for loss_tokens={loss_tokens!r}; use 'completion' or 'all'"
                )
            text = prompt + completion
            return _FormattedSample(suffix, text, [(0 if loss_tokens == "all" else len(prompt), len(text))])
        if isinstance(prompt, str) or isinstance(completion, str):
            raise ValueError("prompt and completion must both be texts, or both lists of messages")
        asked = _check_messages(prompt) if prompt else []
        answered = _check_messages(completion)
        # TRL repeats the prompt in both answers; the repeated messages do not count toward the loss.
        messages = answered if asked and answered[: len(asked)] == asked else [*asked, *answered]
        first_turn = len(asked) if asked else len(messages) - 1
        return self._format_chat(suffix, messages, first_turn, tools)

    def _add_special_tokens(self, item: _FormattedSample, ids: list[int], offsets: Sequence[Span]) -> _Tokens:
        """Compute the loss mask of an encoded text, and add special tokens to its ids and to the mask."""
        is_tagged = bool(item.messages) and self.chat is not None and self.chat.marks_generation
        mask = compute_loss_mask(offsets, item.loss_spans, count_overlap=is_tagged)
        ids, config = list(ids), self.config
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        add_eos = not item.messages and eos is not None if config.add_eos is None else config.add_eos
        for wanted, token, name in ((config.add_bos, bos, "beginning"), (add_eos, eos, "end")):
            if wanted and token is None:
                raise ValueError(f"the tokenizer has no {name}-of-text token in its tokenizer_config.json")
        if add_eos and eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
            mask.append(mask[-1] if mask else 1)
        if config.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
            mask.insert(0, 0)
        return ids, mask

    def _truncate(self, ids: list[int], mask: list[int], item: _FormattedSample) -> _Tokens:
        """Truncate a sample that is longer than `max_length`. Return empty lists if it must be skipped."""
        limit = self.config.max_length
        assert limit is not None
        match self.config.truncation:
            case "error":
                raise ValueError(
                    f"the sample has {len(ids)} tokens, more than max_length {limit}; choose a truncation "
                    f"(skip, right, left, drop_turns) or increase max_length"
                )
            case "right":
                return ids[:limit], mask[:limit]
            case "left":
                return ids[-limit:], mask[-limit:]
            case "drop_turns":
                if not item.messages:
                    raise ValueError(
                        "truncation='drop_turns' needs a conversation; use 'right', 'left' or 'skip'"
                    )
                messages, first_turn = list(item.messages), item.first_turn
                system = int(messages[0]["role"] == "system")
                while len(messages) > system + 1:
                    del messages[system]
                    first_turn = max(first_turn - 1, 0)
                    if messages[system]["role"] != "user":
                        continue
                    shorter = self._format_chat("", messages, first_turn, item.tools)
                    ((ids, offsets),) = self.tokenizer.encode_with_offsets([shorter.text])
                    ids, mask = self._add_special_tokens(shorter, ids, offsets)
                    if len(ids) <= limit:
                        return ids, mask
        return [], []


def _tokenize_blocks(
    source: RowSource, worker: _RowTokenizer, split: str | None, workers: int | None
) -> Generator[tuple[FilePart | None, _Block], None, None]:
    """Tokenize a dataset block by block.

    Yields pairs of a part of a file and its samples. The part is None if the rows are not from a file.
    """
    if isinstance(source, str | os.PathLike):
        source = [source]
    if isinstance(source, list | tuple) and source and all(isinstance(s, str | os.PathLike) for s in source):
        paths = as_paths(source)
        parts = split_files(paths, _choose_part_bytes(paths, workers), split)
        tokenize = worker.detect_format(iter_rows(paths, split)).tokenize_part
        with contextlib.closing(ordered_map(tokenize, parts, workers=workers)) as results:
            yield from zip(parts, results, strict=True)
        return
    if workers != 1:
        raise ValueError("several workers can only read files; use workers=1 for rows in memory and streams")
    rows = iter_rows(source, split)
    while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        worker = worker.detect_format(iter(chunk))
        yield None, worker.tokenize_block(iter(chunk))


def _check_messages(value: Any) -> list[Message]:
    """Validate messages and return them with `role` and `content` keys. A tool call can be without `content`.

    ShareGPT's `from` and `value` are converted.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"expected a list of messages, got {value!r:.60}")
    return [_check_message(message, number) for number, message in enumerate(value)]


def _check_message(given: Any, number: int) -> Message:
    message = given if isinstance(given, Mapping) else {}
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    has_parts = isinstance(content, Sequence) and not isinstance(content, str)
    if has_parts and not all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        raise ValueError(f"message {number} has content that is not text, which is not supported")
    has_content = has_parts or isinstance(content, str) or message.get("tool_calls")
    if not isinstance(role, str) or not has_content:
        raise ValueError(f"message {number} must have role and content, got {given!r:.80}")
    rest = {name: value for name, value in message.items() if name not in ("from", "value")}
    return rest | {"role": _ROLES.get(role, role)} | ({} if content is None else {"content": content})


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
