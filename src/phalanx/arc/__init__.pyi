# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .actions import (
    Action as Action,
    BboxAction as BboxAction,
    MaskAction as MaskAction,
    PointAction as PointAction,
    check_bounds_jax as check_bounds_jax,
    create_bbox_action as create_bbox_action,
    create_mask_action as create_mask_action,
    create_point_action as create_point_action,
)
from .augmentation import augmented as augmented, augmented_tasks as augmented_tasks
from .buffer import TaskBuffer as TaskBuffer
from .config import (
    ActionConfig as ActionConfig,
    ArcConfig as ArcConfig,
    DatasetConfig as DatasetConfig,
    EnvironmentConfig as EnvironmentConfig,
    JaxArcConfig as JaxArcConfig,
    ObservationConfig as ObservationConfig,
    RewardConfig as RewardConfig,
    UnifiedActionConfig as UnifiedActionConfig,
    UnifiedDatasetConfig as UnifiedDatasetConfig,
)
from .environment import (
    ArcEnvironment as ArcEnvironment,
)
from .evaluation import handed_in as handed_in
from .functional import arc_reset as arc_reset, arc_step as arc_step
from .generators import FAMILIES as FAMILIES, generate_task as generate_task, generate_tasks as generate_tasks
from .instances import (
    Instances as Instances,
    canvas_note as canvas_note,
    read_instances as read_instances,
)
from .observation import (
    ArcObservation as ArcObservation,
    create_observation as create_observation,
    legal_operations as legal_operations,
    validate_action_jax as validate_action_jax,
)
from .operations import (
    CATEGORIES as CATEGORIES,
    NUM_OPERATIONS as NUM_OPERATIONS,
    OPERATIONS as OPERATIONS,
    Operation as Operation,
    OperationInfo as OperationInfo,
    operation_name as operation_name,
    operations_in as operations_in,
)
from .planning import (
    Demonstrations as Demonstrations,
    demonstrations as demonstrations,
    plan_pair as plan_pair,
    solution_actions as solution_actions,
)
from .readers import load_tasks as load_tasks
from .rewards import (
    REWARD_NUMBERS as REWARD_NUMBERS,
    RewardFunction as RewardFunction,
    StepInfo as StepInfo,
    Transition as Transition,
)
from .state import ArcEnvState as ArcEnvState, ArcState as ArcState
from .tasks import (
    ArcTask as ArcTask,
    GridPair as GridPair,
    JaxArcTask as JaxArcTask,
    Solution as Solution,
    SolutionStep as SolutionStep,
    as_grid as as_grid,
)
