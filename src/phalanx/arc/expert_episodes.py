"""Planned and recorded episodes as labeled steps, for imitation learning."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int8, Int32, PyTree

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.episode_tokens import ArcTokenizer, grid_names
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from phalanx.arc.planner import ActionPlan, action_from_arrays, solution_plan
from phalanx.arc.tasks import format_shape
from phalanx.core.expert import ExpertLabels
from phalanx.data.samples import Sample, load_samples


class PlannedEpisodeSteps(eqx.Module):
    """The steps of a batch of complete episodes, as arrays. The steps of each episode are consecutive and in
    order."""

    observation: Any
    """Observation before each step, with leading axis [steps]."""
    action: Action
    """Action of each step, with leading axis [steps]."""
    episode: Int32[np.ndarray, " steps"]
    """For each step, the index of its episode in `PlannedEpisodes.plans`."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedEpisodes:
    """Episodes with planned actions that lead to the correct grid. Call `batches` to replay the episodes and
    get their steps."""

    environment: ArcEnvironment
    """Environment in which the episodes are replayed."""
    tasks: Int32[np.ndarray, " episodes"]
    """Index of each episode's task in `environment.task_buffer`."""
    pairs: Int32[np.ndarray, " episodes"]
    """Index of each episode's pair; see the `pairs` argument of `ArcEnvironment.batch_reset_to`."""
    plans: tuple[ActionPlan, ...]
    """Planned actions of each episode."""
    dropped: int
    """Number of pairs that were omitted because their plans exceed the step limit."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def num_steps(self) -> int:
        """Total number of steps in all episodes."""
        return sum(map(len, self.plans))

    def batches(self, batch_size: int = 256) -> Iterator[PlannedEpisodeSteps]:
        """Replay the episodes in batches and yield the steps of each batch.

        Episodes are sorted by length, so that the episodes in a batch have similar lengths.

        Args:
            batch_size: Number of episodes per batch. The last batch may be smaller.
        """
        order = np.argsort([len(plan) for plan in self.plans], kind="stable")
        step = jax.jit(self.environment.batch_step)
        for first in range(0, len(order), batch_size):
            yield self._replay(order[first : first + batch_size], batch_size, step)

    def _replay(self, episodes: np.ndarray, batch_size: int, step: Any) -> PlannedEpisodeSteps:
        # The last batch is padded with copies of its episodes, so that one compilation serves all batches.
        slots = np.resize(episodes, batch_size)
        plans = [self.plans[slot] for slot in slots]
        shape, cells = (len(plans), max(map(len, plans))), plans[0].selections
        operations = np.full(shape, -1, np.int32)  # -1 after the end of a plan
        selections = np.zeros((*shape, *cells.shape[1:]), cells.dtype)
        for row, plan in enumerate(plans):
            operations[row, : len(plan)] = plan.operations
            selections[row, : len(plan)] = plan.selections
        valid = operations >= 0
        valid[len(episodes) :] = False
        starts = jnp.asarray(self.tasks[slots]), jnp.asarray(self.pairs[slots])
        states, observations = self.environment.batch_reset_to(*starts)
        observed = []
        for time in range(operations.shape[1]):
            observed.append(jax.tree.map(np.asarray, observations))
            actions = action_from_arrays(operations[:, time], selections[:, time])
            states, observations, *_ = step(states, actions)
        for episode in episodes[~np.asarray(states.solved)[: len(episodes)]]:
            name = self.environment.task_buffer[int(self.tasks[episode])].id
            raise RuntimeError(
                f"task {name!r}: the plan for pair {self.pairs[episode]} does not end with the output"
            )
        return PlannedEpisodeSteps(
            jax.tree.map(lambda *leaves: np.stack(leaves, axis=1)[valid], *observed),
            action_from_arrays(operations[valid], selections[valid]),
            np.broadcast_to(slots[:, None], valid.shape)[valid].astype(np.int32),
        )


def plan_expert_episodes(environment: ArcEnvironment) -> PlannedEpisodes:
    """Plan an episode for every pair with which an episode of the environment can start.

    If a pair has a known solution, the solution is used; otherwise, the actions are planned. Pairs that need
    no action are omitted. Pairs whose plans exceed `max_episode_steps` are also omitted, and are counted in
    `PlannedEpisodes.dropped`. Plans end with Submit if `episode.require_submit` is set.

    Args:
        environment: Environment in training mode.

    Raises:
        ValueError: If a pair cannot be solved with the allowed operations. The message names the pair.
    """
    config = environment.config
    if config.episode.mode != "training":
        raise ValueError("expert episodes need an environment in training mode: set episode.mode=training")
    episodes: list[tuple[int, int, ActionPlan]] = []
    dropped = 0
    for index, task in enumerate(environment.task_buffer):
        for pair in range(len(task.demos or task.tests)):
            plan = solution_plan(task, pair, config, submit=config.episode.require_submit)
            if len(plan) > config.episode.max_episode_steps:
                dropped += 1
            elif len(plan):
                episodes.append((index, pair, plan))
    tasks, pairs, plans = zip(*episodes, strict=True) if episodes else ((), (), ())
    return PlannedEpisodes(
        environment, np.array(tasks, np.int32), np.array(pairs, np.int32), tuple(plans), dropped
    )


@dataclasses.dataclass(frozen=True)
class LabeledSteps:
    """The steps of all successful episodes in a file, labeled with the recorded actions. Each episode ends
    with Submit."""

    observations: PyTree
    """Observation before each step, with a leading axis [steps]."""
    labels: ExpertLabels
    """Labels of the steps. Each step has exactly one label, the recorded action."""
    fingerprint: str
    """SHA-256 of the observations and actions."""

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.observations)[0])

    def sample(self, rng: np.random.Generator, count: int) -> tuple[PyTree, ExpertLabels]:
        """Sample `count` steps with replacement. Returns their observations and labels."""
        rows = rng.integers(len(self), size=count)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (self.observations, self.labels))


def load_recorded_episodes(path: Path, environment: ArcEnvironment) -> LabeledSteps:
    """Read the steps of the successful episodes in a `.jsonl` file of samples.

    If an episode ended with the correct grid but without Submit, a Submit step is added.

    Args:
        path: The file.
        environment: Environment whose observation and action formats are used.
    """
    config = environment.config
    see, selection_format = config.observation, config.action.selection_format
    if see.target_grid or see.selected or see.clipboard or see.num_demonstrations or see.scalars:
        raise ValueError(
            "recorded episodes contain only the working grid and the input: disable the other parts of "
            "env.observation"
        )
    episodes: dict[str, list[Sample]] = {}
    for sample in load_samples(path):
        if sample.info is not None and sample.info.success and sample.info.episode_id is not None:
            episodes.setdefault(sample.info.episode_id, []).append(sample)
    if not episodes:
        raise ValueError(f"{path} contains no successful episode")
    step = jax.jit(environment.step)
    steps: list[tuple[np.ndarray, np.ndarray, int, list[int]]] = []
    for samples in episodes.values():
        for sample in sorted(samples, key=lambda sample: (sample.info and sample.info.step_index) or 0):
            name = f"{path}: sample {sample.sample_id}"
            grids, (operation, *cells) = _decode(sample, selection_format, name)
            if see.input_grid and "input" not in grids:
                raise ValueError(
                    f"{name} does not contain the input, which the policy observes: record with "
                    "--grids input,working or set env.observation.input_grid=false"
                )
            working, given = (_pad(grids.get(key, _NO_CELLS), config, path) for key in ("working", "input"))
            if operation not in config.action.operations:
                raise ValueError(f"{path}: operation {operation} is not in env.action.allowed_operations")
            steps.append((working, given, operation, cells))
        if operation != Operation.SUBMIT:
            after = given
            if operation != Operation.COPY_INPUT:
                action = action_from_arrays(np.int32(operation), np.array(cells, np.int32))
                after = np.asarray(step(environment.state_from_grid(working), action)[0].working_grid)
            steps.append((after, given, Operation.SUBMIT, [0] * len(cells)))
    working_grids, inputs, *actions = zip(*steps, strict=True)
    observations: PyTree = jax.device_put(np.stack(working_grids))
    if not see.is_single_array:
        observations = ArcObservation(observations, input_grid=jax.device_put(np.stack(inputs)))
    operations, selections = (np.array(column, np.int32)[:, None] for column in actions)
    leaves = jax.tree.leaves((observations, operations, selections))
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
    labels = ExpertLabels(action_from_arrays(operations, selections), operations >= 0)
    return LabeledSteps(observations, labels, digest)


def _decode(
    sample: Sample, selection_format: SelectionFormat, name: str
) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Return the grids of a sample by name, and the values of its action: the operation id, followed by the
    selected cells.

    Args:
        sample: The sample.
        selection_format: Format of the actions.
        name: Name of the sample for error messages.
    """
    tokens = np.asarray(sample.input_ids, np.int32)
    if "working" in (names := grid_names(tokens)):
        with contextlib.suppress(ValueError, IndexError):
            grids, action = ArcTokenizer(selection_format, names).decode(tokens)
            return grids, list(action.values())
    raise ValueError(f"{name} is not an ARC step with {selection_format} actions")


_NO_CELLS = np.zeros((0, 0), np.int8)


def _pad(grid: np.ndarray, config: ArcConfig, path: Path) -> Int8[np.ndarray, "rows columns"]:
    """Pad a grid with -1 to the size of the canvas."""
    missing = np.subtract(config.grid_shape, grid.shape)
    if (missing < 0).any():
        raise ValueError(
            f"{path}: a grid of {format_shape(grid.shape)} does not fit the canvas of "
            f"{format_shape(config.grid_shape)}; increase env.dataset.max_grid_height and max_grid_width"
        )
    return np.pad(grid, [(0, count) for count in missing], constant_values=-1)
