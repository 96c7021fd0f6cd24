"""Pictures of proofs: a proof as a tree, a state of an episode as a list of goals, and whole episodes.

Colors, fonts and sheets are in `phalanx.svg`; proofs are found in `search.proving`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import drawsvg as draw
import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int32

from phalanx.formatting import format_count
from phalanx.kg.proof_tree import Proof
from phalanx.kg.vocabulary import IndexManager
from phalanx.proofs.state import TRUNCATED, ProofState
from phalanx.proofs.text import query_name
from phalanx.svg import (
    ACCENT,
    ACCENT_TINT,
    BAD,
    BORDER,
    CARD,
    GOOD,
    GOOD_TINT,
    LINE,
    MARGIN,
    MUTED,
    TEXT,
    TRACK,
    SvgBlock,
    badge,
    clean,
    new_drawing,
    short,
    text_line,
    text_width,
)

_SIZE = 13
_BOX = 32
_GAP = 22
_RISE = 84
"""From the bottom of a goal to the top of the goals below it; the rule stands between."""
_HEADER = 56
_WIDEST = 780
_LETTERS = 64
"""Of an atom in a picture; longer ones are cut, and whole in the tooltip."""


class _Look(NamedTuple):
    """The colors of a box."""

    fill: str
    stroke: str
    ink: str


_QUERY = _Look(ACCENT, ACCENT, "#FFFFFF")
_NEXT = _Look(ACCENT_TINT, ACCENT, TEXT)
_PLAIN = _Look(CARD, LINE, TEXT)
_FACT = _Look(GOOD_TINT, GOOD, TEXT)
_PROVED = _Look(GOOD, GOOD, "#FFFFFF")
_FAILED = _Look(BAD, BAD, "#FFFFFF")
_RUNNING = _Look(TRACK, TRACK, MUTED)


class _Placed(NamedTuple):
    """A goal's box and everything under it, measured from the left of its own width."""

    proof: Proof
    width: float
    middle: float
    children: tuple["_Placed", ...]


def draw_proof(proof: Proof) -> draw.Drawing:
    """The proof from its query at the top down to the facts; the rules stand at the edges and below."""
    placed = _place(proof)
    rules = list({node.rule.name: node.rule for node in proof.nodes() if node.rule}.values())
    badge = _badge(f"proved in {format_count(proof.depth, 'step')}", _PROVED)
    legend = [f"{', '.join(map(rule.write, rule.body))} → {rule.write(rule.head)}" for rule in rules]
    names = max((_mono_width(rule.name, 12) for rule in rules), default=12) + 18
    needed = max(
        placed.width,
        max((names + _mono_width(text, 12) for text in legend), default=0),
        text_width("Proof", 17, bold=True) + badge.width + 30,
    )
    width = needed + 2 * MARGIN
    levels = _levels(placed)
    top = MARGIN + _HEADER - 12
    below = top + levels * _BOX + (levels - 1) * _RISE
    sheet = _sheet(width, below + MARGIN + 42 + len(rules) * 20, f"Proof of {proof.goal}")
    sheet.append(text_line("Proof", 17, MARGIN, MARGIN + 16, bold=True))
    sheet.append(badge.at(width - MARGIN - badge.width, MARGIN, class_="badge"))
    _draw_tree(placed, MARGIN + (needed - placed.width) / 2, top, sheet, root=True)
    sheet.append(
        draw.Line(MARGIN, short(below + 20), short(width - MARGIN), short(below + 20), stroke=BORDER)
    )
    y = below + 42
    for rule, text in zip(rules, legend, strict=True):
        sheet.append(text_line(rule.name, 12, MARGIN, y, mono=True, fill=ACCENT, bold=True))
        sheet.append(text_line(text, 12, MARGIN + names, y, mono=True, fill=MUTED))
        y += 20
    sheet.append(_box("", MARGIN, y - 10, 12, 12, _FACT, radius=3))
    sheet.append(text_line("a fact", 12, MARGIN + names, y, fill=MUTED))
    return sheet


def _place(proof: Proof) -> _Placed:
    children = tuple(map(_place, proof.children))
    own = max(_box_width(str(proof.goal)), _edge_width(proof))
    below = sum(child.width for child in children) + _GAP * max(len(children) - 1, 0)
    if not children:
        return _Placed(proof, own, own / 2, ())
    # The goal stands over the middle between its first and its last child.
    middle = (children[0].middle + below - children[-1].width + children[-1].middle) / 2
    left, right = max(middle, own / 2), max(below - middle, own / 2)
    return _Placed(proof, left + right, left, children)


def _box_width(text: str) -> float:
    return _mono_width(_shortened(text), _SIZE) + 26


def _edge_width(proof: Proof) -> float:
    """The rule's name stands in the middle of the edge, what its variables are to the right of it."""
    if proof.rule is None:
        return 0
    return _mono_width(proof.rule.name, 12) + 20 + 2 * (_mono_width(_values(proof), 11) + 10)


def _values(proof: Proof) -> str:
    return _shortened(", ".join(f"{name} = {term}" for name, term in proof.substitution))


