"""What `phalanx.make("arc-v2", ...)` makes: a config, tasks, an environment.

Ids and versions are in `phalanx.registry`, the environment itself in `environment`.
"""

from collections.abc import Sequence
from typing import Any

from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment, Tasks
from phalanx.arc.tasks import ArcTask
from phalanx.registry import config_from


def make_arc(
    config: Any = None,
    *,
    task: ArcTask | str | None = None,
    tasks: Tasks | None = None,
    max_episode_steps: int | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> ArcEnvironment:
    """The environment of an `ArcConfig`, or of a preset's name or file, over some tasks or the config's own.

    `task` is a single one, or the id of one of the config's own. `settings` change parts of the config:
    `dataset={"families": ("recolor",)}`, `backend="xla"`.
    """
    changed = config_from(ArcConfig, config, overrides, settings)
    if max_episode_steps is not None:
        steps = {"episode": {"max_episode_steps": max_episode_steps}}
        changed = config_from(ArcConfig, changed, settings=steps)
    if task is not None and tasks is not None:
        raise TypeError("task and tasks were both given; give one of them")
    if isinstance(task, str):
        known = ArcEnvironment.create(changed).task_buffer
        task = known[known.index_of(task)]
    return ArcEnvironment.create(changed, tasks if task is None else task)
