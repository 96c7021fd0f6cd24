"""Random tasks and actions that lead to varied states, with the results of the reference implementation.

The results are computed once and compared with every backend.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from phalanx.arc.config import ActionConfig, ArcConfig, DatasetConfig, EpisodeConfig, RewardConfig
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from tests.helpers.arc_rollouts import oracle_batch_step, oracle_starts, oracle_view
from tests.reference.arc import MAX_PAIRS, OracleState

BAD_OPERATIONS = (-1, 42, 99, 35 + 42, -(2**31), 2**31 - 1)
NUM_TASKS = 60


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A config and the number of steps to take with it."""

    name: str
    config: ArcConfig
    batch: int
    steps: int
    seed: int
    submits: float = 0.0
    """Probability of an additional submission."""

    @property
    def format(self) -> str:
        return self.config.action.selection_format


def _scenario(
    name: str,
    shape: tuple[int, int],
    action_format: str,
    seed: int,
    steps: int = 22,
    batch: int = 288,
    submits: float = 0.0,
    allowed: tuple[int, ...] | None = None,
    episode: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
) -> Scenario:
    config = ArcConfig(
        dataset=DatasetConfig(max_grid_height=shape[0], max_grid_width=shape[1]),
        action=ActionConfig(selection_format=action_format, allowed_operations=allowed),
        episode=EpisodeConfig(**(episode or {})),
        reward=RewardConfig(**(reward or {})),
    )
    return Scenario(name, config, batch=batch, steps=steps, seed=seed, submits=submits)


SCENARIOS = (
    _scenario(
        "points on 30x30, submit required",
        (30, 30),
        "point",
        seed=1,
        steps=24,
        episode={"require_submit": True},
        reward={
            "efficiency_bonus": 2.5,
            "efficiency_bonus_threshold": 9,
            "unsolved_submission_penalty": -0.5,
        },
    ),
    _scenario(
        "boxes on 30x30 in evaluation",
        (30, 30),
        "bbox",
        seed=2,
        episode={"mode": "evaluation", "initial_grid": "random"},
        reward={"similarity_weight": 3.0, "unsolved_submission_penalty": -2.0, "step_penalty": -0.125},
    ),
    _scenario(
        "boxes on 6x6 in evaluation, two attempts, truncated at 20 steps",
        (6, 6),
        "bbox",
        seed=6,
        batch=1024,
        episode={"mode": "evaluation", "attempts": 2, "max_episode_steps": 20},
        reward={
            "efficiency_bonus": 2.5,
            "efficiency_bonus_threshold": 9,
            "unsolved_submission_penalty": -0.5,
        },
    ),
    _scenario(
        "points on 1x2 in evaluation, three attempts, paid on submit only",
        (1, 2),
        "point",
        seed=7,
        steps=14,
        submits=0.2,
        allowed=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 33, 34, 37, 38, 39, 41),
        episode={"mode": "evaluation", "attempts": 3, "max_episode_steps": 14},
        reward={"reward_on_submit_only": True, "unsolved_submission_penalty": -1.5},
    ),
    _scenario(
        "masks on 30x30",
        (30, 30),
        "mask",
        seed=3,
        reward={"similarity_weight": 7.0, "invalid_action_penalty": -0.25},
    ),
    _scenario(
        "masks on 7x12, truncated at 13 steps, some operations allowed, paid on submit only",
        (7, 12),
        "mask",
        seed=4,
        steps=15,
        allowed=(0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 33, 34, 35, 41),
        episode={"max_episode_steps": 13},
        reward={
            "reward_on_submit_only": True,
            "efficiency_bonus": 4.0,
            "efficiency_bonus_threshold": 5,
            "unsolved_submission_penalty": -1.5,
        },
    ),
    _scenario(
        "boxes on 1x1, truncated at 6 steps",
        (1, 1),
        "bbox",
        seed=5,
        steps=8,
        episode={"max_episode_steps": 6},
        reward={"efficiency_bonus": 2.5, "efficiency_bonus_threshold": 3},
    ),
)


