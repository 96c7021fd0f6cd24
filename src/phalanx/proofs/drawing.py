"""Pictures of proofs: a proof as a tree, a state of an episode as a list of goals, and whole episodes.

What the pictures are made of is in `picture_parts`; proofs are found in `proving`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import drawsvg as draw
import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int32

from phalanx.proofs import picture_parts as pp
from phalanx.proofs.knowledge.vocabulary import IndexManager
from phalanx.proofs.search.goal_tables import Proof
from phalanx.proofs.search.state import TRUNCATED, ProofState

_SIZE = 13
_BOX = 32
_GAP = 22
_RISE = 84
"""From the bottom of a goal to the top of the goals below it; the rule stands between."""
_HEADER = 56
_WIDEST = 780
_LETTERS = 64
"""Of an atom in a picture; longer ones are cut, and whole in the tooltip."""


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
    steps = f"proved in {proof.depth} step" + ("s" if proof.depth != 1 else "")
    legend = [f"{', '.join(map(str, rule.body))} → {rule.head}" for rule in rules]
    names = max((pp.mono_width(rule.name, 12) for rule in rules), default=12) + 18
    needed = max(
        placed.width,
        max((names + pp.mono_width(text, 12) for text in legend), default=0),
        pp.sans_width("Proof", 17) + pp.badge_width(steps) + 30,
    )
    width = needed + 2 * pp.MARGIN
    levels = _levels(placed)
    below = pp.MARGIN + _HEADER - 12 + levels * _BOX + (levels - 1) * _RISE
    height = below + pp.MARGIN + 42 + len(rules) * 20
    parts: list[Any] = [
        pp.line("Proof", 17, pp.MARGIN, pp.MARGIN + 16, bold=True),
        pp.badge(steps, width - pp.MARGIN, pp.MARGIN, pp.PROVED),
    ]
    _draw_tree(placed, pp.MARGIN + (needed - placed.width) / 2, pp.MARGIN + _HEADER - 12, parts, root=True)
    parts.append(
        draw.Line(
            pp.MARGIN, pp.short(below + 20), pp.short(width - pp.MARGIN), pp.short(below + 20),
            stroke=pp.BORDER,
        )
    )  # fmt: skip
    y = below + 42
    for rule, text in zip(rules, legend, strict=True):
        parts.append(pp.line(rule.name, 12, pp.MARGIN, y, mono=True, ink=pp.ACCENT, bold=True))
        parts.append(pp.line(text, 12, pp.MARGIN + names, y, mono=True, ink=pp.MUTED))
        y += 20
    parts.append(pp.box("", pp.MARGIN, y - 10, 12, 12, pp.FACT, radius=3))
    parts.append(pp.line("a fact", 12, pp.MARGIN + names, y, ink=pp.MUTED))
    return pp.sheet(width, height, f"Proof of {proof.goal}", parts)


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
    return pp.mono_width(pp.shortened(text, _LETTERS), _SIZE) + 26


def _edge_width(proof: Proof) -> float:
    """The rule's name stands in the middle of the edge, what its variables are to the right of it."""
    if proof.rule is None:
        return 0
    return pp.mono_width(proof.rule.name, 12) + 20 + 2 * (pp.mono_width(_values(proof), 11) + 10)


def _values(proof: Proof) -> str:
    return pp.shortened(", ".join(f"{name} = {term}" for name, term in proof.substitution), _LETTERS)


def _levels(placed: _Placed) -> int:
    return 1 + max(map(_levels, placed.children), default=0)


def _draw_tree(placed: _Placed, x: float, y: float, parts: list[Any], root: bool = False) -> None:
    proof = placed.proof
    middle, below = x + placed.middle, y + _BOX
    if proof.rule is not None:
        span = sum(child.width for child in placed.children) + _GAP * (len(placed.children) - 1)
        first, last = placed.children[0], placed.children[-1]
        at = middle - (first.middle + span - last.width + last.middle) / 2
        knee, name = below + 42, proof.rule.name
        edges = f"M{pp.short(middle)} {pp.short(below)}V{pp.short(knee)}"
        for child in placed.children:
            edges += _edge(middle, knee, at + child.middle, y + _BOX + _RISE)
            _draw_tree(child, at, y + _BOX + _RISE, parts)
            at += child.width + _GAP
        parts.append(draw.Path(edges, fill="none", stroke=pp.LINE, stroke_width=1.4, class_="edge"))
        wide = pp.mono_width(name, 12) + 20
        group = pp.box(
            name, middle - wide / 2, below + 16, wide, 24, pp.NEXT, size=12, radius=12, class_="rule"
        )
        group.append(draw.Title(pp.clean(str(proof.rule))))
        parts.append(group)
        parts.append(pp.line(_values(proof), 11, middle + wide / 2 + 8, below + 32, mono=True, ink=pp.MUTED))
    look = pp.QUERY if root else pp.FACT if proof.rule is None else pp.PLAIN
    wide = _box_width(str(proof.goal))
    group = pp.box(
        pp.shortened(str(proof.goal), _LETTERS), middle - wide / 2, y, wide, _BOX, look,
        class_="fact" if proof.rule is None else "goal",
    )  # fmt: skip
    group.append(draw.Title(pp.clean(f"{proof.goal}, asked as {proof.asked}")))
    parts.append(group)


