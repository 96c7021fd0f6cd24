"""SVG drawings of proof trees, and shared functions for drawing boxes and badges."""

import itertools
from typing import Any, NamedTuple

import drawsvg as draw

from phalanx import svg
from phalanx.formatting import format_count
from phalanx.kg.proof_tree import Proof
from phalanx.svg import MARGIN, short, text_line

FONT_SIZE = 13
HEADER_HEIGHT = 56
_BOX_HEIGHT = 32
_BOX_GAP = 22
_LEVEL_GAP = 84
"""Vertical distance in pixels between the box of a goal and the boxes below it. The rule is drawn in
between."""
_MAX_CHARACTERS = 64
"""Maximum number of characters in a box. Longer text is truncated; the tooltip contains the full text."""


class BoxStyle(NamedTuple):
    """Colors of a box: its background (`fill`), its border (`stroke`) and its text (`ink`)."""

    fill: str
    stroke: str
    ink: str


QUERY = BoxStyle(svg.ACCENT, svg.ACCENT, "#FFFFFF")
NEXT_GOAL = BoxStyle(svg.ACCENT_TINT, svg.ACCENT, svg.TEXT)
GOAL = BoxStyle(svg.CARD, svg.LINE, svg.TEXT)
FACT = BoxStyle(svg.GOOD_TINT, svg.GOOD, svg.TEXT)
PROVED = BoxStyle(svg.GOOD, svg.GOOD, "#FFFFFF")
FAILED = BoxStyle(svg.BAD, svg.BAD, "#FFFFFF")
RUNNING = BoxStyle(svg.TRACK, svg.TRACK, svg.MUTED)


class _LaidOutProof(NamedTuple):
    """Layout of the drawing of a proof: its width, and the horizontal positions of the goal and subproofs."""

    proof: Proof
    width: float
    """Width of the proof's drawing in pixels, including all subproofs."""
    middle: float
    """Distance of the goal's center from the left edge of this layout."""
    children: tuple[tuple[float, "_LaidOutProof"], ...]
    """Layouts of the subproofs, each with its distance from the left edge of this layout."""


def draw_proof(proof: Proof) -> draw.Drawing:
    """Draw a proof as a tree with the query at the top, and list the rules of the proof below the tree."""
    tree = _lay_out(proof)
    rules = list({node.rule.name: node.rule for node in proof.nodes() if node.rule}.values())
    result = draw_badge(f"proved in {format_count(proof.depth, 'step')}", PROVED)
    legend = [rule.format_clause("→") for rule in rules]
    name_width = max((mono_width(rule.name, 12) for rule in rules), default=12) + 18
    content_width = max(
        tree.width,
        max((name_width + mono_width(text, 12) for text in legend), default=0),
        svg.text_width("Proof", 17, bold=True) + result.width + 30,
    )
    width = content_width + 2 * MARGIN
    levels = _count_levels(tree)
    top = MARGIN + HEADER_HEIGHT - 12
    bottom = top + levels * _BOX_HEIGHT + (levels - 1) * _LEVEL_GAP
    drawing = new_sized_drawing(width, bottom + MARGIN + 42 + len(rules) * 20, f"Proof of {proof.goal}")
    drawing.append(text_line("Proof", 17, MARGIN, MARGIN + 16, bold=True))
    drawing.append(result.at(width - MARGIN - result.width, MARGIN, class_="badge"))
    _draw_tree(tree, MARGIN + (content_width - tree.width) / 2, top, drawing, is_root=True)
    line_y = short(bottom + 20)
    drawing.append(draw.Line(MARGIN, line_y, short(width - MARGIN), line_y, stroke=svg.BORDER))
    y = bottom + 42
    for rule, text in zip(rules, legend, strict=True):
        drawing.append(text_line(rule.name, 12, MARGIN, y, mono=True, fill=svg.ACCENT, bold=True))
        drawing.append(text_line(text, 12, MARGIN + name_width, y, mono=True, fill=svg.MUTED))
        y += 20
    drawing.append(draw_box("", MARGIN, y - 10, 12, 12, FACT, radius=3))
    drawing.append(text_line("a fact", 12, MARGIN + name_width, y, fill=svg.MUTED))
    return drawing


def _lay_out(proof: Proof) -> _LaidOutProof:
    children = tuple(map(_lay_out, proof.children))
    own = max(box_width(str(proof.goal)), _edge_label_width(proof))
    if not children:
        return _LaidOutProof(proof, own, own / 2, ())
    *starts, end = itertools.accumulate((child.width + _BOX_GAP for child in children), initial=0.0)
    # The goal is centered between its first and its last child.
    middle = (children[0].middle + starts[-1] + children[-1].middle) / 2
    left, right = max(middle, own / 2), max(end - _BOX_GAP - middle, own / 2)
    offsets = (left - middle + start for start in starts)
    return _LaidOutProof(proof, left + right, left, tuple(zip(offsets, children, strict=True)))


