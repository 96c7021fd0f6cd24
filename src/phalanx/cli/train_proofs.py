"""`phalanx train proofs`: a policy that proves queries of a knowledge base.

The training itself is in `phalanx.agents.proof_training`; its options are in `training_options`.
"""

from typing import TYPE_CHECKING

from phalanx.cli.training_options import Chosen, policy_command

if TYPE_CHECKING:
    from phalanx.agents.training import Experiment


def _experiment(chosen: Chosen) -> "Experiment":
    from phalanx.agents.proof_training import ProofTrainingConfig, load_proof_training, proof_experiment

    return proof_experiment(chosen.config(ProofTrainingConfig, load_proof_training))


proofs = policy_command(
    "proofs",
    "Train a policy that proves queries of a knowledge base with PPO, and write its report.",
    _experiment,
)