def _levels(placed: _Placed) -> int:
    return 1 + max(map(_levels, placed.children), default=0)


def _draw_tree(placed: _Placed, x: float, y: float, sheet: draw.Drawing, root: bool = False) -> None:
    proof = placed.proof
    middle, below = x + placed.middle, y + _BOX
    if proof.rule is not None:
        span = sum(child.width for child in placed.children) + _GAP * (len(placed.children) - 1)
        first, last = placed.children[0], placed.children[-1]
        at = middle - (first.middle + span - last.width + last.middle) / 2
        knee, name = below + 42, proof.rule.name
        edges = f"M{short(middle)} {short(below)}V{short(knee)}"
        for child in placed.children:
            edges += _edge(middle, knee, at + child.middle, y + _BOX + _RISE)
            _draw_tree(child, at, y + _BOX + _RISE, sheet)
            at += child.width + _GAP
        sheet.append(draw.Path(edges, fill="none", stroke=LINE, stroke_width=1.4, class_="edge"))
        wide = _mono_width(name, 12) + 20
        group = _box(name, middle - wide / 2, below + 16, wide, 24, _NEXT, size=12, radius=12, class_="rule")
        group.append(draw.Title(clean(str(proof.rule))))
        sheet.append(group)
        sheet.append(text_line(_values(proof), 11, middle + wide / 2 + 8, below + 32, mono=True, fill=MUTED))
    look = _QUERY if root else _FACT if proof.rule is None else _PLAIN
    wide, kind = _box_width(str(proof.goal)), "fact" if proof.rule is None else "goal"
    group = _box(_shortened(str(proof.goal)), middle - wide / 2, y, wide, _BOX, look, class_=kind)
    group.append(draw.Title(clean(f"{proof.goal}, asked as {proof.asked}")))
    sheet.append(group)


def _edge(x: float, y: float, to_x: float, to_y: float) -> str:
    """From the rule to a goal: across, round a corner, and down."""
    if abs(to_x - x) < 1:
        return f"M{short(x)} {short(y)}V{short(to_y)}"
    radius = min(12.0, abs(to_x - x))
    side = 1 if to_x > x else -1
    across = y + 14
    return (
        f"M{short(x)} {short(y)}V{short(across)}H{short(to_x - side * radius)}"
        f"Q{short(to_x)} {short(across)} {short(to_x)} {short(across + radius)}"
        f"V{short(to_y)}"
    )


class ProofFrame(eqx.Module):
    """A state of an episode with the names of its goals and of those before it; it draws itself."""

    goals: Int32[np.ndarray, "atoms atom"]
    """As the state had them."""
    episode: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    """The goals of every state of the episode; a picture shows those up to its own."""
    place: int = eqx.field(static=True)
    """Which of these states it is."""
    step: int = eqx.field(static=True)
    """Steps taken."""
    query: str = eqx.field(static=True)
    about: str = eqx.field(static=True)
    """What is known of the query, and how many choices there are."""
    status: str = eqx.field(static=True)
    """`running`, `proved`, `failed`, `given up` or `out of steps`."""

    def _repr_svg_(self) -> str:
        svg: str = draw_frame(self).as_svg()
        return svg


def draw_state(state: ProofState, index_manager: IndexManager) -> draw.Drawing:
    """One state by itself: the query, what is left to prove, and how it ended if it did."""
    return draw_frame(proof_frames([state], index_manager)[0])


def proof_frames(states: Sequence[ProofState], index_manager: IndexManager) -> list[ProofFrame]:
    """The states of one episode, in order, as pictures that grow line by line."""
    # One transfer for all; the other arrays of a state are large.
    seen = jax.device_get(
        [
            (s.goals, s.count, s.successors[:, 0, 0], s.query, s.label, s.depth, s.status, s.step_count)
            for s in states
        ]
    )
    episode = tuple(_names(goals, index_manager) for goals, *_ in seen)
    could_give_up = False
    frames = []
    for place, (goals, choices, firsts, query, label, depth, status, step) in enumerate(seen):
        names = _names(query[None], index_manager)
        word = _status(int(goals[0, 0]), int(status), could_give_up, index_manager)
        about = "true" if label else "false"
        about += f" · depth {depth}" if label and depth >= 0 else ""
        if word == "running":
            about += f" · {format_count(int(choices), 'choice')}"
        frames.append(ProofFrame(np.asarray(goals), episode, place, int(step), names[0], about, word))
        could_give_up = bool((firsts[: int(choices)] == index_manager.end_idx).any())
    return frames


def _names(rows: Any, index_manager: IndexManager) -> tuple[str, ...]:
    return tuple(map(str, index_manager.decode_state(np.asarray(rows))))


def _status(first: int, status: int, could_give_up: bool, index_manager: IndexManager) -> str:
    if first == index_manager.true_idx:
        return "proved"
    if first == index_manager.false_idx:
        # Where giving up is offered, False is not among the other successors.
        return "given up" if could_give_up else "failed"
    return "out of steps" if status == TRUNCATED else "running"


