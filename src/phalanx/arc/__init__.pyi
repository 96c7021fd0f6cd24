# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .action_distribution import (
    ArcDistribution as ArcDistribution,
    ArcLogits as ArcLogits,
    AxisLogits as AxisLogits,
    CellLogits as CellLogits,
)
from .actions import (
    Action as Action,
    BboxAction as BboxAction,
    MaskAction as MaskAction,
    PointAction as PointAction,
    create_bbox_action as create_bbox_action,
    create_mask_action as create_mask_action,
    create_point_action as create_point_action,
    legal_operations as legal_operations,
    validate_action as validate_action,
)
from .augmentation import augment as augment, augment_tasks as augment_tasks
from .config import (
    ActionConfig as ActionConfig,
    ArcConfig as ArcConfig,
    DatasetConfig as DatasetConfig,
    EpisodeConfig as EpisodeConfig,
    ObservationConfig as ObservationConfig,
    RewardConfig as RewardConfig,
)
from .datasets import download_dataset as download_dataset, load_tasks as load_tasks
from .env import ArcEnvironment as ArcEnvironment
from .evaluation import (
    ArcEvalCommandConfig as ArcEvalCommandConfig,
    ArcEvaluationConfig as ArcEvaluationConfig,
    ArcEvaluator as ArcEvaluator,
    ArcResult as ArcResult,
)
from .evaluation_mode import submitted_grids as submitted_grids
from .expert import ArcExpert as ArcExpert
from .expert_episodes import (
    PlannedEpisodes as PlannedEpisodes,
    PlannedEpisodeSteps as PlannedEpisodeSteps,
    plan_expert_episodes as plan_expert_episodes,
)
from .functional import (
    arc_reset as arc_reset,
    arc_step as arc_step,
    batch_reset as batch_reset,
    batch_step as batch_step,
    run_episode_batch as run_episode_batch,
)
from .generators.family import TaskFamily as TaskFamily
from .generators.generate import (
    FAMILIES as FAMILIES,
    generate_task as generate_task,
    generate_tasks as generate_tasks,
    register_family as register_family,
)
from .networks import ArcNetworkConfig as ArcNetworkConfig, create_network as create_network
from .observation import ArcObservation as ArcObservation, create_observation as create_observation
from .operations import (
    CATEGORIES as CATEGORIES,
    NUM_OPERATIONS as NUM_OPERATIONS,
    OPERATIONS as OPERATIONS,
    Operation as Operation,
    OperationInfo as OperationInfo,
    operation_name as operation_name,
    operations_in as operations_in,
)
from .planner import ActionPlan as ActionPlan, plan_pair as plan_pair, solution_actions as solution_actions
from .random_agent import RandomAgent as RandomAgent, VectorizedRandomAgent as VectorizedRandomAgent
from .reward import (
    REWARD_WEIGHTS as REWARD_WEIGHTS,
    RewardFunction as RewardFunction,
    RewardInput as RewardInput,
)
from .state import ArcState as ArcState, StepInfo as StepInfo
from .submission import (
    Submission as Submission,
    TaskSubmission as TaskSubmission,
    submission_env as submission_env,
    submit as submit,
    submit_random as submit_random,
)
from .task_buffer import TaskArrays as TaskArrays, TaskBuffer as TaskBuffer
from .tasks import (
    ArcTask as ArcTask,
    GridPair as GridPair,
    Solution as Solution,
    SolutionStep as SolutionStep,
    as_grid as as_grid,
)
from .text import ArcText as ArcText
