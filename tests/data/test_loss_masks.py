"""Loss masks: turns and tokens that count toward the loss."""

import pytest

from phalanx.data.loss_masks import compute_loss_mask, select_loss_turns

MESSAGES = [{"role": role, "content": "text"} for role in ("user", "assistant", "user", "assistant")]


@pytest.mark.parametrize(
    ("first_turn", "last_only", "turns"),
    [(0, False, [1, 3]), (2, False, [3]), (0, True, [3])],
)
def test_assistant_turns_are_selected(first_turn: int, last_only: bool, turns: list[int]) -> None:
    assert select_loss_turns(MESSAGES, first_turn, last_only=last_only) == turns


@pytest.mark.parametrize("last_only", [False, True])
def test_conversation_without_assistant_turn_has_no_loss_turns(last_only: bool) -> None:
    assert select_loss_turns(MESSAGES[:3], first_turn=2, last_only=last_only) == []


@pytest.mark.parametrize(
    ("loss_spans", "count_overlap", "mask"),
    [
        ([], False, [0, 0, 0, 0]),
        ([(0, 8)], False, [1, 1, 0, 1]),
        ([(4, 8)], False, [0, 0, 0, 1]),
        ([(4, 8)], True, [0, 1, 0, 1]),
        ([(0, 3), (5, 8)], False, [1, 0, 0, 1]),
    ],
)
def test_tokens_in_spans_count(loss_spans: list, count_overlap: bool, mask: list[int]) -> None:
    # The third token is empty, like a special token that the tokenizer adds.
    offsets = [(0, 3), (3, 5), (5, 5), (5, 8)]
    assert compute_loss_mask(offsets, loss_spans, count_overlap=count_overlap) == mask
