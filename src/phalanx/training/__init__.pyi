# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .algorithm import (
    Algorithm as Algorithm,
    DataExhausted as DataExhausted,
    Progress as Progress,
    TrainResult as TrainResult,
    TrainState as TrainState,
    UpdateResult as UpdateResult,
    jit_method as jit_method,
    load_algorithm as load_algorithm,
)
from .bc import BC as BC, BCConfig as BCConfig
from .checkpoints import Checkpointer as Checkpointer, CheckpointRef as CheckpointRef
from .config import (
    CheckpointConfig as CheckpointConfig,
    EvaluationConfig as EvaluationConfig,
    PolicyRunConfig as PolicyRunConfig,
    RunConfig as RunConfig,
    TextRunConfig as TextRunConfig,
)
from .device_mesh import create_mesh as create_mesh
from .grpo import (
    GRPO as GRPO,
    Completion as Completion,
    GRPOConfig as GRPOConfig,
    group_advantages as group_advantages,
    grpo_loss as grpo_loss,
    turn_advantages as turn_advantages,
)
from .kge import KGEConfig as KGEConfig, KGETrainer as KGETrainer
from .optimizer import OptimizerConfig as OptimizerConfig
from .policy_algorithm import PolicyAlgorithm as PolicyAlgorithm
from .ppo import PPO as PPO, PPOConfig as PPOConfig, gae as gae, ppo_loss as ppo_loss
from .run import Run as Run, SaveError as SaveError, train as train
from .run_dir import (
    default_handlers as default_handlers,
    load_metadata as load_metadata,
    load_run_config as load_run_config,
    next_free_dir as next_free_dir,
)
from .search_heuristic import (
    SearchHeuristicConfig as SearchHeuristicConfig,
    SearchHeuristicTrainer as SearchHeuristicTrainer,
    load_heuristic as load_heuristic,
)
from .sft import (
    SFT as SFT,
    SFTConfig as SFTConfig,
    SFTData as SFTData,
    open_data as open_data,
    sft_loss as sft_loss,
)
from .text_task_curriculum import (
    TaskCurriculum as TaskCurriculum,
    TaskCurriculumConfig as TaskCurriculumConfig,
)
from .trained_policy import Policy as Policy, load_policy as load_policy
