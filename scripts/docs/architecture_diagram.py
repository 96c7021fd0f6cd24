"""Generate `docs/images/architecture.svg`: how data flows through the packages.

The diagram has a light background with a border, so that it is readable on light and dark pages.
"""

import dataclasses
from collections.abc import Iterator
from xml.sax.saxutils import escape

from phalanx.svg import ACCENT, BORDER, CARD, FONT, MUTED, SHEET, TEXT, TRACK

_SIZE = (1000, 668)
_TINT = "#EEF2FF"


@dataclasses.dataclass(frozen=True)
class _Box:
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    source: bool = False
    """True for data sources and outputs outside the package."""


_ENVIRONMENTS = (190, 104, 420, 112)
_BOXES = (
    _Box(200, 24, 190, 52, "ARC tasks", ("files, generated families",), source=True),
    _Box(410, 24, 190, 52, "Knowledge graphs", ("facts, rules, queries",), source=True),
    _Box(630, 24, 200, 52, "Puzzle servers, datasets", ("telnet, JSONL, Parquet",), source=True),
    _Box(200, 132, 190, 72, "arc", ("bit-planes, 42 operations", "C++ and XLA backends")),
    _Box(410, 132, 190, 72, "proofs", ("resolution, embeddings", "C++ and XLA backends")),
    _Box(630, 132, 200, 72, "data: streams", ("episodes as samples", "replay buffer, mixtures")),
    _Box(200, 264, 400, 52, "training: rollouts", ("thousands of episodes, auto-reset, one compiled loop",)),
    _Box(630, 264, 200, 72, "data: batches", ("lengths, buckets, plans", "packing, ranks, batch files")),
    _Box(200, 376, 400, 52, "training: PPO", ("advantages, minibatches, any network, several devices",)),
    _Box(630, 376, 200, 52, "lm: language model", ("packed rows, segments",)),
    _Box(
        200,
        488,
        630,
        52,
        "logging",
        ("experiment logger: metrics of every update, sampled episodes",),
    ),
    _Box(200, 600, 630, 44, "Files, SVG, console, W&B, TensorBoard, one HTML report", (), source=True),
    _Box(20, 132, 130, 72, "integrations", ("environments for", "other libraries")),
    _Box(870, 264, 110, 72, "integrations", ("batches for", "data loaders")),
)
_ARROWS = (
    "M295 76V126",
    "M505 76V126",
    "M730 76V126",
    "M400 216V258",
    "M730 204V258",
    "M610 168H624",
    "M190 168H156",
    "M830 300H864",
    "M400 316V370",
    "M730 336V370",
    "M400 428V482",
    "M730 428V482",
    "M515 540V594",
)
_NOTES = (
    (408, 242, "observations, rewards"),
    (738, 236, "samples"),
    (408, 348, "trajectories"),
    (738, 358, "packed batches"),
    (408, 460, "metrics, episodes"),
    (738, 460, "losses"),
)


def draw() -> str:
    """Return the diagram as SVG."""
    return "\n".join(_elements()) + "\n"


def _elements() -> Iterator[str]:
    width, height = _SIZE
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} '
        f'{height}" font-family="{FONT}" role="img" style="max-width:100%;height:auto">'
    )
    yield "<title>How data flows through Phalanx</title>"
    yield (
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{MUTED}"/></marker></defs>'
    )
    yield rectangle(0.5, 0.5, width - 1, height - 1, 14, SHEET, BORDER)
    yield rectangle(*_ENVIRONMENTS, 12, TRACK, "none")
    yield text(306, 124, "environments with the protocol of core", 11, MUTED)
    for path in _ARROWS:
        yield f'<path d="{path}" stroke="{MUTED}" stroke-width="1.6" fill="none" marker-end="url(#head)"/>'
    for x, y, note in _NOTES:
        yield text(x, y, note, 11, MUTED)
    for box in _BOXES:
        fill, edge = (CARD, BORDER) if box.source else (_TINT, ACCENT)
        yield rectangle(box.x, box.y, box.width, box.height, 9, fill, edge)
        middle = box.x + box.width / 2
        first = box.y + (box.height - 15 - 17 * len(box.lines)) / 2 + 13
        yield text(middle, first, box.title, 14, TEXT, bold=True, anchor="middle")
        for number, line in enumerate(box.lines, 1):
            yield text(middle, first + 1 + 17 * number, line, 12, MUTED, anchor="middle")
    yield "</svg>"


def rectangle(x: float, y: float, width: float, height: float, radius: int, fill: str, edge: str) -> str:
    """Return a rectangle with rounded corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" '
        f'stroke="{edge}"/>'
    )


def text(
    x: float, y: float, content: str, size: int, fill: str, *, bold: bool = False, anchor: str = "start"
) -> str:
    """Return a line of text whose baseline is at `y`."""
    weight = 600 if bold else 400
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )
