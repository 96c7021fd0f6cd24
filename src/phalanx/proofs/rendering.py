"""SVG drawings of proof-search states and episodes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import drawsvg as draw
import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int32

from phalanx.formatting import format_count
from phalanx.kg.rendering import (
    FAILED,
    GOAL,
    HEADER_HEIGHT,
    NEXT_GOAL,
    PROVED,
    RUNNING,
    box_width,
    draw_badge,
    draw_box,
    mono_width,
    new_sized_drawing,
    truncate_atom,
)
from phalanx.proofs.state import TRUNCATED, ProofState
from phalanx.proofs.text import query_name
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.svg import ACCENT, MARGIN, MUTED, text_line

_MAX_WIDTH = 780
_LINE_HEIGHT = 38


class ProofFrame(eqx.Module):
    """A state of an episode, with the data needed to draw the episode up to this state.

    Notebooks display a frame as the drawing that `draw_frame` returns.
    """

    goals: Int32[np.ndarray, "goals atom"]
    """Encoded goals of the state."""
    episode: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    """For each state of the episode, its goals as text. The drawing shows the states up to `index`."""
    index: int = eqx.field(static=True)
    """Index of this state in the episode."""
    step: int = eqx.field(static=True)
    """Number of steps that the episode has taken up to this state."""
    query: str = eqx.field(static=True)
    """Query of the episode as text."""
    details: str = eqx.field(static=True)
    """Text with the label and depth of the query and, while the episode runs, the number of choices."""
    status: str = eqx.field(static=True)
    """`running`, `proved`, `failed`, `given up` or `out of steps`."""

    def _repr_svg_(self) -> str:
        return str(draw_frame(self).as_svg())


def draw_state(state: ProofState, vocabulary: ProofVocabulary) -> draw.Drawing:
    """Draw the query and the remaining goals of a single state, and the outcome if the episode has ended."""
    return draw_frame(proof_frames([state], vocabulary)[0])


def proof_frames(states: Sequence[ProofState], vocabulary: ProofVocabulary) -> list[ProofFrame]:
    """Convert the states of one episode to frames. Each frame shows its own state and all earlier ones."""
    # Transfer only the fields that are needed, all at once; the other arrays of a state are large.
    fields = jax.device_get(
        [(s.goals, s.num_actions, s.successors[:, 0, 0], s.query, s.status, s.step_count) for s in states]
    )
    episode = tuple(_goal_names(goals, vocabulary) for goals, *_ in fields)
    could_give_up = False
    frames = []
    for index, (goals, num_actions, predicates, query, status, step) in enumerate(fields):
        names = _goal_names(query.atom[None], vocabulary)
        outcome = "out of steps" if status == TRUNCATED else "running"
        if goals[0, 0] == vocabulary.true_index:
            outcome = "proved"
        elif goals[0, 0] == vocabulary.false_index:
            # If giving up is offered, False is not among the other successors.
            outcome = "given up" if could_give_up else "failed"
        details = "true" if query.label else "false"
        details += f" · depth {query.depth}" if query.label and query.depth >= 0 else ""
        if outcome == "running":
            details += f" · {format_count(int(num_actions), 'choice')}"
        frames.append(ProofFrame(np.asarray(goals), episode, index, int(step), names[0], details, outcome))
        could_give_up = bool((predicates[: int(num_actions)] == vocabulary.end_index).any())
    return frames


def _goal_names(rows: Any, vocabulary: ProofVocabulary) -> tuple[str, ...]:
    return tuple(map(str, vocabulary.decode_state(np.asarray(rows))))


def render_episodes(
    episodes: Iterable[Mapping[str, Any]], vocabulary: ProofVocabulary
) -> list[dict[str, Any]]:
    """Convert recorded episodes so that `SVGHandler` and the training report can draw them.

    States are replaced by `ProofFrame`s, and `task_id` is set to the query.
    """
    rendered = []
    for episode in episodes:
        frames = proof_frames([episode["initial_state"], *episode["step_states"]], vocabulary)
        rendered.append(
            {
                **episode,
                "task_id": query_name(episode["initial_state"], vocabulary),
                "initial_state": frames[0],
                "step_states": frames[1:],
                "final_state": frames[-1],
            }
        )
    return rendered


_STATUS_STYLES = {"running": RUNNING, "proved": PROVED}
_END_TEXTS = {"True": "✓ nothing left to prove", "False": "✕ False"}
_END_STYLES = {_END_TEXTS["True"]: PROVED, _END_TEXTS["False"]: FAILED}


def draw_frame(frame: ProofFrame) -> draw.Drawing:
    """Draw the goals of a state below those of all earlier states of the episode.

    The first goal of each state, which the next step resolves, is highlighted. All frames of an episode have
    the same size, so that an animation does not jump.
    """
    rows = [_wrap_boxes(goals) for goals in frame.episode]
    title = truncate_atom(frame.query)
    status = draw_badge(
        f"step {frame.step}" if frame.status == "running" else frame.status,
        _STATUS_STYLES.get(frame.status, FAILED),
    )
    # Wide enough for the widest badge of the episode.
    heading = mono_width(title, 16) * 1.05 + draw_badge("out of steps", FAILED).width + 40
    content = max((x + width for lines in rows for boxes in lines for _, x, width in boxes), default=0)
    width = max(heading, content + 34, 460) + 2 * MARGIN
    height = MARGIN + HEADER_HEIGHT + sum(_LINE_HEIGHT * len(lines) + 6 for lines in rows) + MARGIN - 12
    drawing = new_sized_drawing(width, height, f"{frame.query}, step {frame.step}: {frame.status}")
    drawing.append(text_line(title, 16, MARGIN, MARGIN + 16, mono=True, bold=True))
    drawing.append(text_line(frame.details, 12, MARGIN, MARGIN + 36, fill=MUTED))
    drawing.append(status.at(width - MARGIN - status.width, MARGIN, class_="badge"))
    y = float(MARGIN + HEADER_HEIGHT)
    for index, lines in enumerate(rows[: frame.index + 1]):
        drawing.append(_draw_row(frame, index, lines, y))
        y += _LINE_HEIGHT * len(lines) + 6
    return drawing


def _draw_row(
    frame: ProofFrame, index: int, lines: list[list[tuple[str, float, float]]], y: float
) -> draw.Group:
    is_current = index == frame.index
    number = str(frame.step - frame.index + index)
    group = draw.Group(class_="now" if is_current else "before", **({} if is_current else {"opacity": 0.5}))
    color = ACCENT if is_current else MUTED
    group.append(text_line(number, 12, MARGIN + 14, y + 20, fill=color, bold=is_current, anchor="end"))
    for row, boxes in enumerate(lines):
        for text, x, width in boxes:
            is_first = row == 0 and x == 0
            is_next = is_first and (not is_current or frame.status == "running")
            style = _END_STYLES.get(text, NEXT_GOAL if is_next else GOAL)
            kind = "goal" + " next" * is_first
            group.append(
                draw_box(text, MARGIN + 34 + x, y + _LINE_HEIGHT * row, width, 30, style, class_=kind)
            )
    return group


def _wrap_boxes(goals: Sequence[str]) -> list[list[tuple[str, float, float]]]:
    """Arrange the boxes of goals in lines, and return the text, left edge and width of each box."""
    lines: list[list[tuple[str, float, float]]] = [[]]
    x = 0.0
    for goal in goals:
        text = truncate_atom(_END_TEXTS.get(goal, goal))
        width = box_width(text)
        if lines[-1] and x + width > _MAX_WIDTH:
            lines.append([])
            x = 0.0
        lines[-1].append((text, x, width))
        x += width + 8
    return lines