def drawn_episodes(
    episodes: Iterable[Mapping[str, Any]], index_manager: IndexManager
) -> list[dict[str, Any]]:
    """Episodes as `phalanx.core.record_episodes` gives them, with states that draw themselves.

    The states become `ProofFrame`s, the query is the `task_id`, and the similarity, which a proof has none
    of, is left out: so `SVGHandler` and the report show them.
    """
    drawn = []
    for episode in episodes:
        frames = proof_frames([episode["initial_state"], *episode["step_states"]], index_manager)
        record = {name: value for name, value in episode.items() if name != "final_similarity"}
        drawn.append(
            record
            | {
                "task_id": query_name(episode["initial_state"], index_manager),
                "initial_state": frames[0],
                "step_states": frames[1:],
                "final_state": frames[-1],
            }
        )
    return drawn


_LOOKS = {"running": _RUNNING, "proved": _PROVED}
_MARKS = {"True": "✓ nothing left to prove", "False": "✕ False"}


def draw_frame(frame: ProofFrame) -> draw.Drawing:
    """The goals of the state under those of the states before it, the next goal of each marked.

    All frames of an episode have the same size, so that nothing jumps while they are stepped through.
    """
    rows = [_flowed(goals) for goals in frame.episode]
    title = _shortened(frame.query)
    badge = _badge(
        f"step {frame.step}" if frame.status == "running" else frame.status, _LOOKS.get(frame.status, _FAILED)
    )
    # As wide as the widest of the badges that the episode may come to.
    heading = _mono_width(title, 16) * 1.05 + _badge("out of steps", _FAILED).width + 40
    content = max((x + width for lines in rows for chips in lines for _, x, width in chips), default=0)
    width = max(heading, content + 34, 460) + 2 * MARGIN
    height = MARGIN + _HEADER + sum(38 * len(lines) + 6 for lines in rows) + MARGIN - 12
    sheet = _sheet(width, height, f"{frame.query}, step {frame.step}: {frame.status}")
    sheet.append(text_line(title, 16, MARGIN, MARGIN + 16, mono=True, bold=True))
    sheet.append(text_line(frame.about, 12, MARGIN, MARGIN + 36, fill=MUTED))
    sheet.append(badge.at(width - MARGIN - badge.width, MARGIN, class_="badge"))
    y = float(MARGIN + _HEADER)
    for place, lines in enumerate(rows[: frame.place + 1]):
        sheet.append(_row(frame, place, lines, y))
        y += 38 * len(lines) + 6
    return sheet


def _row(frame: ProofFrame, place: int, lines: list[list[tuple[str, float, float]]], y: float) -> draw.Group:
    now = place == frame.place
    number = str(frame.step - frame.place + place)
    group = draw.Group(class_="now" if now else "before", **({} if now else {"opacity": 0.5}))
    group.append(
        text_line(number, 12, MARGIN + 14, y + 20, fill=ACCENT if now else MUTED, bold=now, anchor="end")
    )
    places = itertools.count()
    for row, chips in enumerate(lines):
        for text, x, width in chips:
            first = next(places) == 0
            look, kind = _chip_look(frame.status if now else "running", text, first), "goal" + " next" * first
            group.append(_box(text, MARGIN + 34 + x, y + 38 * row, width, 30, look, class_=kind))
    return group


def _chip_look(status: str, text: str, first: bool) -> _Look:
    if text == _MARKS["True"]:
        return _PROVED
    if text == _MARKS["False"]:
        return _FAILED
    return _NEXT if first and status == "running" else _PLAIN


def _flowed(goals: Sequence[str]) -> list[list[tuple[str, float, float]]]:
    """Chips in reading order, wrapped: each with its text, its left edge and its width."""
    lines: list[list[tuple[str, float, float]]] = [[]]
    x = 0.0
    for goal in goals:
        text = _shortened(_MARKS.get(goal, goal))
        width = _box_width(text)
        if lines[-1] and x + width > _WIDEST:
            lines.append([])
            x = 0.0
        lines[-1].append((text, x, width))
        x += width + 8
    return lines


def _mono_width(text: str, size: float) -> float:
    return text_width(text, size, mono=True)


def _shortened(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _badge(text: str, look: _Look) -> SvgBlock:
    return badge(text, fill=look.fill, ink=look.ink, size=12)


def _box(text: str, x: float, y: float, width: float, height: float, look: _Look, **more: Any) -> draw.Group:
    """A rounded box with a text of fixed width in its middle; `more` are attributes of the group."""
    size, radius = more.pop("size", _SIZE), more.pop("radius", 8)
    group = draw.Group(**more)
    group.append(
        draw.Rectangle(
            short(x), short(y), short(width), short(height),
            rx=radius, fill=look.fill, stroke=look.stroke, stroke_width=1.2,
        )
    )  # fmt: skip
    if text:
        middle = y + height / 2 + size * 0.35
        group.append(text_line(text, size, x + width / 2, middle, fill=look.ink, mono=True, anchor="middle"))
    return group


def _sheet(width: float, height: float, title: str) -> draw.Drawing:
    return new_drawing(round(width, 1), round(height, 1), title)
