"""Train with settings composed by Hydra: `python examples/sweeps/hydra_training.py ++train.arc.seed=1`.

Presets are Hydra's config groups as they stand (`train/arc=single` takes another one), and `--multirun
++train.arc.seed=0,1,2` trains with each value. Needs `pip install hydra-core`.
"""

from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from phalanx.config import load_config
from phalanx.training import ArcTraining, ArcTrainingConfig, train


@hydra.main(version_base="1.3", config_path="conf", config_name="hydra_training")
def main(composed: Any) -> None:
    """Train with the settings under `train.arc`, in the folder that Hydra made for this job."""
    config = load_config(ArcTrainingConfig, settings=OmegaConf.to_container(composed.train.arc))
    outcome = train(ArcTraining(config), f"{HydraConfig.get().runtime.output_dir}/run")
    print(f"{outcome.run_dir}: {outcome.evaluations[-1]['success_rate']:.0%} handed in right")


if __name__ == "__main__":
    main()
