"""Planned and recorded episodes as labeled steps, for imitation learning."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Int32, PyTree

from phalanx.arc.actions import Action
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.episode_tokens import ArcTokenizer, GridName
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from phalanx.arc.planner import ActionPlan, action_from_arrays, solution_plan
from phalanx.core.expert import ExpertLabels
from phalanx.data.samples import Sample, read_samples


class ExpertEpisodeBatch(eqx.Module):
    """All steps of some complete episodes, grouped by episode."""

    observation: Any
    """Observation before each step, with leading axis [steps]."""
    action: Action
    """Action of each step, with leading axis [steps]."""
    episode: Int32[np.ndarray, " steps"]
    """Index of the episode to which each step belongs."""


@dataclasses.dataclass(frozen=True, eq=False)
class ExpertEpisodes:
    """Planned episodes, each of which ends with the correct grid. Call `batches` for their steps."""

    environment: ArcEnvironment
    """Environment in which the episodes are replayed."""
    tasks: Int32[np.ndarray, " episodes"]
    """Index of each episode's task in the environment."""
    pairs: Int32[np.ndarray, " episodes"]
    """Index of each episode's pair, as in `ArcEnvironment.batch_reset_to`."""
    plans: tuple[ActionPlan, ...]
    """Actions of each episode."""
    dropped: int
    """Number of pairs that were omitted because their plans exceed the step limit."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def num_steps(self) -> int:
        """Total number of steps of all episodes."""
        return sum(map(len, self.plans))

    def batches(self, batch_size: int = 256) -> Iterator[ExpertEpisodeBatch]:
        """Replay the episodes in batches and yield the steps of each batch.

        Episodes are sorted by length, so that the episodes of a batch have similar lengths.

        Args:
            batch_size: Number of episodes per batch. The last batch may be smaller.
        """
        order = np.argsort([len(plan) for plan in self.plans], kind="stable")
        step = jax.jit(self.environment.batch_step)
        for first in range(0, len(order), batch_size):
            yield self._replay(order[first : first + batch_size], batch_size, step)

    def _replay(self, episodes: np.ndarray, batch_size: int, step: Any) -> ExpertEpisodeBatch:
        # The last batch is filled up with copies of its episodes, so that one compilation serves all batches.
        slots = np.resize(episodes, batch_size)
        operations, selections = self._pad_plans(slots)
        valid = operations >= 0
        valid[len(episodes) :] = False
        states, observations = self.environment.batch_reset_to(
            jnp.asarray(self.tasks[slots]), jnp.asarray(self.pairs[slots])
        )
        observed = []
        for time in range(operations.shape[1]):
            observed.append(jax.tree.map(np.asarray, observations))
            actions = action_from_arrays(operations[:, time], selections[:, time])
            states, observations, *_ = step(states, actions)
        self._check(np.asarray(states.working_grid)[: len(episodes)], episodes)
        return ExpertEpisodeBatch(
            jax.tree.map(lambda *leaves: np.stack(leaves, axis=1)[valid], *observed),
            action_from_arrays(operations[valid], selections[valid]),
            np.broadcast_to(slots[:, None], valid.shape)[valid].astype(np.int32),
        )

    def _pad_plans(self, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the operations and selected cells of some episodes, with leading axes [episodes, steps]. The
        operation is -1 after the end of a plan."""
        plans = [self.plans[episode] for episode in episodes]
        shape = len(plans), max(map(len, plans))
        cells = plans[0].selections
        operations = np.full(shape, -1, np.int32)
        selections = np.zeros((*shape, *cells.shape[1:]), cells.dtype)
        for row, plan in enumerate(plans):
            operations[row, : len(plan)] = plan.operations
            selections[row, : len(plan)] = plan.selections
        return operations, selections

    def _check(self, grids: np.ndarray, episodes: np.ndarray) -> None:
        """Raise an error if an episode does not end with the correct grid."""
        for grid, episode in zip(grids, episodes, strict=True):
            task = self.environment.task_buffer[int(self.tasks[episode])]
            output = (task.demos or task.tests)[int(self.pairs[episode])].output
            assert output is not None  # the environment rejects such tasks
            expected = np.full_like(grid, -1)
            expected[: output.shape[0], : output.shape[1]] = output
            if not np.array_equal(grid, expected):
                raise RuntimeError(
                    f"task {task.id!r}: the plan for pair {self.pairs[episode]} does not end with the output"
                )


