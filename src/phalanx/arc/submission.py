"""Answers to ARC tasks as they are handed in: attempts, a submission file, what was right and what was not.

Rates over tasks and families, for the curve of a training, are in `arc_evaluation`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drawsvg as draw
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, PyTree, UInt32

from phalanx.arc.actions import Action, random_action
from phalanx.arc.bitplanes import area_bits, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.datasets import GENERATED
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.evaluation import copy_solves, episode_keys
from phalanx.arc.operations import NUM_OPERATIONS, Operation, operation_name
from phalanx.arc.task_files import ALL, load_tasks
from phalanx.arc.tasks import ArcTask
from phalanx.core.environment import Key
from phalanx.core.episodes import Act, map_batches, rollout_episodes
from phalanx.formatting import format_count, format_percent
from phalanx.io.atomic import atomic_write
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.svg import save_svg

_BATCH_SIZE = 256
_NO_ANSWER = [[0]]
"""What stands in a submission where nothing was handed in; the format wants a grid everywhere."""

_TO_OTHER_TESTS = {Operation.NEXT_TEST_PAIR, Operation.PREVIOUS_TEST_PAIR, Operation.FIRST_UNSOLVED_TEST_PAIR}

Grid = list[list[int]]


@dataclasses.dataclass(frozen=True)
class TaskSubmission:
    """What was handed in for one task."""

    task: ArcTask
    attempts: tuple[tuple[Grid | None, ...], ...]
    """A grid for each test pair, attempt by attempt; None where none was handed in."""
    steps: tuple[int, ...]
    """Of each attempt."""
    fits: bool = True
    """Whether the task fits the canvas; nothing was tried where it does not."""

    def right(self, number: int) -> bool | None:
        """Whether an attempt at that test pair is right; None where the output is secret."""
        output = self.task.tests[number].output
        if output is None:
            return None
        return any(attempt[number] == output.tolist() for attempt in self.attempts)

    @property
    def solved(self) -> bool | None:
        """Whether every output is right; None where one is secret."""
        found = [self.right(number) for number in range(len(self.task.tests))]
        return None if None in found else all(found)


@dataclasses.dataclass(frozen=True)
class Submission:
    """What was handed in for all tasks of a data set."""

    answers: tuple[TaskSubmission, ...]
    operations: dict[str, int]
    """How often each operation was carried out."""

    @property
    def known(self) -> list[TaskSubmission]:
        """Those whose outputs are not secret."""
        return [answer for answer in self.answers if answer.solved is not None]

    def submission(self, attempts: int = 2) -> dict[str, list[dict[str, Grid]]]:
        """The file that ARC Prize takes: for each task and test pair `attempt_1`, `attempt_2`."""
        return {
            answer.task.id: [
                {f"attempt_{k + 1}": _grid_of(answer, k, number) for k in range(attempts)}
                for number in range(len(answer.task.tests))
            ]
            for answer in self.answers
        }

    def rows(self) -> list[dict[str, Any]]:
        """A line for each task."""
        return [
            {
                "task": answer.task.id,
                "family": answer.task.family,
                "solved": answer.solved,
                "outputs": len(answer.task.tests),
                "outputs_right": sum(answer.right(n) is True for n in range(len(answer.task.tests))),
                "handed_in": any(grid is not None for attempt in answer.attempts for grid in attempt),
                "fits": answer.fits,
                "steps": list(answer.steps),
            }
            for answer in self.answers
        ]

    def describe(self) -> str:
        """A few lines: what fits, what is right, and what copying the input would get."""
        fitting = sum(answer.fits for answer in self.answers)
        lines = [f"{fitting} of {format_count(len(self.answers), 'task')} fit this canvas"]
        known = self.known
        if known:
            solved = sum(bool(answer.solved) for answer in known)
            outputs = [answer.right(n) for answer in known for n in range(len(answer.task.tests))]
            copied = sum(copy_solves(answer.task) for answer in known)
            lines += [
                f"handed in right: {solved} of {len(known)} tasks ({format_percent(solved / len(known))}), "
                f"{sum(map(bool, outputs))} of {len(outputs)} outputs",
                f"copying the input: {copied} of {len(known)} tasks ({format_percent(copied / len(known))}); "
                "handing nothing in: 0",
            ]
        if len(known) < len(self.answers):
            lines.append(f"{format_count(len(self.answers) - len(known), 'task')} with secret outputs")
        return "\n".join(lines)

    def save(self, folder: Path, title: str, attempts: int = 2) -> None:
        """`submission.json`, `tasks.jsonl`, `summary.json`, `failures.svg` and `operations.svg` in a folder.

        The report of a run shows what it finds in its folder `submitted_grids`.
        """
        from phalanx.arc.rendering.svg_task import draw_operations

        folder.mkdir(parents=True, exist_ok=True)
        summary = {"title": title, "lines": self.describe().splitlines(), "operations": self.operations}
        texts = {
            "submission.json": json.dumps(self.submission(max(attempts, 2)), separators=(",", ":")),
            "tasks.jsonl": "".join(json.dumps(row) + "\n" for row in self.rows()),
            "summary.json": json.dumps(summary, indent=1),
        }
        for name, text in texts.items():
            with atomic_write(folder / name, "w") as file:
                file.write(text)
        save_svg(draw_operations(self.operations), folder / "operations.svg")
        save_svg(self.draw_failures(), folder / "failures.svg")

    def draw_failures(self, most: int = 24) -> draw.Drawing:
        """The first tasks that are not known to be right, what was handed in beside what was expected."""
        from phalanx.arc.rendering.svg_task import FailedOutput, draw_failed_outputs

        failed = [answer for answer in self.answers if answer.fits and not answer.solved]
        shown = [
            FailedOutput(
                f"{answer.task.id}{f', test {number + 1}' if len(answer.task.tests) > 1 else ''}",
                np.asarray(pair.input),
                None if (grid := answer.attempts[0][number]) is None else np.array(grid, np.int8),
                pair.output,
            )
            for answer in failed[:most]
            for number, pair in enumerate(answer.task.tests)
            if not answer.right(number)
        ]
        wrong = sum(answer.solved is False for answer in failed)
        fitting = [answer for answer in self.known if answer.fits]
        secret = f", {len(failed) - wrong} with secret outputs" if len(failed) > wrong else ""
        return draw_failed_outputs(
            shown, f"Not right: {wrong} of {format_count(len(fitting), 'task')} that fit{secret}"
        )


def _grid_of(answer: TaskSubmission, attempt: int, number: int) -> Grid:
    """The grid of an attempt; of the last there was where there were fewer."""
    made = [grids[number] for grids in answer.attempts[: attempt + 1] if grids[number] is not None]
    return made[-1] or _NO_ANSWER if made else _NO_ANSWER


def submit(
    environment: ArcEnvironment,
    network: PolicyNetwork,
    *,
    attempts: int = 1,
    greedy: bool = True,
    seed: int = 0,
    too_large: Sequence[ArcTask] = (),
) -> Submission:
    """Let a policy work on every task: the first attempt `greedy`, the others by drawing its actions.

    Each attempt is an episode of its own, which tells the policy nothing of the one before; for a policy that
    has no operation to go from one test pair to another, it is an episode for each of them. Tasks that are
    `too_large` for the canvas are counted, without an answer.
    """
    act = eqx.Partial(select_action, network)
    return _submit(environment, act, attempts=attempts, greedy=greedy, seed=seed, too_large=too_large)


def _submit(
    environment: ArcEnvironment,
    act: Act,
    *,
    attempts: int = 1,
    greedy: bool = True,
    seed: int = 0,
    too_large: Sequence[ArcTask] = (),
) -> Submission:
    if environment.answers is None:
        raise ValueError("answers are handed in in evaluation; this environment's mode is training")
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, got {attempts}")
    buffer = environment.task_buffer
    made: list[list[tuple[Grid | None, ...]]] = [[] for _ in buffer]
    steps: list[list[int]] = [[] for _ in buffer]
    counts = np.zeros(NUM_OPERATIONS, np.int64)
    whole = not _TO_OTHER_TESTS.isdisjoint(environment.config.action.operations)
    episodes = np.array(
        [(n, test) for n, task in enumerate(buffer) for test in range(1 if whole else len(task.tests))],
        np.int32,
    )
    # Of the tasks as the policy sees them: what it draws must not depend on the answers.
    fingerprints = [buffer.without_answers[task].fingerprint for task in episodes[:, 0].tolist()]
    for attempt in range(attempts):
        words = None
        if attempt or not greedy:
            words = episode_keys(f"{seed}/{attempt}", fingerprints, episodes[:, 1], 1)

        def batch(rows: np.ndarray, words: UInt32[np.ndarray, "tasks 2"] | None = words) -> tuple[Array, ...]:
            keys = None if words is None else jax.device_put(words[rows])
            return _attempt(environment, act, jax.device_put(episodes[rows]), keys)

        cells, sizes, lengths, used = map_batches(batch, len(episodes), _BATCH_SIZE)
        counts += used.sum(axis=0)
        for index, task in enumerate(buffer):
            (own,) = np.nonzero(episodes[:, 0] == index)
            of_test = [own[0] if whole else own[test] for test in range(len(task.tests))]
            made[index].append(
                tuple(_grid(cells[row, test], sizes[row, test]) for test, row in enumerate(of_test))
            )
            steps[index].append(int(lengths[own].sum()))
    answers = [
        TaskSubmission(task, tuple(made[index]), tuple(steps[index])) for index, task in enumerate(buffer)
    ]
    answers += [TaskSubmission(task, (), (), fits=False) for task in too_large]
    names = {operation_name(k): int(count) for k, count in enumerate(counts) if count}
    return Submission(tuple(answers), names)


def _grid(cells: np.ndarray, size: np.ndarray) -> Grid | None:
    return cells[: size[0], : size[1]].tolist() if size[0] else None


@eqx.filter_jit
def _attempt(
    environment: ArcEnvironment,
    act: Act,
    episodes: Int32[Array, "batch 2"],
    words: UInt32[Array, "batch 2"] | None,
) -> tuple[Array, ...]:
    """The grids that were handed in with their sizes, the steps taken, and the uses of each operation."""
    states, observations = environment.batch_reset_to(episodes[:, 0], episodes[:, 1])
    keys = None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")
    limit = environment.config.episode.max_episode_steps
    played = rollout_episodes(environment, act, states, observations, keys, limit, record=True)
    work = played.final_states.submission
    sizes = work.submitted_sizes[:, 0]
    rows, columns = environment.config.grid_shape
    cells = unpack_cells(work.submitted_grids[:, 0], area_bits(sizes[..., 0], sizes[..., 1], rows), columns)
    time = jnp.arange(limit)[:, None]
    assert played.step_states is not None
    operations = jnp.where(time < played.lengths, played.step_states.last_operation, -1)
    used = jnp.sum(operations[..., None] == jnp.arange(NUM_OPERATIONS), axis=0)
    return cells, sizes, played.lengths, used


def submit_random(environment: ArcEnvironment, seed: int = 0) -> Submission:
    """Submit one attempt of random actions at each task, as a baseline."""
    act = eqx.Partial(_random_action, environment.config)
    return _submit(environment, act, greedy=False, seed=seed)


def _random_action(config: ArcConfig, observation: PyTree, key: Key) -> Action:
    """Sample any allowed operation on any cells of the canvas."""
    rows, columns = (jnp.int32(side) for side in config.grid_shape)
    return random_action(key, config, config.action.operations, rows, columns)


def submission_env(config: ArcConfig, data: str) -> tuple[ArcEnvironment, list[ArcTask]]:
    """The environment that examines on a data set by a config's rules, and the tasks too large for it.

    `data` is a data set or a path, with a split after a slash where it has several: `arc-agi-1/evaluation`.
    Generated tasks are of the config's families and sizes.
    """
    source, split = data, ALL
    if not Path(data).exists() and "/" in data:
        source, split = data.rsplit("/", 1)
    rows, columns = config.grid_shape
    made: dict[str, Any] = {}
    if source == GENERATED:
        own = config.dataset
        made = {"families": own.families, "max_size": config.grid_shape, "num_tasks": 200, "seed": own.seed}
    tasks = [task for task in load_tasks(source, split, **made) if task.tests]
    fitting = [task for task in tasks if task.max_shape[0] <= rows and task.max_shape[1] <= columns]
    if not fitting:
        raise ValueError(f"none of the {len(tasks)} tasks of {data} fits a canvas of {rows}x{columns}")
    rules = config.episode.model_copy(update={"mode": "evaluation", "attempts": 1})
    environment = ArcEnvironment.create(config.model_copy(update={"episode": rules}), fitting)
    return environment, [task for task in tasks if task not in set(fitting)]
