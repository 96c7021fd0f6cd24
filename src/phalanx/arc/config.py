"""Configuration of the ARC environment."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.config import Config
from phalanx.native import Backend

MAX_GRID_SIDE = 30
"""Maximum height and width of a grid in cells."""
GENERATED = "generated"
"""Value of `DatasetConfig.source` for generated tasks."""

SelectionFormat = Literal["point", "bbox", "mask"]
"""How an action selects cells: one cell (`point`), a rectangle (`bbox`), or any set of cells (`mask`)."""
OperationId = Annotated[int, Field(ge=0, le=NUM_OPERATIONS - 1)]
Mode = Literal["training", "evaluation"]
"""Values of `EpisodeConfig.mode`."""
InitialGrid = Literal["input", "blank", "random", "demonstration"]
INITIAL_GRIDS: tuple[InitialGrid, ...] = get_args(InitialGrid)
"""Values of `EpisodeConfig.initial_grid`, in the order of the C++ `InitialGrid` enum."""


class EpisodeConfig(Config):
    """Settings for how episodes start and end, and for their mode (training or evaluation)."""

    max_episode_steps: int = Field(default=100, ge=1)
    """Number of steps after which an episode is truncated."""
    mode: Mode = "training"
    """In `training`, the agent edits one grid, and every step reports its similarity to the output. In
    `evaluation`, an episode consists of a complete task: the agent edits one grid per test pair, the Submit
    operation submits the grids of all test pairs, and nothing about the answers is revealed before the last
    submission."""
    require_submit: bool = False
    """Continue a training episode after the grid is solved, until the agent submits it. If false, the episode
    ends as soon as the grid is solved. Ignored in evaluation mode, which always requires a submission."""
    attempts: int = Field(default=1, ge=1, le=4)
    """Number of submissions per episode in evaluation mode, 1 to 4. Each submission contains a grid for every
    test pair, and a test output counts as correct if it is correct in at least one submission. Training mode
    ignores this setting."""
    initial_grid: InitialGrid = "input"
    """Working grid at the start of an episode: `input` (the input of the pair), `blank` (a black grid of the
    same size as the input), `random` (a grid of random colors, also of this size), or `demonstration` (the
    output of a demonstration pair other than the current pair, or the input of the current pair if there is
    no other demonstration). Operations that restart a pair always return to its input."""


class DatasetConfig(Config):
    """Size of the canvas, and the default tasks of an environment."""

    max_grid_height: int = Field(default=MAX_GRID_SIDE, ge=1, le=MAX_GRID_SIDE)
    """Height of the canvas in cells, 1 to 30. All grids are stored on a canvas of this size and must fit on
    it; see `skip_oversized_tasks`."""
    max_grid_width: int = Field(default=MAX_GRID_SIDE, ge=1, le=MAX_GRID_SIDE)
    """Width of the canvas in cells, 1 to 30."""
    source: str = GENERATED
    """Name of a dataset (see `phalanx arc list`) or path to a file or folder of tasks. `generated` uses the
    built-in task generators. Ignored if tasks are passed to the environment."""
    split: str = "training"
    """Split of the source to use, such as `training` or `evaluation`."""
    skip_oversized_tasks: bool = False
    """Skip the tasks of `source` that do not fit on the canvas. If false, such tasks are an error. Generated
    tasks always fit, and tasks that are passed to the environment must fit."""
    families: tuple[str, ...] = ()
    """Names of the task families (generated tasks) or concepts (ConceptARC) to use. If empty, all are
    used."""
    num_generated_tasks: int = Field(default=64, ge=1)
    """Number of tasks to generate. Used only if `source` is `generated`."""
    seed: int = 0
    """Random seed for generating tasks."""
    tasks_per_update: int | None = Field(default=None, ge=1)
    """Number of fresh tasks in each training update. They are newly generated if `source` is `generated`, and
    sampled from the dataset otherwise. If None, every update uses all tasks of the dataset."""
    augment: bool = False
    """Randomly rotate, mirror and recolor the tasks that are sampled for an update. This requires
    `tasks_per_update` and a square canvas. Augmentation must be disabled if the tasks are generated, because
    generated tasks are new in each update."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Height and width of the canvas."""
        return self.max_grid_height, self.max_grid_width

    @model_validator(mode="after")
    def _check_augmentation(self) -> "DatasetConfig":
        if self.augment and self.source == GENERATED:
            raise ValueError("augment must be false for generated tasks, which are new in each update")
        if self.augment and self.tasks_per_update is None:
            raise ValueError("augment needs fresh tasks in each update: set tasks_per_update")
        if self.augment and self.max_grid_height != self.max_grid_width:
            raise ValueError("augment rotates tasks: max_grid_height and max_grid_width must be equal")
        return self


