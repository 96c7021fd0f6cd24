"""`phalanx train arc`: a policy on ARC tasks.

The training itself is in `phalanx.agents.arc_training`; its options are in `training_options`.
"""

from typing import TYPE_CHECKING

from phalanx.cli.training_options import Chosen, policy_command

if TYPE_CHECKING:
    from phalanx.agents.training import Experiment


def _experiment(chosen: Chosen) -> "Experiment":
    from phalanx.agents.arc_training import ArcTrainingConfig, arc_experiment, load_arc_training

    return arc_experiment(chosen.config(ArcTrainingConfig, load_arc_training))


arc = policy_command("arc", "Train a policy on ARC tasks with PPO, and write its report.", _experiment)
