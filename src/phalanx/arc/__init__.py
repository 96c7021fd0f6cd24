"""ARC grid puzzles that step in formation: tasks, actions, states and the environment.

Drawing is in `phalanx.arc.render`, task families in `phalanx.arc.generators`.
"""

from phalanx.arc.actions import (
    Action,
    BboxAction,
    MaskAction,
    PointAction,
    create_bbox_action,
    create_mask_action,
    create_point_action,
)
from phalanx.arc.buffer import TaskBuffer
from phalanx.arc.config import (
    ActionConfig,
    ArcConfig,
    DatasetConfig,
    EnvironmentConfig,
    JaxArcConfig,
    ObservationConfig,
    RewardConfig,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
)
from phalanx.arc.environment import (
    ArcEnvironment,
    StepInfo,
    arc_reset,
    arc_step,
    check_bounds_jax,
    create_observation,
    legal_operations,
    validate_action_jax,
)
from phalanx.arc.generators import FAMILIES, generate_task, generate_tasks
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import (
    CATEGORIES,
    NUM_OPERATIONS,
    OPERATIONS,
    Operation,
    OperationInfo,
    operation_name,
    operations_in,
)
from phalanx.arc.readers import load_tasks
from phalanx.arc.state import ArcEnvState, ArcState
from phalanx.arc.tasks import ArcTask, GridPair, JaxArcTask, Solution, SolutionStep, as_grid
from phalanx.core.batching import batch_reset, batch_step
from phalanx.core.episodes import run_episode_batch

__all__ = [
    "CATEGORIES",
    "FAMILIES",
    "NUM_OPERATIONS",
    "OPERATIONS",
    "Action",
    "ActionConfig",
    "ArcConfig",
    "ArcEnvState",
    "ArcEnvironment",
    "ArcObservation",
    "ArcState",
    "ArcTask",
    "BboxAction",
    "DatasetConfig",
    "EnvironmentConfig",
    "GridPair",
    "JaxArcConfig",
    "JaxArcTask",
    "MaskAction",
    "ObservationConfig",
    "Operation",
    "OperationInfo",
    "PointAction",
    "RewardConfig",
    "Solution",
    "SolutionStep",
    "StepInfo",
    "TaskBuffer",
    "UnifiedActionConfig",
    "UnifiedDatasetConfig",
    "arc_reset",
    "arc_step",
    "as_grid",
    "batch_reset",
    "batch_step",
    "check_bounds_jax",
    "create_bbox_action",
    "create_mask_action",
    "create_observation",
    "create_point_action",
    "generate_task",
    "generate_tasks",
    "legal_operations",
    "load_tasks",
    "operation_name",
    "operations_in",
    "run_episode_batch",
    "validate_action_jax",
]