def _edge(x: float, y: float, to_x: float, to_y: float) -> str:
    """From the rule to a goal: across, round a corner, and down."""
    if abs(to_x - x) < 1:
        return f"M{pp.short(x)} {pp.short(y)}V{pp.short(to_y)}"
    radius = min(12.0, abs(to_x - x))
    side = 1 if to_x > x else -1
    across = y + 14
    return (
        f"M{pp.short(x)} {pp.short(y)}V{pp.short(across)}H{pp.short(to_x - side * radius)}"
        f"Q{pp.short(to_x)} {pp.short(across)} {pp.short(to_x)} {pp.short(across + radius)}"
        f"V{pp.short(to_y)}"
    )


class ProofFrame(eqx.Module):
    """A state of an episode with the names of its goals and of those before it; it draws itself."""

    goals: Int32[np.ndarray, "atoms 3"]
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
    for place, (goals, count, firsts, query, label, depth, status, step) in enumerate(seen):
        names = _names(query[None], index_manager)
        word = _status(int(goals[0, 0]), int(status), could_give_up, index_manager)
        about = "true" if label else "false"
        about += f" · depth {depth}" if label and depth >= 0 else ""
        if word == "running":
            about += f" · {count} choice" + ("s" if count != 1 else "")
        frames.append(ProofFrame(np.asarray(goals), episode, place, int(step), names[0], about, word))
        could_give_up = bool((firsts[: int(count)] == index_manager.end_idx).any())
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
    """Episodes as `phalanx.agents.record_episodes` gives them, with states that draw themselves.

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


def query_name(state: ProofState, index_manager: IndexManager) -> str:
    """The query of a state as text, with `not` before one that is false."""
    name = str(index_manager.decode_atom(np.asarray(state.query)))
    return name if bool(state.label) else f"not {name}"


_LOOKS = {"running": pp.RUNNING, "proved": pp.PROVED}
_MARKS = {"True": "✓ nothing left to prove", "False": "✕ False"}


def draw_frame(frame: ProofFrame) -> draw.Drawing:
    """The goals of the state under those of the states before it, the next goal of each marked.

    All frames of an episode have the same size, so that nothing jumps while they are stepped through.
    """
    rows = [_flowed(goals) for goals in frame.episode]
    title = pp.shortened(frame.query, _LETTERS)
    status = f"step {frame.step}" if frame.status == "running" else frame.status
    # As wide as the widest of the badges that the episode may come to.
    heading = pp.mono_width(title, 16) * 1.05 + pp.badge_width("out of steps") + 40
    content = max((x + width for lines in rows for line in lines for _, x, width in line), default=0)
    width = max(heading, content + 34, 460) + 2 * pp.MARGIN
    parts: list[Any] = [
        pp.line(title, 16, pp.MARGIN, pp.MARGIN + 16, mono=True, bold=True),
        pp.line(frame.about, 12, pp.MARGIN, pp.MARGIN + 36, ink=pp.MUTED),
        pp.badge(status, width - pp.MARGIN, pp.MARGIN, _LOOKS.get(frame.status, pp.FAILED)),
    ]
    y = float(pp.MARGIN + _HEADER)
    for place, lines in enumerate(rows):
        if place <= frame.place:
            parts.append(_row(frame, place, lines, y))
        y += 38 * len(lines) + 6
    return pp.sheet(width, y + pp.MARGIN - 12, f"{frame.query}, step {frame.step}: {frame.status}", parts)


def _row(frame: ProofFrame, place: int, lines: list[list[tuple[str, float, float]]], y: float) -> Any:
    now = place == frame.place
    number = str(frame.step - frame.place + place)
    group = draw.Group(class_="now" if now else "before", **({} if now else {"opacity": 0.5}))
    group.append(
        pp.line(
            number, 12, pp.MARGIN + 14, y + 20, ink=pp.ACCENT if now else pp.MUTED, bold=now, anchor="end"
        )
    )
    places = itertools.count()
    for row, line in enumerate(lines):
        for text, x, width in line:
            first = next(places) == 0
            look = _chip_look(frame.status if now else "running", text, first)
            group.append(
                pp.box(
                    text, pp.MARGIN + 34 + x, y + 38 * row, width, 30, look,
                    class_="goal next" if first else "goal",
                )
            )  # fmt: skip
    return group


def _chip_look(status: str, text: str, first: bool) -> pp.Look:
    if text == _MARKS["True"]:
        return pp.PROVED
    if text == _MARKS["False"]:
        return pp.FAILED
    return pp.NEXT if first and status == "running" else pp.PLAIN


def _flowed(goals: Sequence[str]) -> list[list[tuple[str, float, float]]]:
    """Chips in reading order, wrapped: each with its text, its left edge and its width."""
    lines: list[list[tuple[str, float, float]]] = [[]]
    x = 0.0
    for goal in goals:
        text = pp.shortened(_MARKS.get(goal, goal), _LETTERS)
        width = _box_width(text)
        if lines[-1] and x + width > _WIDEST:
            lines.append([])
            x = 0.0
        lines[-1].append((text, x, width))
        x += width + 8
    return lines
