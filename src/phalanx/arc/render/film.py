"""An episode as a film strip, step by step in rows, or as one animated picture.

What a frame holds is in `episode`; single states are drawn in `svg`.
"""

import dataclasses
from collections.abc import Sequence

import drawsvg as draw
import numpy as np

from phalanx.arc.render.cells import cell_size, grid_block
from phalanx.arc.render.episode import Frame
from phalanx.arc.render.layout import Block, flowed, pill, sheet, spread, stacked, text
from phalanx.arc.render.palette import (
    BAD,
    BAD_TINT,
    GOOD,
    GOOD_TINT,
    MUTED,
    SHEET,
    TEXT,
    Palette,
    PaletteName,
    palette_named,
)
from phalanx.arc.render.snapshots import Cells, GridLike, Mask, as_cells
from phalanx.arc.render.svg import SHEET_WIDTH, status_pill
from phalanx.arc.render.wording import Number, count, left_out, percent, shown, signed

FRAME_WIDTH = 188
"""Wide enough for the longest operation name; five frames make a row."""


def draw_episode(
    frames: Sequence[Frame],
    *,
    title: str = "Episode",
    target: GridLike | None = None,
    max_frames: int = 24,
    palette: PaletteName = "arc",
    labels: bool = False,
) -> draw.Drawing:
    """A film strip: each step's grid with the selection outlined, the operation, reward and similarity.

    An episode of more than `max_frames` frames shows its beginning and its end, and says how many steps it
    leaves out. `target` adds the grid that was to be reached.
    """
    first, last = shown(len(frames), max_frames)
    goal = None if target is None else as_cells(target)
    shapes = [frame.grid.shape for frame in frames] + ([] if goal is None else [goal.shape])
    stage = _Stage.for_shapes(shapes, FRAME_WIDTH, palette, labels)
    blocks = [] if goal is None else [_target(goal, stage)]
    blocks += [_step(frame, stage) for frame in frames[:first]]
    if last > first:
        blocks.append(_gap(last - first, stage))
    blocks += [_step(frame, stage) for frame in frames[last:]]
    body = flowed(blocks, max(SHEET_WIDTH, stage.width + 24))
    return sheet(stacked([_heading(frames, title, max(body.width, 360)), body], 14), title)


def animate_episode(
    frames: Sequence[Frame],
    *,
    title: str = "Episode",
    seconds: Number = 0.8,
    palette: PaletteName = "arc",
    labels: bool = False,
) -> draw.Drawing:
    """The same steps shown one after another in one place, for ever; a still viewer sees the last one."""
    if not frames:
        raise ValueError("an episode to draw has at least one frame")
    if seconds <= 0:
        raise ValueError(f"seconds a frame must be positive, got {seconds}")
    stage = _Stage.for_shapes([frame.grid.shape for frame in frames], FRAME_WIDTH * 1.75, palette, labels)
    steps = [flowed([_step(frame, stage)], stage.width) for frame in frames]
    parts = []
    for i, step in enumerate(steps):
        group = step.at(0, 0)
        if len(steps) > 1:
            final = i == len(steps) - 1
            group.args["visibility"] = "visible" if final else "hidden"
            states = ["hidden"] * len(steps)
            states[i] = "visible"
            # A value that repeats the one before it is left out: n frames would need n * n of them.
            times = [t for t in range(len(steps)) if t == 0 or states[t] != states[t - 1]]
            group.append_anim(
                draw.Animate(
                    "visibility",
                    f"{seconds * len(steps):g}s",
                    ";".join(states[t] for t in times),
                    keyTimes=";".join(f"{t / len(steps):.6g}" for t in times),
                    calcMode="discrete",
                    repeatCount="indefinite",
                )
            )
        parts.append(group)
    body = Block(steps[0].width, max(step.height for step in steps), tuple(parts))
    return sheet(stacked([_heading(frames, title, body.width), body], 14), title)


def _heading(frames: Sequence[Frame], title: str, width: Number) -> Block:
    final = frames[-1]
    steps = final.step - frames[0].step + (frames[0].operation is not None)
    total = float(np.sum([frame.reward for frame in frames if frame.reward is not None]))
    facts = f"{count(steps, 'step')} · reward {signed(total)}"
    if final.similarity is not None:
        facts += f" · similarity {percent(final.similarity)}"
    badge = status_pill(final.status)
    line = spread(text(title, 18, width=width - badge.width - 12, bold=True), badge, width)
    return stacked([line, text(facts, 12, width=width, fill=MUTED)], 3)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Where each frame's grid is drawn: one size for all, so that the eye sees only the grid change."""

    side: Number
    width: Number
    height: Number
    palette: Palette
    labels: bool

    @classmethod
    def for_shapes(
        cls, shapes: Sequence[tuple[int, ...]], box: Number, palette: PaletteName, labels: bool
    ) -> "_Stage":
        side = min(cell_size(shape, box, labels) for shape in shapes)
        width = max(box, max(shape[1] for shape in shapes) * side)
        return cls(side, width, max(shape[0] for shape in shapes) * side, palette_named(palette), labels)

    def show(self, cells: Cells, selected: Mask | None = None) -> Block:
        """The grid in the middle of the stage."""
        grid = grid_block(cells, self.side, selected=selected, palette=self.palette, labels=self.labels)
        middle = grid.at((self.width - grid.width) / 2, (self.height - grid.height) / 2)
        return Block(self.width, self.height, (middle,))


def _step(frame: Frame, stage: _Stage) -> Block:
    invalid = frame.operation is not None and frame.operation < 0
    number = text(f"#{frame.step}", 11, fill=MUTED)
    place = text(frame.place, 11, width=stage.width - number.width - 6, fill=MUTED)
    paid = "" if frame.reward is None else signed(frame.reward)
    alike = "" if frame.similarity is None else percent(frame.similarity)
    figures = text(" · ".join(filter(None, (paid, alike))), 11, width=stage.width * 0.58, fill=MUTED)
    caption = [
        text(frame.name, 12, width=stage.width, bold=True, fill=BAD if invalid else TEXT),
        spread(place, number, stage.width),
        spread(figures, _badge(frame), stage.width),
    ]
    style = (("fill", GOOD_TINT), ("stroke", GOOD)) if frame.solved else ()
    block = stacked([stage.show(frame.grid, frame.selected), stacked(caption, 2)], 10)
    return dataclasses.replace(block, card=style)


def _badge(frame: Frame) -> Block:
    if frame.solved:
        return pill("✓ solved", fill=GOOD, ink="#FFFFFF", size=10)
    if frame.done:
        return pill("ended", fill=BAD_TINT, ink=BAD, size=10)
    # As high as a badge: the last line then takes the same room in every frame.
    return Block(0, 19)


def _target(cells: Cells, stage: _Stage) -> Block:
    size = f"{cells.shape[0]}×{cells.shape[1]} grid"
    words = stacked([text("Target", 12, bold=True), text(size, 11, fill=MUTED)], 2)
    block = stacked([stage.show(cells), words], 10)
    return dataclasses.replace(block, card=(("fill", SHEET), ("stroke-dasharray", "5 4")))


def _gap(steps: int, stage: _Stage) -> Block:
    line = text(left_out(steps), 12, width=stage.width, fill=MUTED, anchor="middle")
    block = Block(stage.width, stage.height, (line.at(0, (stage.height + 30) / 2),))
    return dataclasses.replace(block, card=(("fill", SHEET), ("stroke-dasharray", "2 4")))
