"""What notebooks show for tasks, pairs and states: inline SVG.

The drawings themselves are in `svg`; objects call these functions from their `_repr_html_`.
"""

from typing import Any

from phalanx.arc.render.snapshots import StateSnapshot, snapshots
from phalanx.arc.render.svg import draw_pair, draw_state, draw_task
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, GridPair

MOST_STATES = 3
"""How many states of a batch are drawn."""


def html_of(thing: ArcTask | GridPair | ArcState | StateSnapshot) -> str:
    """The inline picture of a task, a pair, a state or a batch of states."""
    if isinstance(thing, ArcTask):
        return task_html(thing)
    if isinstance(thing, GridPair):
        return pair_html(thing)
    if isinstance(thing, ArcState | StateSnapshot):
        return state_html(thing)
    raise TypeError(f"expected an ArcTask, a GridPair or an ArcState, got {type(thing).__name__}")


def task_html(task: ArcTask) -> str:
    """Every pair of a task."""
    return _inline(draw_task(task))


def pair_html(pair: GridPair) -> str:
    """Input and output."""
    return _inline(draw_pair(pair))


def state_html(state: ArcState | StateSnapshot) -> str:
    """A state; of a batch, the first few, and how many more there are."""
    if isinstance(state, StateSnapshot) or not state.batch_shape:
        return _inline(draw_state(state))
    views = snapshots(state, MOST_STATES)
    drawn = "\n".join(_inline(draw_state(view)) for view in views)
    rest = state.similarity.size - len(views)
    return f"{drawn}\n<p>… and {rest} more in this batch</p>" if rest else drawn


def _inline(drawing: Any) -> str:
    # Without the XML header, which is not allowed inside HTML.
    return f'<div style="max-width:100%;margin:4px 0">{drawing.as_svg(header="")}</div>'
