"""Functions that read drawings, and a small episode to draw."""

import functools
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp

from phalanx.arc import batch_reset, run_episode_batch
from phalanx.arc.actions import PointAction
from phalanx.arc.config import ArcConfig, DatasetConfig
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from phalanx.core.episodes import BatchTrajectory

SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'a<b> & "c" \x00'
SMALL = as_grid([[0, 1, 2], [3, 4, 5]])
DOT, DONE = as_grid([[0, 0, 0], [0, 3, 0], [0, 0, 0]]), as_grid([[0, 0, 0], [0, 5, 0], [0, 0, 0]])
TASK = ArcTask(
    "dot-1", (GridPair(DOT, DONE), GridPair(DOT, DONE)), (GridPair(SMALL, None),), family="recolor"
)


def parsed(drawing: Any) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.as_svg())


def words(drawing: Any) -> list[str]:
    return [element.text or "" for element in parsed(drawing).iter(f"{SVG}text")]


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


@functools.cache
def config() -> ArcConfig:
    return ArcConfig(dataset=DatasetConfig(max_grid_height=6, max_grid_width=7))


@functools.cache
def started() -> ArcState:
    states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(0), 5), config(), TASK)
    return states


# Copy the dot, grow the grid, an unknown operation, paste, shrink again, recolor (solved), and one too many.
PLAN = ((28, 1, 1), (33, 4, 4), (99, 0, 0), (29, 3, 3), (33, 2, 2), (5, 1, 1), (1, 0, 0))


def by_plan(states: ArcState, time: Any, key: Any) -> tuple[PointAction, Any]:
    operation, row, column = (jnp.full(5, value) for value in jnp.array(PLAN)[time])
    return PointAction(operation, row, column), time + 1


@functools.cache
def played() -> tuple[ArcState, BatchTrajectory]:
    final, _, trajectory = run_episode_batch(
        started(), by_plan, len(PLAN), config(), agent_state=jnp.int32(0)
    )
    return final, trajectory