class ActionConfig(Config):
    """Format of actions, and the operations that the agent may use."""

    selection_format: SelectionFormat = "point"
    """Format in which an action selects cells. A `point` is one cell, a `bbox` is a rectangle, and a `mask`
    is any set of cells."""
    allowed_operations: tuple[OperationId, ...] | None = Field(default=None, min_length=1)
    """Ids of the operations that the agent may use, from 0 to 41. If None, all 42 operations are allowed."""

    @field_validator("allowed_operations")
    @classmethod
    def _sort_operations(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if value is None else tuple(sorted(set(value)))

    @property
    def operations(self) -> tuple[int, ...]:
        """Ids of the allowed operations, in ascending order."""
        return self.allowed_operations or tuple(range(NUM_OPERATIONS))

    @property
    def operation_mask(self) -> tuple[bool, ...]:
        """Boolean mask of the 42 operations. It is True for allowed operations."""
        return tuple(operation in self.operations for operation in range(NUM_OPERATIONS))

    @property
    def operation_bits(self) -> int:
        """The allowed operations as an integer whose bit k is set if operation k is allowed."""
        return sum(1 << operation for operation in self.operations)


class RewardConfig(Config):
    """Terms of the default reward. The reward is their sum, so a penalty should be negative or 0."""

    similarity_weight: float = 1.0
    """Weight of the change in similarity to the target during a step. Used in training mode only."""
    step_penalty: float = -0.01
    """Added to the reward of every valid step. Use a negative value to penalize long episodes."""
    success_bonus: float = 10.0
    """Reward for ending an episode with a correct solution."""
    efficiency_bonus: float = 0.0
    """Additional reward for solving an episode in at most `efficiency_bonus_threshold` steps."""
    efficiency_bonus_threshold: int = Field(default=50, ge=0)
    """Maximum number of steps in which an episode must be solved to earn the efficiency bonus."""
    unsolved_submission_penalty: float = 0.0
    """Added to the reward when the agent ends an episode by submitting a wrong grid. Use a negative value to
    penalize wrong submissions."""
    invalid_action_penalty: float = -1.0
    """Reward for an invalid action. It replaces the similarity term and the step penalty."""
    reward_on_submit_only: bool = False
    """Drop the similarity term and the step penalty, so that valid steps are rewarded only at the end of an
    episode."""


class ObservationConfig(Config):
    """Parts of an observation. By default, an observation is a single array, the working grid. If any other
    part is enabled, observations are `ArcObservation` instances."""

    working_grid: bool = True
    """Include the working grid. If this part and all other parts are disabled, an observation is an empty
    array."""
    input_grid: bool = False
    """Include the input of the pair."""
    target_grid: bool = False
    """Include the output of the pair. In evaluation mode, it is hidden: all cells are -1."""
    selected: bool = False
    """Include the mask of the last selection."""
    clipboard: bool = False
    """Include the contents of the clipboard."""
    num_demonstrations: int = Field(default=0, ge=0, le=10)
    """Number of the task's demonstration pairs to include, 0 to 10. The current pair is never included."""
    scalars: bool = False
    """Include the similarity of the working grid to the target, the step count and the mask of legal
    operations. In evaluation mode, the similarity is 0 until the end of the episode."""

    @property
    def is_single_array(self) -> bool:
        """True if an observation is one array instead of an `ArcObservation`."""
        extras = (self.input_grid, self.target_grid, self.selected, self.clipboard, self.scalars)
        return not (any(extras) or self.num_demonstrations)


class ArcConfig(Config):
    """All settings of an ARC environment. Configs are hashable, so they can be static arguments of
    `jax.jit`."""

    preset_group = "arc"

    episode: EpisodeConfig = EpisodeConfig()
    """How episodes start and end, and whether they are for training or evaluation."""
    dataset: DatasetConfig = DatasetConfig()
    """Size of the canvas, and the default tasks."""
    action: ActionConfig = ActionConfig()
    """Action format and allowed operations."""
    reward: RewardConfig = RewardConfig()
    """Terms of the default reward."""
    observation: ObservationConfig = ObservationConfig()
    """Parts of the observation."""
    backend: Backend = "auto"
    """Implementation of the environment: `native` (C++, on the CPU only), `xla` (any device), or `auto`,
    which uses `native` if it is available and `xla` otherwise."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Height and width of the canvas, which has the same size for all tasks."""
        return self.dataset.grid_shape
