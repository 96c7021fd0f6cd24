"""Draws the steps of an episode as an SVG strip."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import drawsvg as draw
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int8, Int32, PyTree

from phalanx.arc.operations import operation_name
from phalanx.arc.rendering.palette import Palette, PaletteName, palette_named
from phalanx.arc.rendering.snapshot import Cells, GridLike, Mask, MaskLike, as_cells, as_mask
from phalanx.arc.rendering.svg_cells import cell_size, grid_block
from phalanx.arc.rendering.svg_task import SHEET_WIDTH, status_pill
from phalanx.arc.state import ArcState
from phalanx.core.autoreset import AutoResetInfo
from phalanx.core.episodes import BatchTrajectory
from phalanx.formatting import format_count, format_percent, format_signed
from phalanx.svg import (
    BAD,
    BAD_TINT,
    GOOD,
    GOOD_TINT,
    MUTED,
    SHEET,
    TEXT,
    Number,
    SvgBlock,
    badge,
    flow_cards,
    justify,
    text_block,
    to_drawing,
    vstack,
)


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeFrame:
    """One image of an episode, which shows a step and the working grid after this step. An additional first
    frame, whose `operation` is None, can show the initial grid."""

    grid: Cells
    """Working grid, without padding."""
    selected: Mask
    """Mask of the selected cells of the working grid."""
    step: int = 0
    """Number of steps taken so far."""
    operation: int | None = None
    """Id of the operation; -1 if the action was invalid. None at the start of the episode."""
    reward: Number | None = None
    """Reward of the step; None if it is not shown."""
    similarity: Number | None = None
    """Similarity of the working grid to the target after the step; None if it is not shown."""
    done: bool = False
    """True if the episode has ended."""
    solved: bool = False
    """True if the episode has ended with a correct solution."""
    num_selected: int = 0
    """Number of selected cells on the canvas, including those outside the grid."""

    @property
    def name(self) -> str:
        """Name of the operation; `Start` at the start of the episode."""
        return "Start" if self.operation is None else operation_name(self.operation)

    @property
    def status(self) -> str:
        """Status of the episode: `solved`, `ended` (without a solution) or `running`."""
        return "solved" if self.solved else "ended" if self.done else "running"

    @property
    def result_text(self) -> str:
        """Reward and similarity, such as `+0.5 · 75.0%`. Values that are not shown are omitted."""
        reward = [] if self.reward is None else [format_signed(self.reward)]
        similarity = [] if self.similarity is None else [format_percent(self.similarity)]
        return " · ".join(reward + similarity)

    @property
    def selection_text(self) -> str:
        """Description of the selected cells, with rows and columns counted from 0. For the initial frame, the
        size of the grid."""
        if self.operation is None:
            return f"{self.grid.shape[0]}×{self.grid.shape[1]} grid"
        inside = np.argwhere(self.selected)
        if not inside.size:
            return "outside the grid" if self.num_selected else "no cells"
        (top, left), (bottom, right) = inside.min(axis=0).tolist(), inside.max(axis=0).tolist()
        if len(inside) == 1:
            return f"cell {top}, {left}"
        height, width = bottom - top + 1, right - left + 1
        if len(inside) == height * width:
            return f"{height}×{width} box at {top}, {left}"
        return f"{len(inside)} cells from {top}, {left}"


def frame(grid: GridLike, *, selected: MaskLike | None = None, **details: Any) -> EpisodeFrame:
    """Create a frame of an episode.

    Args:
        grid: Working grid, which may be padded with -1.
        selected: Mask of the selected cells, with the shape of `grid`. None if no cell is selected.
        details: Values of the other fields of `EpisodeFrame`, such as `operation` and `reward`.
    """
    num_selected = 0 if selected is None else int(np.sum(selected))
    return EpisodeFrame(as_cells(grid), as_mask(selected, grid), num_selected=num_selected, **details)


def episode_frames(
    trajectory: BatchTrajectory, index: int = 0, *, initial: ArcState | PyTree = None
) -> tuple[EpisodeFrame, ...]:
    """Create the frames for one environment in a trajectory, up to the end of its first episode.

    Args:
        trajectory: BatchTrajectory returned by `run_episode_batch`.
        index: Index of the environment in the batch.
        initial: Batch of states or observations before the first step. If it is given, the first frame shows
            the initial grid.
    """
    steps, batch = trajectory.dones.shape
    if not 0 <= index < batch:
        raise ValueError(f"environment {index} is not in the batch of {batch}; choose 0 to {batch - 1}")
    grids, masks, rewards, dones, info = jax.device_get(_history(trajectory, jnp.int32(index)))
    frames = [] if initial is None else [frame(_working_grid(initial)[index])]
    for t in range(steps):
        frames.append(
            frame(
                grids[t],
                selected=masks[t],
                operation=int(info.operation_type[t]),
                step=int(info.step_count[t]),
                reward=float(rewards[t]),
                similarity=float(info.similarity[t]),
                done=bool(dones[t]),
                solved=bool(info.solved[t]),
            )
        )
        if dones[t]:
            break
    return tuple(frames)


# Compiled, so that only the history of one environment is copied from the device.
@jax.jit
def _history(trajectory: BatchTrajectory, index: Int32[Array, ""]) -> tuple[PyTree, ...]:
    """Return the working grids, selections, rewards, dones and infos of one environment, each with the steps
    as its leading axis."""
    one = jax.tree.map(lambda leaf: leaf[:, index], trajectory)
    observations, info = one.observations, one.infos
    if isinstance(info, AutoResetInfo):
        # The observation of a step that ends an episode already belongs to the next one.
        observations, info = info.final_observation, info.info
    grids = _working_grid(observations)
    return grids, one.actions.to_selection_mask(grids.shape[1:]), one.rewards, one.dones, info


def _working_grid(observations: ArcState | PyTree) -> Int8[Array, "_ _ _"]:
    """Return the working grids of states or observations. Raises `ValueError` if the observations do not
    contain them."""
    grid = observations if isinstance(observations, Array) else observations.working_grid
    if not grid.size:
        raise ValueError(
            "the observations do not contain the working grid: set observation.working_grid=true"
        )
    return grid


def frames_to_show(frames: Sequence[EpisodeFrame], max_frames: int) -> list[EpisodeFrame | str]:
    """Select the frames of an episode to draw. If there are more than `max_frames` frames, some frames in the
    middle are replaced with a string such as `… 27 steps omitted …`."""
    if not frames:
        raise ValueError("an episode needs at least one frame")
    if max_frames < 2:
        raise ValueError(f"max_frames must be at least 2 (the beginning and the end), got {max_frames}")
    omitted = len(frames) - max_frames
    if omitted <= 0:
        return list(frames)
    first = max_frames - max_frames // 2
    text = f"… {format_count(omitted, 'step')} omitted …"
    return [*frames[:first], text, *frames[first + omitted :]]


FRAME_WIDTH = 188
"""Width of a frame in pixels. The longest operation name fits in a frame, and five frames fit in a row."""


def draw_episode(
    frames: Sequence[EpisodeFrame],
    *,
    title: str = "Episode",
    target: GridLike | None = None,
    max_frames: int = 24,
    palette: PaletteName = "arc",
) -> draw.Drawing:
    """Draw the steps of an episode as a strip. Each frame shows the grid, the selection, the operation, the
    reward and the similarity.

    Args:
        frames: Frames of the episode.
        title: Title of the drawing.
        target: Target grid, which is drawn before the frames. If None, it is omitted.
        max_frames: Maximum number of frames. If there are more, only the beginning and the end are shown.
        palette: `arc`, or `safe` for color-blind readers.
    """
    shown = frames_to_show(frames, max_frames)
    goal = None if target is None else as_cells(target)
    shapes = [frame.grid.shape for frame in frames] + ([] if goal is None else [goal.shape])
    side = cell_size(shapes, FRAME_WIDTH)
    height, width = (max(sides) * side for sides in zip(*shapes, strict=True))
    stage = _Stage(side, max(width, FRAME_WIDTH), height, palette_named(palette))
    blocks = [] if goal is None else [_target(goal, stage)]
    blocks += [_gap(item, stage) if isinstance(item, str) else _step(item, stage) for item in shown]
    body = flow_cards(blocks, max(SHEET_WIDTH, stage.width + 24))
    return to_drawing(vstack([_heading(frames, title, max(body.width, 360)), body], 14), title)


def _heading(frames: Sequence[EpisodeFrame], title: str, width: Number) -> SvgBlock:
    final = frames[-1]
    steps = final.step - frames[0].step + (frames[0].operation is not None)
    total = float(np.sum([frame.reward for frame in frames if frame.reward is not None]))
    facts = f"{format_count(steps, 'step')} · reward {format_signed(total)}"
    if final.similarity is not None:
        facts += f" · similarity {format_percent(final.similarity)}"
    badge = status_pill(final.status)
    line = justify(text_block(title, 18, width=width - badge.width - 12, bold=True), badge, width)
    return vstack([line, text_block(facts, 12, width=width, fill=MUTED)], 3)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Area in which the grid of a frame is drawn. All frames of an episode have an area of the same size."""

    side: Number
    width: Number
    height: Number
    palette: Palette

    def show(self, cells: Cells, selected: Mask | None = None) -> SvgBlock:
        """Draw a grid in the center of the area."""
        grid = grid_block(cells, self.side, selected=selected, palette=self.palette)
        middle = grid.at((self.width - grid.width) / 2, (self.height - grid.height) / 2)
        return SvgBlock(self.width, self.height, (middle,))


