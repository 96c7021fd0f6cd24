# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .episode_steps import (
    GridStep as GridStep,
    episode_step as episode_step,
    episode_steps as episode_steps,
)
from .palette import ARC as ARC, SAFE as SAFE, Palette as Palette, palette_named as palette_named
from .snapshot import StateSnapshot as StateSnapshot, snapshot as snapshot, snapshots as snapshots
from .svg_task import (
    draw_grid as draw_grid,
    draw_pair as draw_pair,
    draw_state as draw_state,
    draw_task as draw_task,
    pair_html as pair_html,
    save_svg as save_svg,
    state_html as state_html,
    task_html as task_html,
)
from .terminal import (
    render_episode as render_episode,
    render_grid as render_grid,
    render_pair as render_pair,
    render_state as render_state,
    render_task as render_task,
)
