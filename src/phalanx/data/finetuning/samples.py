"""Samples of fine-tuning rows: tokens with a loss mask, cut to a length by choice.

What a row says is in `formats`; where rows come from is in `rows`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from phalanx.config import FrozenModel
from phalanx.data.chat_template import ChatTemplate, Span
from phalanx.data.finetuning.formats import Loss, Part, Template, chat_part, parts_of
from phalanx.data.lengths import as_loss_mask
from phalanx.data.readers import TokenizedSample
from phalanx.data.tokenizers import Tokenizer

Truncation: TypeAlias = Literal["error", "skip", "right", "left", "turns"]

IGNORED = -100


class TokenizeConfig(FrozenModel):
    """How rows become samples."""

    template: Template = "auto"
    """What rows are: `chat`, `prompt` (with a completion), `text`, `preference` (pairs), `tokens`; `auto`
    goes by the columns of the first."""
    loss: Loss = "auto"
    """What is learned: `all`; the `completion`; every turn of the `assistant`; its `last` turn. `auto`: turns
    of conversations, completions of prompts, all of texts; where there are tokens, what their `labels` or
    `loss_mask` say."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of a sample; None: any."""
    truncation: Truncation = "error"
    """What becomes of longer ones: an `error`, `skip`, cut at the `right` or at the `left`, or leave out the
    oldest `turns` of a conversation until it fits."""
    add_bos: bool = False
    """Put the begin of text before every sample that does not have it."""
    add_eos: bool | None = None
    """Put the end of text behind every sample that does not have it, learned if what it ends is. None: behind
    texts and completions; a chat template ends its turns itself."""

    @model_validator(mode="after")
    def _can_be_cut(self) -> "TokenizeConfig":
        if self.truncation != "error" and self.max_length is None:
            raise ValueError(f"truncation={self.truncation!r} needs a max_length")
        return self


@dataclasses.dataclass
class TokenizeStats:
    """What became of the rows."""

    samples: int = 0
    truncated: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Ids of samples that are too long, or without anything to learn once they were cut."""


class Outcome(NamedTuple):
    """What became of one sample of a row."""

    row: int
    """Its row's place among those read with it."""
    sample: TokenizedSample
    kept: bool
    """False: too long, or nothing is left to learn."""
    cut: bool = False


def outcomes(
    rows: Iterable[tuple[str, str, Mapping[str, Any]]],
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    chat: ChatTemplate | None,
) -> Iterator[Outcome]:
    """The samples of (where, name, row), in order, tokenized together; `config` says what rows are."""
    work: list[tuple[int, str, str, Part | TokenizedSample]] = []
    for number, (where, name, row) in enumerate(rows):
        try:
            if config.template == "tokens":
                work.append((number, where, name, _told(row, name, where)))
            elif config.template == "auto":
                raise ValueError("what this row is must be settled before it is tokenized")
            else:
                parts = parts_of(row, config.template, config.loss, chat)
                work.extend((number, where, name + part.name, part) for part in parts)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    texts = [item.text for _, _, _, item in work if isinstance(item, Part)]
    encoded = iter(tokenizer.encode_with_offsets(texts))
    for number, where, name, item in work:
        sample = _sample(name, item, *next(encoded), tokenizer, config) if isinstance(item, Part) else item
        yield _fitted(number, sample, item, where, tokenizer, config, chat)


def _told(row: Mapping[str, Any], name: str, where: str) -> TokenizedSample:
    """A row of tokens, and what it says about the loss."""
    ids = [int(token) for token in row["input_ids"]]
    labels, mask = row.get("labels"), row.get("loss_mask")
    if labels is not None:
        if len(labels) != len(ids):
            raise ValueError(f"{len(ids)} input_ids but {len(labels)} labels")
        strange = [n for n, (t, x) in enumerate(zip(ids, labels, strict=True)) if x not in (t, IGNORED)]
        if strange:
            raise ValueError(f"label {strange[0]} is {labels[strange[0]]}, neither its token nor {IGNORED}")
        mask = [int(label != IGNORED) for label in labels]
    elif mask is None:
        mask = [1] * len(ids)
    elif len(mask) != len(ids):
        raise ValueError(f"{len(ids)} input_ids but {len(mask)} entries of loss_mask")
    return TokenizedSample(name, ids, as_loss_mask(mask, where).tolist())