def random_grid(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Draw a grid. Few colors give large regions and frequent matches; many colors make every cell matter."""
    palette = rng.choice(10, size=int(rng.choice([1, 2, 2, 3, 10])), replace=False)
    return rng.choice(palette, size=(rows, cols))


def random_size(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[int, int]:
    rows, cols = shape
    kind = rng.integers(6)
    if kind == 0:
        return rows, cols
    if kind == 1:
        return 1, int(rng.integers(1, cols + 1))
    if kind == 2:
        return int(rng.integers(1, rows + 1)), 1
    if kind == 3:
        return int(rng.integers(1, rows + 1)), int(rng.integers(1, cols + 1))
    return int(rng.integers(1, min(rows, 8) + 1)), int(rng.integers(1, min(cols, 8) + 1))


def random_pair(rng: np.random.Generator, shape: tuple[int, int]) -> GridPair:
    """Draw an output: the input, a variant, part or extension of it, or an unrelated grid."""
    source = random_grid(rng, *random_size(rng, shape))
    kind = rng.integers(5)
    if kind == 0:
        target = source.copy()
    elif kind <= 2:
        target = source.copy()
        target[rng.integers(target.shape[0]), rng.integers(target.shape[1])] = rng.integers(10)
    elif kind == 3:
        rows, cols = random_size(rng, shape)
        target = np.zeros((rows, cols), int)
        part = source[:rows, :cols]
        target[: part.shape[0], : part.shape[1]] = part
    else:
        target = random_grid(rng, *random_size(rng, shape))
    return GridPair(as_grid(source), as_grid(target))


@functools.cache
def random_tasks(shape: tuple[int, int], with_all_kinds: bool) -> tuple[ArcTask, ...]:
    """Draw tasks of all sizes that fit the canvas.

    `with_all_kinds` adds tasks without tests, which evaluation mode rejects. Some have a hidden output.
    """
    rng = np.random.default_rng([*shape, with_all_kinds])
    tasks = []
    for i in range(NUM_TASKS):
        demos, tests = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        if i == 0:
            demos, tests = MAX_PAIRS - 6, 6
        elif i % 10 == 1:
            demos = 0
        elif i % 10 == 2 and with_all_kinds:
            tests = 0
        pairs = [random_pair(rng, shape) for _ in range(demos + tests)]
        if i % 10 == 3:
            pairs[-1] = GridPair(pairs[-1].input, None)
        tasks.append(ArcTask(f"random-{i}", tuple(pairs[:demos]), tuple(pairs[demos:])))
    return tuple(tasks)


def tasks_of(scenario: Scenario) -> tuple[ArcTask, ...]:
    return random_tasks(scenario.config.grid_shape, scenario.config.episode.mode == "training")


def keys_of(scenario: Scenario) -> jax.Array:
    return jax.random.split(jax.random.PRNGKey(scenario.seed), scenario.batch)


def random_operation(rng: np.random.Generator, submits: float) -> int:
    """Draw operations, rarely those that end the episode or restart, and sometimes an invalid id."""
    if submits and rng.random() < submits:
        return 34
    if rng.random() < 0.03:
        return int(rng.choice(BAD_OPERATIONS))
    operation = int(rng.integers(42))
    restarts = operation == 32 or operation >= 35
    if (operation == 34 and rng.random() < 0.7) or (restarts and rng.random() < 0.5):
        return int(rng.integers(20, 31))
    return operation


def random_point(rng: np.random.Generator, area: tuple[int, int], canvas: tuple[int, int]) -> tuple[int, int]:
    """Draw a cell: mostly in the area, sometimes only on the canvas, and sometimes outside it."""
    chance = rng.random()
    if chance < 0.04:
        point = [int(rng.integers(canvas[0])), int(rng.integers(canvas[1]))]
        axis = int(rng.integers(2))
        point[axis] = int(rng.choice([-1, canvas[axis], canvas[axis] + 3, 32, -32, 2**31 - 1, -(2**31)]))
        return point[0], point[1]
    rows, cols = canvas if chance < 0.15 else area
    return int(rng.integers(rows)), int(rng.integers(cols))


def random_box(
    rng: np.random.Generator, area: tuple[int, int], canvas: tuple[int, int]
) -> tuple[int, int, int, int]:
    chance = rng.random()
    if chance < 0.06:
        box = (0, 0, area[0] - 1, area[1] - 1)
    elif chance < 0.1:
        box = (0, 0, canvas[0] - 1, canvas[1] - 1)
    elif chance < 0.2:
        box = random_point(rng, area, canvas) * 2
    else:
        box = random_point(rng, area, canvas) + random_point(rng, area, canvas)
    # Opposite corners in any order.
    r1, c1, r2, c2 = box
    if rng.random() < 0.5:
        r1, r2 = r2, r1
    if rng.random() < 0.5:
        c1, c2 = c2, c1
    return r1, c1, r2, c2


def random_mask(rng: np.random.Generator, area: tuple[int, int], canvas: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(canvas, bool)
    kind = rng.choice(["empty", "area", "canvas", "cell", "box", "scatter", "anywhere", "bent"])
    if kind == "area":
        mask[: area[0], : area[1]] = True
    elif kind == "canvas":
        mask[:] = True
    elif kind == "cell":
        mask[rng.integers(area[0]), rng.integers(area[1])] = True
    elif kind in ("box", "bent", "scatter"):
        rows = sorted(rng.integers(0, area[0], 2).tolist())
        cols = sorted(rng.integers(0, area[1], 2).tolist())
        part = mask[rows[0] : rows[1] + 1, cols[0] : cols[1] + 1]
        part[:] = True
        if kind == "bent":
            part[rng.integers(part.shape[0]) :, rng.integers(part.shape[1]) :] = False
        elif kind == "scatter":
            part[:] = rng.random(part.shape) < 0.5
    elif kind == "anywhere":
        mask[:] = rng.random(canvas) < rng.random()
    return mask


def random_selection(rng: np.random.Generator, scenario: Scenario, state: OracleState, operation: int) -> Any:
    """Draw a selection on which the operation has an effect more often than on a random one."""
    canvas = scenario.config.grid_shape
    area = state.working.shape
    if operation == 33 and rng.random() < 0.6:
        # Not larger than the canvas, but often larger than the area.
        area = (min(canvas[0], area[0] + 4), min(canvas[1], area[1] + 4))
    wants_cell = 10 <= operation <= 19 and rng.random() < 0.7
    if scenario.format == "point":
        return random_point(rng, area, canvas)
    if scenario.format == "bbox":
        return random_point(rng, area, canvas) * 2 if wants_cell else random_box(rng, area, canvas)
    if wants_cell:
        cell = np.zeros(canvas, bool)
        cell[rng.integers(area[0]), rng.integers(area[1])] = True
        return cell
    return random_mask(rng, area, canvas)


@dataclasses.dataclass(frozen=True)
class Turn:
    """A batch of actions and the results of the reference implementation."""

    before: list[OracleState]
    operations: np.ndarray
    selections: np.ndarray
    after: list[OracleState]
    view: dict[str, np.ndarray]
    rewards: np.ndarray
    done: np.ndarray
    infos: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of a scenario with the reference implementation."""

    first: list[OracleState]
    first_view: dict[str, np.ndarray]
    turns: list[Turn]


@functools.cache
def oracle_run(scenario: Scenario) -> Run:
    """Run a scenario with the reference implementation."""
    rng = np.random.default_rng(scenario.seed)
    config = scenario.config
    states = first = oracle_starts(keys_of(scenario), tasks_of(scenario), config)
    turns = []
    for _ in range(scenario.steps):
        operations = np.array([random_operation(rng, scenario.submits) for _ in states], np.int32)
        selections = np.array(
            [
                random_selection(rng, scenario, state, int(op))
                for state, op in zip(states, operations, strict=True)
            ]
        )
        after, rewards, done, infos = oracle_batch_step(
            states, scenario.format, operations, selections, config
        )
        turns.append(
            Turn(states, operations, selections, after, oracle_view(after, config), rewards, done, infos)
        )
        states = after
    return Run(first, oracle_view(first, config), turns)