def plan_expert_episodes(environment: ArcEnvironment, *, submit: bool | None = None) -> ExpertEpisodes:
    """Plan an episode for every pair that an episode of the environment can start with.

    The known solution of a pair is used if there is one; otherwise, the actions are planned. Pairs that need
    no action are omitted. Pairs whose plans exceed `max_episode_steps` are omitted too, and counted in
    `ExpertEpisodes.dropped`.

    Args:
        environment: Environment in training mode.
        submit: Whether plans end with Submit. If None, they do if `episode.require_submit` is set.

    Raises:
        ValueError: If a pair cannot be solved with the allowed operations. The message names the pair.
    """
    config = environment.config
    if config.episode.mode != "training":
        raise ValueError("expert episodes need an environment in training mode: set episode.mode=training")
    ends_with_submit = config.episode.require_submit if submit is None else submit
    episodes: list[tuple[int, int, ActionPlan]] = []
    dropped = 0
    for index, task in enumerate(environment.task_buffer):
        for pair in range(len(task.demos or task.tests)):
            plan = solution_plan(task, pair, config, submit=ends_with_submit)
            if len(plan) > config.episode.max_episode_steps:
                dropped += 1
            elif len(plan):
                episodes.append((index, pair, plan))
    tasks, pairs, plans = zip(*episodes, strict=True) if episodes else ((), (), ())
    return ExpertEpisodes(
        environment, np.array(tasks, np.int32), np.array(pairs, np.int32), tuple(plans), dropped
    )


_ENCODED_GRIDS: tuple[tuple[GridName, ...], ...] = (
    ("input", "working"),
    ("working", "target"),
    ("input", "working", "target"),
    ("working",),
)
"""Combinations of grids that recorded samples may contain."""


@dataclasses.dataclass(frozen=True)
class LabeledSteps:
    """Labeled steps of the successful episodes in a file. Each episode ends with Submit."""

    observations: PyTree
    """Observation before each step, with leading axis [steps]."""
    labels: ExpertLabels
    """Recorded action of each step, as the only label."""
    fingerprint: str
    """SHA-256 of the observations and actions."""

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.observations)[0])

    def sample(self, rng: np.random.Generator, count: int) -> tuple[PyTree, ExpertLabels]:
        """Sample `count` steps with replacement. Returns their observations and labels."""
        rows = rng.integers(len(self), size=count)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (self.observations, self.labels))


def read_recorded_episodes(path: Path, environment: ArcEnvironment) -> LabeledSteps:
    """Read the steps of the successful episodes in a `.jsonl` file of samples.

    If an episode ended with the correct grid but without Submit, a Submit step is added.

    Args:
        path: The file.
        environment: Environment whose observation and action formats are used.
    """
    see = environment.config.observation
    if see.target_grid or see.selected or see.clipboard or see.num_demonstrations or see.scalars:
        raise ValueError(
            "recorded episodes contain only the working grid and the input: disable the other parts of "
            "env.observation"
        )
    episodes: dict[str, list[Sample]] = {}
    for sample in read_samples(path):
        if sample.info is not None and sample.info.success and sample.info.episode_id is not None:
            episodes.setdefault(sample.info.episode_id, []).append(sample)
    if not episodes:
        raise ValueError(f"{path} contains no successful episode")
    collector = _StepCollector(path, environment)
    for samples in episodes.values():
        collector.add(sorted(samples, key=lambda sample: (sample.info and sample.info.step_index) or 0))
    return collector.steps()


