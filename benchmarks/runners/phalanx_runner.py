"""Phalanx as `arc.py` steps it, with the engine that is asked for.

Runs in the interpreter that runs the comparison; see `protocol.py` for how it is driven.
"""

import json
import pathlib

import protocol

arguments = protocol.parse_arguments(
    "Phalanx runner",
    engine={"default": "native", "choices": ["native", "xla"]},
)

from arc import Rollout, Workload, describe  # noqa: E402
from phalanx.arc import ArcTask  # noqa: E402


def main() -> None:
    task = ArcTask.from_dict(json.loads(pathlib.Path(arguments.task).read_text()), "task")
    workload = Workload(
        engine=arguments.engine,
        batch=arguments.batch,
        grid=arguments.grid,
        selection_format=arguments.format,
        steps=arguments.steps,
        max_episode_steps=arguments.max_episode_steps,
        seed=arguments.seed,
    )
    rollout = Rollout.prepare(workload, task)
    protocol.serve(
        rollout.run,
        rollout.steps_per_run,
        arguments.seconds,
        peer="phalanx",
        **describe(rollout),
    )


main()