def _step(frame: EpisodeFrame, stage: _Stage) -> SvgBlock:
    invalid = frame.operation is not None and frame.operation < 0
    number = text_block(f"#{frame.step}", 11, fill=MUTED)
    selection = text_block(frame.selection_text, 11, width=stage.width - number.width - 6, fill=MUTED)
    result = text_block(frame.result_text, 11, width=stage.width * 0.58, fill=MUTED)
    caption = [
        text_block(frame.name, 12, width=stage.width, bold=True, fill=BAD if invalid else TEXT),
        justify(selection, number, stage.width),
        justify(result, _badge(frame), stage.width),
    ]
    style = (("fill", GOOD_TINT), ("stroke", GOOD)) if frame.solved else ()
    block = vstack([stage.show(frame.grid, frame.selected), vstack(caption, 2)], 10)
    return dataclasses.replace(block, card=style)


def _badge(frame: EpisodeFrame) -> SvgBlock:
    if frame.solved:
        return badge("✓ solved", fill=GOOD, ink="#FFFFFF", size=10)
    if frame.done:
        return badge("ended", fill=BAD_TINT, ink=BAD, size=10)
    # As tall as a badge, so that all frames have the same height.
    return SvgBlock(0, 19)


def _target(cells: Cells, stage: _Stage) -> SvgBlock:
    size = f"{cells.shape[0]}×{cells.shape[1]} grid"
    words = vstack([text_block("Target", 12, bold=True), text_block(size, 11, fill=MUTED)], 2)
    block = vstack([stage.show(cells), words], 10)
    return dataclasses.replace(block, card=(("fill", SHEET), ("stroke-dasharray", "5 4")))


def _gap(text: str, stage: _Stage) -> SvgBlock:
    line = text_block(text, 12, width=stage.width, fill=MUTED, anchor="middle")
    block = SvgBlock(stage.width, stage.height, (line.at(0, (stage.height + 30) / 2),))
    return dataclasses.replace(block, card=(("fill", SHEET), ("stroke-dasharray", "2 4")))