class _StepCollector:
    """Decodes samples and collects the steps of episodes."""

    def __init__(self, path: Path, environment: ArcEnvironment) -> None:
        self.path, self.environment = path, environment
        self.step = jax.jit(environment.step)
        self.working: list[np.ndarray] = []
        self.inputs: list[np.ndarray] = []
        self.operations: list[int] = []
        self.cells: list[list[int]] = []

    def add(self, samples: list[Sample]) -> None:
        for sample in samples:
            grids, action = self._decode(sample)
            if self.environment.config.observation.input_grid and "input" not in grids:
                raise ValueError(
                    f"{self.path}: sample {sample.sample_id} does not contain the input, which the policy "
                    "observes: record with --grids input,working or set env.observation.input_grid=false"
                )
            operation, *cells = action.values()
            self._append(self._canvas(grids["working"]), self._canvas(grids.get("input")), operation, cells)
        if self.operations[-1] != Operation.SUBMIT:
            after = self._next_grid(self.working[-1], self.inputs[-1], self.operations[-1], self.cells[-1])
            self._append(after, self.inputs[-1], Operation.SUBMIT, [0] * len(self.cells[-1]))

    def _append(self, working: np.ndarray, input_grid: np.ndarray, operation: int, cells: list[int]) -> None:
        self.working.append(working)
        self.inputs.append(input_grid)
        self.operations.append(int(operation))
        self.cells.append(cells)

    def _decode(self, sample: Sample) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tokens = np.asarray(sample.input_ids, np.int32)
        selection_format = self.environment.config.action.selection_format
        for grids in _ENCODED_GRIDS:
            try:
                return ArcTokenizer(selection_format, grids).decode(tokens)
            except (ValueError, IndexError):
                continue
        raise ValueError(
            f"{self.path}: sample {sample.sample_id} is not an ARC step with {selection_format} actions"
        )

    def _canvas(self, grid: np.ndarray | None) -> np.ndarray:
        """Pad a grid with -1 to the size of the environment's canvas. None gives an empty canvas."""
        rows, columns = self.environment.config.grid_shape
        canvas = np.full((rows, columns), -1, np.int8)
        if grid is not None:
            if grid.shape[0] > rows or grid.shape[1] > columns:
                raise ValueError(
                    f"{self.path}: a grid of {grid.shape[0]}x{grid.shape[1]} does not fit the canvas of "
                    f"{rows}x{columns}; increase env.dataset.max_grid_height and max_grid_width"
                )
            canvas[: grid.shape[0], : grid.shape[1]] = grid
        return canvas

    def _next_grid(
        self, working: np.ndarray, input_grid: np.ndarray, operation: int, cells: list[int]
    ) -> Int[np.ndarray, "rows columns"]:
        """Compute the working grid after a step."""
        if operation == Operation.COPY_INPUT:
            return input_grid
        action = action_from_arrays(np.int32(operation), np.array(cells, np.int32))
        return np.asarray(self.step(self.environment.state_from_grid(working), action)[0].working_grid)

    def steps(self) -> LabeledSteps:
        allowed = self.environment.config.action.allowed_operations
        if allowed is not None and (illegal := sorted(set(self.operations) - set(allowed))):
            raise ValueError(f"{self.path}: operation {illegal[0]} is not in env.action.allowed_operations")
        working = jax.device_put(np.stack(self.working))
        observations: PyTree = working
        if not self.environment.config.observation.is_single_array:
            observations = ArcObservation(working, input_grid=jax.device_put(np.stack(self.inputs)))
        operations = np.array(self.operations, np.int32)[:, None]
        cells = np.array(self.cells, np.int32)[:, None]
        leaves = jax.tree.leaves((observations, operations, cells))
        digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        labels = ExpertLabels(action_from_arrays(operations, cells), operations >= 0)
        return LabeledSteps(observations, labels, digest)