def _sample(
    name: str, part: Part, ids: list[int], offsets: list[Span], tokenizer: Tokenizer, config: TokenizeConfig
) -> TokenizedSample:
    mask = [0] * len(ids)
    spans = iter(part.learned)
    begin, end = next(spans, (0, 0))
    # Tokens and learned parts both come in order; a token that reaches into a part is not of it.
    for place, (start, stop) in enumerate(offsets):
        while start >= end and (following := next(spans, None)) is not None:
            begin, end = following
        mask[place] = int(begin <= start < end and stop > start)
    ids, bos, eos = list(ids), tokenizer.bos_token_id, tokenizer.eos_token_id
    wants_eos = part.ends and eos is not None if config.add_eos is None else config.add_eos
    for wanted, token, what in ((config.add_bos, bos, "begin"), (wants_eos, eos, "end")):
        if wanted and token is None:
            raise ValueError(f"the vocabulary has no token for the {what} of a text")
    if wants_eos and eos is not None and ids[-1:] != [eos]:
        learned = mask[-1] if mask else 1
        ids.append(eos)
        mask.append(learned)
    if config.add_bos and bos is not None and ids[:1] != [bos]:
        ids.insert(0, bos)
        mask.insert(0, 0)
    return TokenizedSample(name, ids, mask)


def _fitted(
    row: int,
    sample: TokenizedSample,
    item: Part | TokenizedSample,
    where: str,
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    chat: ChatTemplate | None,
) -> Outcome:
    """The sample, cut if need be, or left out."""
    longest = config.max_length
    if not sample.length:
        raise ValueError(f"{where}: sample {sample.sample_id!r} has no tokens; leave it out")
    cut = longest is not None and sample.length > longest
    if longest is not None and cut:
        if config.truncation == "error":
            raise ValueError(
                f"{where}: sample {sample.sample_id!r} has {sample.length} tokens, more than {longest}; "
                f"choose a truncation (skip, right, left, turns) or raise the length"
            )
        shorter = _cut(sample, item, longest, tokenizer, config, chat)
        if shorter is None:
            return Outcome(row, sample, kept=False)
        sample = shorter
    # The first token of a sample has nothing before it, so that no loss can be taken on it.
    learned = any(sample.loss_mask[1:]) or not any(item.learned if isinstance(item, Part) else ())
    return Outcome(row, sample, learned, cut)


def _cut(
    sample: TokenizedSample,
    item: Part | TokenizedSample,
    longest: int,
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    chat: ChatTemplate | None,
) -> TokenizedSample | None:
    if config.truncation == "skip":
        return None
    if config.truncation != "turns":
        kept = slice(longest) if config.truncation == "right" else slice(-longest, None)
        return TokenizedSample(sample.sample_id, sample.input_ids[kept], sample.loss_mask[kept])
    if not isinstance(item, Part) or not item.messages:
        raise ValueError(
            f"sample {sample.sample_id!r} has no turns to leave out; cut it right or left, or skip it"
        )
    messages, first = list(item.messages), item.first_learned
    system = int(messages[0]["role"] == "system")
    while len(messages) > system + 1:
        del messages[system]
        first = max(first - 1, 0)
        if messages[system]["role"] != "user":
            continue
        part = chat_part(messages, config.loss, chat, first_learned=first)
        ((ids, offsets),) = tokenizer.encode_with_offsets([part.text])
        found = _sample(sample.sample_id, part, ids, offsets, tokenizer, config)
        if found.length <= longest:
            return found
    return None
