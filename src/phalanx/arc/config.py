"""The ARC environment's settings: one frozen, typed model for each concern.

Loading presets and overrides is in `phalanx.config`.
"""

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, field_validator

from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.config import Config
from phalanx.core.backends import Backend

if TYPE_CHECKING:
    from phalanx.arc.env import ArcEnvironment

MAX_GRID_SIDE = 30

SelectionFormat = Literal["point", "bbox", "mask"]
Mode = Literal["training", "evaluation"]
InitialGrid = Literal["input", "blank", "random", "demonstration"]
INITIAL_GRIDS: tuple[InitialGrid, ...] = get_args(InitialGrid)
"""In the order of `InitialGrid` in arc_kernel.h."""


class EpisodeConfig(Config):
    """How an episode runs and ends."""

    max_episode_steps: int = Field(default=100, ge=1)
    """Steps after which an episode is truncated."""
    mode: Mode = "training"
    """In training an episode is one pair, and every step tells how near it is. In evaluation it is a whole
    task: a grid for each test pair, all handed in by Submit, and nothing is told before that."""
    require_submit: bool = False
    """Whether a solved grid must be submitted in training; otherwise the episode ends as soon as it is
    solved. In evaluation it always must."""
    attempts: int = Field(default=1, ge=1, le=4)
    """How often the answers may be handed in, in evaluation; an output is right if one attempt at it is."""
    initial_grid: InitialGrid = "input"
    """The first working grid: the pair's input, a blank or a random one of its size, or the output of another
    demonstration (the input where there is none). Operations that start a pair again go to its input."""


class DatasetConfig(Config):
    """The canvas that tasks must fit, and where tasks come from when none are given."""

    max_grid_height: int = MAX_GRID_SIDE
    """Rows of the canvas, 1 to 30."""
    max_grid_width: int = MAX_GRID_SIDE
    """Columns of the canvas, 1 to 30."""
    source: str = "generated"
    """A data set's name (`phalanx data arc list` shows them) or a path; used where no task is passed."""
    split: str = "training"
    """Which split of the source."""
    families: tuple[str, ...] = ()
    """Keep only these task families (generated) or concepts (ConceptARC); empty keeps all."""
    num_tasks: int = Field(default=64, ge=1)
    """How many tasks to generate, for the generated source."""
    seed: int = 0
    """Seed of the generated tasks."""

    @field_validator("max_grid_height", "max_grid_width")
    @classmethod
    def _side(cls, value: int, info: Any) -> int:
        if not 1 <= value <= MAX_GRID_SIDE:
            raise ValueError(f"{info.field_name} must be between 1 and {MAX_GRID_SIDE}, got {value}")
        return value


class ActionConfig(Config):
    """Which actions an agent may take."""

    selection_format: SelectionFormat = "point"
    """How actions name cells: a point, a box, or a mask."""
    allowed_operations: tuple[int, ...] | None = None
    """Operation ids that are legal; None allows all 42."""

    @field_validator("allowed_operations")
    @classmethod
    def _operations(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("allowed_operations must name at least one operation, or be None for all")
        for operation in value:
            if not 0 <= operation < NUM_OPERATIONS:
                raise ValueError(
                    f"allowed_operations must lie between 0 and {NUM_OPERATIONS - 1}, got {operation}"
                )
        return tuple(sorted(set(value)))


class RewardConfig(Config):
    """What a step pays. Penalties are numbers that are added, so they are usually negative."""

    similarity_weight: float = 1.0
    """Weight of the change of similarity; in training only."""
    step_penalty: float = -0.01
    """Added at every valid step."""
    success_bonus: float = 10.0
    """Added when the episode ends solved."""
    efficiency_bonus: float = 0.0
    """Added to the success bonus when solved within `efficiency_bonus_threshold` steps."""
    efficiency_bonus_threshold: int = Field(default=50, ge=0)
    """Steps within which the efficiency bonus is paid."""
    unsolved_submission_penalty: float = 0.0
    """Added when an unsolved grid is submitted."""
    invalid_action_penalty: float = -1.0
    """The whole reward of an invalid action."""
    reward_on_submit_only: bool = False
    """Pay only the bonuses and the submission penalty, at the end."""


class ObservationConfig(Config):
    """What an agent sees. With nothing but the working grid an observation is one array."""

    working_grid: bool = True
    """The grid as it stands; without it (and without the rest) an observation is an empty array."""
    input_grid: bool = False
    """The pair's input."""
    target_grid: bool = False
    """The pair's output; blank in evaluation."""
    selected: bool = False
    """The last selection, as a mask."""
    clipboard: bool = False
    """The remembered object."""
    demonstrations: int = Field(default=0, ge=0, le=10)
    """How many demonstration pairs of the task to show."""
    scalars: bool = False
    """Similarity (0 in evaluation until the end), steps taken and the legal operations."""


class ArcConfig(Config):
    """Everything that shapes an ARC environment; hashable, so static under `jit`."""

    preset_group = "arc"

    environment: EpisodeConfig = EpisodeConfig()
    """How an episode runs and ends."""
    dataset: DatasetConfig = DatasetConfig()
    """The canvas, and the default tasks."""
    action: ActionConfig = ActionConfig()
    """Which actions are legal."""
    reward: RewardConfig = RewardConfig()
    """What a step pays."""
    observation: ObservationConfig = ObservationConfig()
    """What an agent sees."""
    engine: Backend = "auto"
    """`native` (C++, CPU), `xla`, or `auto`: native where it can be used."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Rows and columns of the canvas."""
        return self.dataset.max_grid_height, self.dataset.max_grid_width

    def environment_for(self, task: Any = None) -> "ArcEnvironment":
        """The environment that this config describes, over a task, a task buffer, or the default tasks."""
        from phalanx.arc.env import ArcEnvironment

        return ArcEnvironment.create(self, task)


JaxArcConfig = ArcConfig
UnifiedDatasetConfig = DatasetConfig
UnifiedActionConfig = ActionConfig
