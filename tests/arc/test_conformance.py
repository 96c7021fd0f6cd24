"""The conformance suite on ARC, with both backends and grid or composite observations."""

import dataclasses

import jax.numpy as jnp
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    ObservationConfig,
    as_grid,
)
from phalanx.arc.spec import SPEC
from phalanx.arc.state import ArcState, RegisterIndex
from phalanx.core.testing import ConformanceReport, check_environment
from phalanx.native import is_native_available, native_unavailable_reason

pytestmark = pytest.mark.slow

CANVAS = DatasetConfig(max_grid_height=4, max_grid_width=5)
OPERATIONS = (0, 2, 3, 4, 10, 20, 24, 29, 33, 34)


def create_task() -> ArcTask:
    pairs = [GridPair(as_grid([[c] * 3] * 2), as_grid([[c + 1] * 3] * 2)) for c in (1, 2, 3)]
    return ArcTask("fill", tuple(pairs[:1]), tuple(pairs[1:]))


def create_environment(backend: str, selection_format: str, **sections: object) -> ArcEnvironment:
    config = ArcConfig(
        backend=backend,
        dataset=CANVAS,
        action=ActionConfig(selection_format=selection_format, allowed_operations=OPERATIONS),
        **{"episode": EpisodeConfig(max_episode_steps=6), **sections},
    )
    return ArcEnvironment.create(config, create_task())


def without_counters(state: ArcState) -> tuple:
    """Return the parts of a state that illegal actions do not change."""
    counters = jnp.array([RegisterIndex.STEP_COUNT, RegisterIndex.STATUS])
    # In evaluation mode, the similarity is hidden until the episode ends, which can be a truncation.
    similarity = state.similarity if state.submission is None else ()
    return state.boards, state.registers.at[..., counters].set(0), similarity, state.submission


def check(environment: ArcEnvironment, **options: int) -> ConformanceReport:
    has_expert = environment.config.episode.require_submit and environment.answers is None
    spec = SPEC if has_expert else dataclasses.replace(SPEC, expert=None)
    return check_environment(environment, spec=spec, comparable_state=without_counters, **options)


@pytest.mark.parametrize("selection_format", ["point", "mask"])
def test_native_backend_conforms(selection_format: str) -> None:
    if not is_native_available():
        pytest.skip(native_unavailable_reason())
    episode = EpisodeConfig(max_episode_steps=6, require_submit=selection_format == "point")
    report = check(create_environment("native", selection_format, episode=episode))
    assert report.not_applicable == (() if selection_format == "point" else ("check_expert",))


def test_xla_backend_conforms() -> None:
    check(create_environment("xla", "bbox"))


def test_composite_observation_conforms_in_evaluation() -> None:
    observation = ObservationConfig(
        input_grid=True, target_grid=True, selected=True, clipboard=True, num_demonstrations=2, scalars=True
    )
    episode = EpisodeConfig(max_episode_steps=6, mode="evaluation", attempts=2)
    report = check(
        create_environment("auto", "point", observation=observation, episode=episode), num_steps=60
    )
    assert report.not_applicable == ("check_expert",)
