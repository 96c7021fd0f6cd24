"""PPO on proofs."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import jax

from phalanx.core.environment import Key
from phalanx.proofs.config import ProofConfig, ProofEvaluationConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.network import ProofNetwork, ProofNetworkConfig
from phalanx.training.checkpoints import Which
from phalanx.training.distributed import DeviceMesh
from phalanx.training.loading import initial_policy, restore_policy
from phalanx.training.ppo import PPO, PPOConfig, PPOState, PPOTrainingConfig
from phalanx.training.run_dir import read_config


class ProofTrainingConfig(PPOTrainingConfig):
    """Settings of a training run on proofs."""

    preset_group = "train/proofs"
    renamed_settings: ClassVar[dict[str, str]] = {
        name: f"proofs.{name}"
        for name in ("dataset", "on_leak", "generated", "depth_limit", "kge", "curriculum")
    } | {"depth_seconds": "proofs.max_depth_seconds"}

    proofs: ProofConfig = ProofConfig()
    """The environment and its data."""
    network: ProofNetworkConfig = ProofNetworkConfig()
    """The policy network."""
    ppo: PPOConfig = PPOConfig(num_envs=128, num_steps=128, chunk=None)
    """Settings of PPO."""
    evaluation: ProofEvaluationConfig = ProofEvaluationConfig()
    """Evaluations during training."""


load_proof_training = ProofTrainingConfig.load
"""Load a config: the preset `default` unless another is given, then overrides."""


class ProofTraining(PPO):
    """PPO on the queries of a knowledge base."""

    name = "proofs"
    config_type = ProofTrainingConfig
    score_name = "Correct on held-out queries"

    def __init__(self, config: ProofTrainingConfig, *, mesh: DeviceMesh | None = None) -> None:
        environment = ProofEnvironment.from_config(config.proofs)
        super().__init__(
            config,
            environment,
            functools.partial(ProofEnvironment.default_network, config.proofs, config.network),
            max_episode_steps=environment.max_episode_steps,
            mesh=mesh,
        )

    def evaluate(self, state: PPOState, update: int, final: bool) -> list[dict[str, Any]]:
        results = self.environment.evaluate(self.policy(state), self.config.evaluation, final)
        return [result.as_record() for result in results]

    def sample_episodes(self, state: PPOState, key: Key, update: int) -> list[dict[str, Any]]:
        environment = self.environment.at_step(update * self.config.ppo.num_steps)
        return environment.render_episodes(self.record_episodes(environment, state, key, update))

    def metadata(self, state: PPOState) -> dict[str, Any]:
        return self.environment.metadata()

    def data_fingerprint(self) -> str:
        return self.environment.fingerprint()


def load_proof_policy(run: Path, which: Which = "newest") -> tuple[ProofTrainingConfig, ProofNetwork]:
    """Return a run's config and the network of a checkpoint."""
    config = read_config(run, ProofTrainingConfig)
    training = ProofTraining(config, mesh=DeviceMesh(jax.devices()[:1]))
    return config, restore_policy(training, run, which)


def untrained_policy(config: ProofTrainingConfig) -> ProofNetwork:
    """Return the network that a run with this config starts from."""
    return initial_policy(ProofTraining(config, mesh=DeviceMesh(jax.devices()[:1])))
