"""Train with settings that Hydra composes from the presets.

python examples/sweeps/hydra_training.py ++ppo.seed=1

The presets are Hydra config groups: `ppo=arc_single_family` selects another one, and `--multirun
++ppo.seed=0,1,2` trains with each seed. It needs `pip install hydra-core`.
"""

from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from phalanx.config import load_config
from phalanx.training import PPO, PPOConfig, train


@hydra.main(version_base="1.3", config_path="conf", config_name="hydra_training")
def main(composed: Any) -> None:
    """Train with the settings under `ppo`, in the folder that Hydra created for this job."""
    config = load_config(PPOConfig, settings=OmegaConf.to_container(composed.ppo))
    outcome = train(PPO(config), f"{HydraConfig.get().runtime.output_dir}/run")
    print(f"{outcome.run_dir}: {outcome.evaluations[-1]['success_rate']:.0%} handed in right")


if __name__ == "__main__":
    main()
