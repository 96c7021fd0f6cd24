"""The steps of an episode for drawing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.actions import MaskAction, PointAction
from phalanx.arc.env import StepInfo
from phalanx.arc.observation import ArcObservation
from phalanx.arc.rendering import GridStep, episode_step, episode_steps, render_episode
from phalanx.core.autoreset import AutoResetInfo
from phalanx.core.episodes import BatchTrajectory
from tests.helpers.arc_drawings import DONE, DOT, SMALL, played, started


def test_steps_stop_at_end_of_episode() -> None:
    steps = episode_steps(played()[1], 1, initial=started())
    assert [each.name for each in steps] == [
        "Start",
        "Copy",
        "Resize",
        "Invalid",
        "Paste",
        "Resize",
        "Fill 5",
    ]
    assert [each.step for each in steps] == [0, 1, 2, 3, 4, 5, 6]
    assert [each.grid.shape for each in steps] == [(3, 3)] * 2 + [(5, 5)] * 3 + [(3, 3)] * 2
    assert [each.status for each in steps] == ["running"] * 6 + ["solved"]
    assert steps[4].grid[3, 3] == 3 and steps[6].grid.tolist() == DONE.tolist()
    assert steps[4].selection_text == "cell 3, 3" and steps[4].selected.sum() == 1
    assert steps[3].reward == -1.0 and steps[6].similarity == 1.0


def create_trajectory(observations: Any, actions: Any, infos: Any = None) -> BatchTrajectory:
    """Create a trajectory of two steps of one environment, of which the second solves the task."""
    column = jnp.array([[1], [2]])
    info = StepInfo(
        similarity=column / 2,
        similarity_improvement=column / 2,
        operation_type=column,
        step_count=column,
        episode_done=column == 2,
        terminated=column == 2,
        truncated=column == 3,
        solved=column == 2,
    )
    infos = info if infos is None else infos(info)
    return BatchTrajectory(actions, observations, column / 4, column == 2, infos)


STEPS = jnp.asarray(np.stack([DOT, DONE]))[:, None]


POINTS = PointAction([[1], [2]], [[0], [1]], [[2], [1]])  # type: ignore[arg-type]


def test_last_step_with_auto_reset_is_the_terminal_grid() -> None:
    def add_auto_reset(info: StepInfo) -> AutoResetInfo:
        def wrap_info(info: StepInfo, terminal: Any) -> AutoResetInfo:
            return AutoResetInfo(info, terminal, info.solved, info.terminated, info.truncated, {})

        return jax.vmap(wrap_info)(info, STEPS)

    next_episode = STEPS.at[1].set(jnp.asarray(DOT)[None])
    steps = episode_steps(create_trajectory(next_episode, POINTS, add_auto_reset))
    assert [each.grid.tolist() for each in steps] == [DOT.tolist(), DONE.tolist()]
    assert steps[1].solved


def test_steps_can_be_created_from_composite_observations() -> None:
    observations = ArcObservation(working_grid=STEPS, selected=STEPS > 0)
    steps = episode_steps(
        create_trajectory(observations, POINTS), initial=jax.tree.map(lambda leaf: leaf[0], observations)
    )
    assert [each.grid.tolist() for each in steps] == [DOT.tolist(), DOT.tolist(), DONE.tolist()]
    assert [each.selection_text for each in steps] == ["3×3 grid", "cell 0, 2", "cell 1, 1"]


def test_steps_show_selections_of_mask_actions() -> None:
    steps = episode_steps(create_trajectory(STEPS, MaskAction([[1], [2]], STEPS > 0)))  # type: ignore[arg-type]
    assert [each.selected.tolist() for each in steps] == [(DOT > 0).tolist(), (DONE > 0).tolist()]


def test_observations_without_working_grid_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"set observation\.working_grid=true"):
        episode_steps(create_trajectory(STEPS[..., :0, :0], POINTS))


def test_environment_index_out_of_range_is_rejected() -> None:
    with pytest.raises(ValueError, match="environment 5 is not in the batch of 5; choose 0 to 4"):
        episode_steps(played()[1], 5)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[0, 0, 0], [0, 1, 0]], "cell 1, 1"),
        ([[0, 1, 1], [0, 1, 1]], "2×2 box at 0, 1"),
        ([[0, 0, 1], [1, 0, 0]], "2 cells from 0, 0"),
        ([[0, 0, 0], [0, 0, 0]], "no cells"),
    ],
)
def test_step_describes_its_selection(mask: Any, expected: str) -> None:
    assert episode_step(SMALL, selected=np.array(mask, bool), operation=0).selection_text == expected


def test_selection_outside_the_grid_is_described() -> None:
    canvas, mask = np.full((4, 4), -1), np.zeros((4, 4), bool)
    canvas[:2, :3] = SMALL
    mask[3, 3] = True
    assert episode_step(canvas, selected=mask, operation=3).selection_text == "outside the grid"


@pytest.mark.parametrize(("steps", "max_steps"), [([], 24), ([episode_step(SMALL)], 1)])
def test_episode_with_too_few_steps_is_rejected(steps: list[GridStep], max_steps: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        render_episode(steps, max_steps=max_steps)
