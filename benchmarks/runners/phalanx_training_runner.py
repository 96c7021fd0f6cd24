"""Phalanx's PPO on Phalanx's environment.

Runs in the interpreter that runs the comparison; the training is in `training_work.py`.
"""

import json
import pathlib

import training_work

from phalanx.arc import ArcEnvironment, ArcTask


def main() -> None:
    arguments = training_work.parse_arguments("Phalanx training runner")
    task = ArcTask.from_dict(json.loads(pathlib.Path(arguments.task).read_text()), "task")
    environment = ArcEnvironment.create(training_work.arc_config(arguments), task)
    training_work.serve(arguments, environment, peer="phalanx", engine=environment.config.backend)


main()