def box_width(text: str) -> float:
    """Return the width of a box that contains the given text, truncated by `truncate_atom`."""
    return mono_width(truncate_atom(text), FONT_SIZE) + 26


def _edge_label_width(proof: Proof) -> float:
    """Return the width that the label of a proof's rule needs, or 0 for a fact.

    The label consists of the rule's name, which is centered on the edge, and the values of the rule's
    variables to the right of the name. To keep the name centered, the width includes a space to the left of
    the name that is as wide as the values.
    """
    if proof.rule is None:
        return 0
    values = truncate_atom(proof.format_substitution())
    return mono_width(proof.rule.name, 12) + 20 + 2 * (mono_width(values, 11) + 10)


def _count_levels(tree: _LaidOutProof) -> int:
    return 1 + max((_count_levels(child) for _, child in tree.children), default=0)


def _draw_tree(tree: _LaidOutProof, x: float, y: float, drawing: draw.Drawing, is_root: bool = False) -> None:
    proof = tree.proof
    middle, bottom = x + tree.middle, y + _BOX_HEIGHT
    if proof.rule is not None:
        knee, name = bottom + 42, proof.rule.name
        edges = f"M{short(middle)} {short(bottom)}V{short(knee)}"
        for offset, child in tree.children:
            edges += _edge_path(middle, knee, x + offset + child.middle, y + _BOX_HEIGHT + _LEVEL_GAP)
            _draw_tree(child, x + offset, y + _BOX_HEIGHT + _LEVEL_GAP, drawing)
        drawing.append(draw.Path(edges, fill="none", stroke=svg.LINE, stroke_width=1.4, class_="edge"))
        width = mono_width(name, 12) + 20
        group = draw_box(
            name, middle - width / 2, bottom + 16, width, 24, NEXT_GOAL, size=12, radius=12, class_="rule"
        )
        group.append(draw.Title(svg.clean(str(proof.rule))))
        drawing.append(group)
        values = truncate_atom(proof.format_substitution())
        drawing.append(text_line(values, 11, middle + width / 2 + 8, bottom + 32, mono=True, fill=svg.MUTED))
    style = QUERY if is_root else FACT if proof.rule is None else GOAL
    width, kind = box_width(str(proof.goal)), "fact" if proof.rule is None else "goal"
    text = truncate_atom(str(proof.goal))
    group = draw_box(text, middle - width / 2, y, width, _BOX_HEIGHT, style, class_=kind)
    group.append(draw.Title(svg.clean(f"{proof.goal}, selected as {proof.selected_goal}")))
    drawing.append(group)


def _edge_path(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return the SVG path from a rule to a goal: a vertical, a horizontal and a second vertical line."""
    if abs(to_x - x) < 1:
        return f"M{short(x)} {short(y)}V{short(to_y)}"
    radius = min(12.0, abs(to_x - x))
    side = 1 if to_x > x else -1
    level = y + 14
    return (
        f"M{short(x)} {short(y)}V{short(level)}H{short(to_x - side * radius)}"
        f"Q{short(to_x)} {short(level)} {short(to_x)} {short(level + radius)}"
        f"V{short(to_y)}"
    )


def mono_width(text: str, size: float) -> float:
    """Return the width of text in the monospaced font at the given font size."""
    return svg.text_width(text, size, mono=True)


def truncate_atom(text: str) -> str:
    """Truncate text that is too long for a box."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def draw_badge(text: str, style: BoxStyle) -> svg.SvgBlock:
    """Draw a badge, a short text on a rounded background, in the colors of a box style."""
    return svg.badge(text, fill=style.fill, ink=style.ink, size=12)


def draw_box(
    text: str, x: float, y: float, width: float, height: float, style: BoxStyle, **attributes: Any
) -> draw.Group:
    """Draw a rounded box with centered monospaced text.

    Args:
        text: Text of the box. If it is empty, the box has no text.
        x: Left edge.
        y: Top edge.
        width: Width of the box.
        height: Height of the box.
        style: Colors of the box.
        attributes: `size` (font size), `radius` (corner radius) and SVG attributes of the returned group.
    """
    size, radius = attributes.pop("size", FONT_SIZE), attributes.pop("radius", 8)
    group = draw.Group(**attributes)
    group.append(
        draw.Rectangle(
            short(x), short(y), short(width), short(height),
            rx=radius, fill=style.fill, stroke=style.stroke, stroke_width=1.2,
        )
    )  # fmt: skip
    if text:
        baseline = y + height / 2 + size * 0.35
        group.append(
            text_line(text, size, x + width / 2, baseline, fill=style.ink, mono=True, anchor="middle")
        )
    return group


def new_sized_drawing(width: float, height: float, title: str) -> draw.Drawing:
    """Create an empty drawing, with width and height rounded to one decimal place."""
    return svg.new_drawing(round(width, 1), round(height, 1), title)
