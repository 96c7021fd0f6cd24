"""Conversion of conversations to images and episode records for a run's report."""

import dataclasses
from typing import Any

import drawsvg as draw

from phalanx.lm.text_policy import Turn
from phalanx.lm.text_rollout import Conversation
from phalanx.svg import BAD, BORDER, GOOD, MUTED, SHEET, TEXT, text_line, text_width

_LINE_HEIGHT, _FONT_SIZE = 18, 14


@dataclasses.dataclass(frozen=True)
class TurnSVG:
    """A turn rendered as SVG: the prompt, the answer and, if the answer was invalid, the error message."""

    turn: Turn
    solved: bool

    def _repr_svg_(self) -> str:
        error = self.turn.error and f"Not possible: {self.turn.error}"
        parts = ((self.turn.prompt, MUTED), (self.turn.answer or "(nothing)", TEXT), (error, BAD))
        lines = [(line, color) for text, color in parts if text for line in text.split("\n")]
        if self.solved:
            lines.append(("Solved.", GOOD))
        width = 40 + max(text_width(line, _FONT_SIZE, mono=True) for line, _ in lines)
        height = 30 + _LINE_HEIGHT * len(lines)
        picture = draw.Drawing(width, height)
        picture.append(draw.Rectangle(0, 0, width, height, fill=SHEET, stroke=BORDER, rx=8))
        for index, (line, color) in enumerate(lines):
            text, y = line.replace(" ", "\u00a0"), 28 + _LINE_HEIGHT * index
            picture.append(text_line(text, _FONT_SIZE, 20, y, fill=color, mono=True))
        return str(picture.as_svg())


def episode_record(task: str, conversation: Conversation, update: int, index: int) -> dict[str, Any]:
    """Convert a conversation to a record for `ExperimentLogger.log_episode_summary`.

    Args:
        task: Name of the task.
        conversation: Conversation of a finished episode.
        update: Number of updates so far.
        index: Index of the episode among the episodes that are logged at this update.
    """
    turns = conversation.turns
    states = [
        TurnSVG(turn, conversation.solved and number == len(turns) - 1) for number, turn in enumerate(turns)
    ]
    return {
        "episode_num": update,
        "environment_id": index,
        "task_id": task,
        "total_reward": conversation.total_reward,
        "total_steps": len(turns),
        "success": conversation.solved,
        "turns": [{"prompt": turn.prompt, "answer": turn.answer, "error": turn.error} for turn in turns],
        "initial_state": states[0],
        "step_states": states[1:],
        "final_state": states[-1],
    }
