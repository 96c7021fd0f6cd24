# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .algorithm import (
    Algorithm as Algorithm,
    Progress as Progress,
    TrainResult as TrainResult,
    TrainState as TrainState,
    UpdateResult as UpdateResult,
    jit_method as jit_method,
)
from .arc_training import (
    ArcTraining as ArcTraining,
    ArcTrainingConfig as ArcTrainingConfig,
    CloningTraining as CloningTraining,
    CloningTrainingConfig as CloningTrainingConfig,
    load_arc_policy as load_arc_policy,
    load_arc_training as load_arc_training,
    load_cloning as load_cloning,
)
from .bc import BC as BC, BCConfig as BCConfig
from .checkpoints import Checkpointer as Checkpointer, CheckpointRef as CheckpointRef
from .config import (
    CheckpointConfig as CheckpointConfig,
    EvaluationConfig as EvaluationConfig,
    RunConfig as RunConfig,
)
from .curriculum import Curriculum as Curriculum, CurriculumConfig as CurriculumConfig
from .distributed import DeviceMesh as DeviceMesh
from .grpo import (
    GRPO as GRPO,
    Completion as Completion,
    GRPOConfig as GRPOConfig,
    group_advantages as group_advantages,
    grpo_loss as grpo_loss,
    turn_advantages as turn_advantages,
)
from .kge import KGEConfig as KGEConfig, KGEState as KGEState, KGETrainer as KGETrainer
from .loading import (
    initial_policy as initial_policy,
    load_algorithm as load_algorithm,
    restore_policy as restore_policy,
)
from .optimizer import OptimizerConfig as OptimizerConfig
from .policy_algorithm import PolicyAlgorithm as PolicyAlgorithm
from .ppo import (
    PPO as PPO,
    PPOConfig as PPOConfig,
    PPOTrainingConfig as PPOTrainingConfig,
    gae as gae,
    ppo_loss as ppo_loss,
)
from .proof_training import (
    ProofTraining as ProofTraining,
    ProofTrainingConfig as ProofTrainingConfig,
    load_proof_policy as load_proof_policy,
    load_proof_training as load_proof_training,
    untrained_policy as untrained_policy,
)
from .run import Run as Run, train as train
from .run_dir import (
    default_handlers as default_handlers,
    next_free_dir as next_free_dir,
    read_config as read_config,
    read_metadata as read_metadata,
)
from .search_heuristic import (
    HeuristicConfig as HeuristicConfig,
    HeuristicTrainer as HeuristicTrainer,
    load_heuristic as load_heuristic,
)
from .sft import (
    SFT as SFT,
    SFTConfig as SFTConfig,
    SFTData as SFTData,
    open_data as open_data,
    sft_loss as sft_loss,
)
from .trained_lm import load_language_model as load_language_model
from .trained_policy import Policy as Policy, load_policy as load_policy
