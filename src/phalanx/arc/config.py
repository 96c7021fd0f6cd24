"""Settings of the ARC environment: one frozen model per topic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.config import Config
from phalanx.native import Backend

if TYPE_CHECKING:
    from phalanx.arc.env import ArcEnvironment

MAX_GRID_SIDE = 30
GENERATED = "generated"
"""Source of generated tasks."""

SelectionFormat = Literal["point", "bbox", "mask"]
Mode = Literal["training", "evaluation"]
InitialGrid = Literal["input", "blank", "random", "demonstration"]
INITIAL_GRIDS: tuple[InitialGrid, ...] = get_args(InitialGrid)
"""In the order of the C++ enum `InitialGrid`."""


class EpisodeConfig(Config):
    """Course and end of an episode."""

    max_episode_steps: int = Field(default=100, ge=1)
    """Number of steps after which an episode is truncated."""
    mode: Mode = "training"
    """In `training`, an episode is about one pair and the similarity to its output is known after every
    step. In `evaluation`, an episode is about a complete task: the agent edits one grid per test pair,
    Submit submits all of them, and nothing about the answer is revealed before the last submission."""
    require_submit: bool = False
    """Whether a solved grid must be submitted in training. If false, the episode ends as soon as the grid is
    solved. Evaluation always requires it."""
    attempts: int = Field(default=1, ge=1, le=4)
    """Number of submissions in evaluation. A test output is correct if one of them is."""
    initial_grid: InitialGrid = "input"
    """First working grid: the pair's input, a blank or random grid of the same size, or the output of another
    demonstration (the input if there is none). Operations that restart a pair return to its input."""


class DatasetConfig(Config):
    """Size of the canvas, and the tasks that are used when none are given."""

    max_grid_height: int = MAX_GRID_SIDE
    """Height of the canvas, 1 to 30. Every grid of every task must fit."""
    max_grid_width: int = MAX_GRID_SIDE
    """Width of the canvas, 1 to 30."""
    source: str = GENERATED
    """Name of a dataset (listed by `phalanx arc list`) or path to task files. `generated` uses the built-in
    generators. Ignored if tasks are passed to the environment."""
    split: str = "training"
    """Split of the source."""
    families: tuple[str, ...] = ()
    """Task families (generated tasks) or concepts (ConceptARC) to use; empty uses all."""
    num_tasks: int = Field(default=64, ge=1)
    """Number of tasks to generate, for the source `generated`."""
    seed: int = 0
    """Random seed of the generated tasks."""
    tasks_per_update: int = Field(default=128, ge=1)
    """Number of tasks in each update of behavior cloning: newly generated, or sampled from the dataset."""
    augment: bool = False
    """Whether behavior cloning rotates, mirrors and recolors the tasks of a dataset, anew in each update. Not
    for generated tasks, which are new in each update anyway; the canvas must be square."""

    @model_validator(mode="after")
    def _check_augmentation(self) -> "DatasetConfig":
        if self.augment and self.source == GENERATED:
            raise ValueError("augment must be false for generated tasks, which are new in each update")
        if self.augment and self.max_grid_height != self.max_grid_width:
            raise ValueError("augment rotates tasks: max_grid_height and max_grid_width must be equal")
        return self

    @field_validator("max_grid_height", "max_grid_width")
    @classmethod
    def _check_side(cls, value: int, info: Any) -> int:
        if not 1 <= value <= MAX_GRID_SIDE:
            raise ValueError(f"{info.field_name} must be between 1 and {MAX_GRID_SIDE}, got {value}")
        return value


class ActionConfig(Config):
    """Actions that the agent may take."""

    selection_format: SelectionFormat = "point"
    """Shape of the selected cells: one `point`, a rectangle (`bbox`), or any `mask`."""
    allowed_operations: tuple[int, ...] | None = None
    """Ids of the legal operations; None allows all 42."""

    @field_validator("allowed_operations")
    @classmethod
    def _check_operations(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("allowed_operations must contain at least one operation, or be None for all")
        for operation in value:
            if not 0 <= operation < NUM_OPERATIONS:
                raise ValueError(
                    f"allowed_operations must be between 0 and {NUM_OPERATIONS - 1}, got {operation}"
                )
        return tuple(sorted(set(value)))

    @property
    def operations(self) -> tuple[int, ...]:
        """Ids of the legal operations, in ascending order."""
        return self.allowed_operations or tuple(range(NUM_OPERATIONS))

    @property
    def operation_bits(self) -> int:
        """The legal operations as an integer: bit k is set if operation k is legal."""
        return sum(1 << operation for operation in self.operations)


class RewardConfig(Config):
    """Terms of the default reward. All of them are added, so penalties are usually negative."""

    similarity_weight: float = 1.0
    """Weight of the change in similarity to the target. Used in training mode only."""
    step_penalty: float = -0.01
    """Added at every valid step."""
    success_bonus: float = 10.0
    """Added when the episode ends solved."""
    efficiency_bonus: float = 0.0
    """Added to the success bonus if the episode took at most `efficiency_bonus_threshold` steps."""
    efficiency_bonus_threshold: int = Field(default=50, ge=0)
    """Largest number of steps that earns the efficiency bonus."""
    unsolved_submission_penalty: float = 0.0
    """Added when an episode ends with the submission of a wrong grid."""
    invalid_action_penalty: float = -1.0
    """Reward of an invalid action, in place of all other terms."""
    reward_on_submit_only: bool = False
    """Whether to drop the similarity term and the step penalty, so that only the end of an episode is
    rewarded."""


class ObservationConfig(Config):
    """Parts of the observation. If only the working grid is enabled, an observation is a single array."""

    working_grid: bool = True
    """Show the current grid. If everything is disabled, an observation is an empty array."""
    input_grid: bool = False
    """Show the pair's input."""
    target_grid: bool = False
    """Show the pair's output; blank in evaluation mode."""
    selected: bool = False
    """Show the last selection as a mask."""
    clipboard: bool = False
    """Show the contents of the clipboard."""
    num_demonstrations: int = Field(default=0, ge=0, le=10)
    """Number of the task's demonstration pairs to show."""
    scalars: bool = False
    """Show similarity (0 in evaluation mode until the end), step count and legal operations."""

    @property
    def is_single_array(self) -> bool:
        """Whether an observation is one array instead of an `ArcObservation`."""
        extras = (self.input_grid, self.target_grid, self.selected, self.clipboard, self.scalars)
        return not (any(extras) or self.num_demonstrations)


class ArcConfig(Config):
    """All settings of an ARC environment. Hashable, so it can be a static argument of `jax.jit`."""

    preset_group = "arc"
    renamed_settings: ClassVar[Mapping[str, str]] = {
        "environment": "episode",
        "engine": "backend",
        "observation.demonstrations": "observation.num_demonstrations",
    }

    episode: EpisodeConfig = EpisodeConfig()
    """Course and end of an episode."""
    dataset: DatasetConfig = DatasetConfig()
    """Canvas and default tasks."""
    action: ActionConfig = ActionConfig()
    """Legal actions."""
    reward: RewardConfig = RewardConfig()
    """Terms of the default reward."""
    observation: ObservationConfig = ObservationConfig()
    """Parts of the observation."""
    backend: Backend = "auto"
    """`native` (C++, CPU only), `xla`, or `auto`: native where it is available."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Height and width of the canvas."""
        return self.dataset.max_grid_height, self.dataset.max_grid_width

    def environment_for(self, task: Any = None) -> "ArcEnvironment":
        """Create the environment for a task, several tasks or a task buffer; None uses the dataset."""
        from phalanx.arc.env import ArcEnvironment

        return ArcEnvironment.create(self, task)
