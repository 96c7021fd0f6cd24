"""Loss masks: selection of the turns and tokens that count toward the loss."""

from collections.abc import Sequence

from phalanx.data.chat_template import Message, Span


def select_loss_turns(
    messages: Sequence[Message], first_turn: int = 0, *, last_only: bool = False
) -> list[int]:
    """Return the indices of the assistant messages that count toward the loss.

    Args:
        messages: Messages of a conversation.
        first_turn: Index of the first message that can count toward the loss.
        last_only: Select only the last of these assistant messages.
    """
    turns = [n for n, turn in enumerate(messages) if turn["role"] == "assistant" and n >= first_turn]
    return turns[-1:] if last_only else turns


def compute_loss_mask(
    offsets: Sequence[Span], loss_spans: Sequence[Span], *, count_overlap: bool = False
) -> list[int]:
    """Return the loss mask of a text: 1 for each token that counts toward the loss, and 0 for all others.

    A token counts if it starts inside one of the spans. Tokens without characters, such as special tokens
    that the tokenizer adds, do not count.

    Args:
        offsets: Character range of each token in the text, in order.
        loss_spans: Character ranges of the text that count toward the loss, in order.
        count_overlap: Also count tokens that start before a span and overlap with it, as `transformers`
            does.

    >>> compute_loss_mask([(0, 3), (3, 5), (5, 8)], [(4, 8)])
    [0, 0, 1]
    >>> compute_loss_mask([(0, 3), (3, 5), (5, 8)], [(4, 8)], count_overlap=True)
    [0, 1, 1]
    """
    mask = [0] * len(offsets)
    spans = iter(loss_spans)
    begin, end = next(spans, (0, 0))
    # Tokens and spans are both in order.
    for index, (start, stop) in enumerate(offsets):
        while start >= end and (following := next(spans, None)) is not None:
            begin, end = following
        first = stop > begin if count_overlap else start >= begin
        mask[index] = int(first and start < end and stop > start)
    return mask
