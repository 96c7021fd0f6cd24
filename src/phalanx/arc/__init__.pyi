# The public names of this package and where each is defined; `__init__.py` loads them on first use.

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
from .answers import paint_and_submit as paint_and_submit
from .augmentation import augmented as augmented, augmented_tasks as augmented_tasks
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
from .env import ArcEnvironment as ArcEnvironment
from .evaluation import evaluate_arc as evaluate_arc, pass_at_k as pass_at_k
from .evaluation_mode import handed_in as handed_in
from .expert_episodes import (
    Demonstrations as Demonstrations,
    Transitions as Transitions,
    demonstrations as demonstrations,
)
from .functional import arc_reset as arc_reset, arc_step as arc_step
from .generators.generate import (
    FAMILIES as FAMILIES,
    generate_task as generate_task,
    generate_tasks as generate_tasks,
)
from .networks.arc import create_arc_network as create_arc_network
from .networks.stem_and_heads import ArcNetworkConfig as ArcNetworkConfig
from .networks.transduction import (
    AnswerNetwork as AnswerNetwork,
    AnswerNetworkConfig as AnswerNetworkConfig,
    answer_loss as answer_loss,
    answer_of as answer_of,
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
from .pair_dataset import Instances as Instances, canvas_note as canvas_note, read_instances as read_instances
from .planner import Plan as Plan, plan_pair as plan_pair, solution_actions as solution_actions
from .random_agent import RandomAgent as RandomAgent, VectorizedRandomAgent as VectorizedRandomAgent
from .reward import (
    REWARD_NUMBERS as REWARD_NUMBERS,
    RewardFunction as RewardFunction,
    StepInfo as StepInfo,
    Transition as Transition,
)
from .state import ArcEnvState as ArcEnvState, ArcState as ArcState
from .submission import (
    HandIn as HandIn,
    TaskAnswers as TaskAnswers,
    examination as examination,
    hand_in as hand_in,
    hand_in_at_random as hand_in_at_random,
)
from .task_buffer import TaskBuffer as TaskBuffer
from .task_files import load_tasks as load_tasks
from .tasks import (
    ArcTask as ArcTask,
    GridPair as GridPair,
    JaxArcTask as JaxArcTask,
    Solution as Solution,
    SolutionStep as SolutionStep,
    as_grid as as_grid,
)
