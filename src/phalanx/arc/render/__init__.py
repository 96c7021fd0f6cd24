"""Pictures of grids, pairs, tasks, states and episodes: SVG drawings, terminal output and notebook views.

Nothing here changes a state; the figures of training runs belong to `phalanx.logs`.
"""

from phalanx.arc.render.episode import Frame, episode_frames, frame
from phalanx.arc.render.film import animate_episode, draw_episode
from phalanx.arc.render.notebook import html_of, pair_html, state_html, task_html
from phalanx.arc.render.palette import ARC, SAFE, Palette, palette_named
from phalanx.arc.render.snapshots import StateSnapshot, snapshot, snapshots
from phalanx.arc.render.svg import draw_grid, draw_pair, draw_state, draw_task, save_svg
from phalanx.arc.render.terminal import render_episode, render_grid, render_pair, render_state, render_task

__all__ = [
    "ARC",
    "SAFE",
    "Frame",
    "Palette",
    "StateSnapshot",
    "animate_episode",
    "draw_episode",
    "draw_grid",
    "draw_pair",
    "draw_state",
    "draw_task",
    "episode_frames",
    "frame",
    "html_of",
    "pair_html",
    "palette_named",
    "render_episode",
    "render_grid",
    "render_pair",
    "render_state",
    "render_task",
    "save_svg",
    "snapshot",
    "snapshots",
    "state_html",
    "task_html",
]
