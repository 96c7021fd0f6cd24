"""Collects a policy's answers to the tasks of a dataset, and saves them as a submission file for ARC Prize,
together with images of the unsolved tasks."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drawsvg as draw
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from phalanx.arc.actions import Action, random_action
from phalanx.arc.bitplanes import area_bits, unpack_cells
from phalanx.arc.config import GENERATED, ArcConfig
from phalanx.arc.datasets import load_tasks
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.evaluation import ArcEvalCommandConfig, copy_solves, episode_keys, run_episodes
from phalanx.arc.operations import NUM_OPERATIONS, Operation, operation_name
from phalanx.arc.state import ArcState
from phalanx.arc.task_files import ALL
from phalanx.arc.tasks import ArcTask, format_shape
from phalanx.core.environment import Key
from phalanx.core.episodes import EpisodeResults
from phalanx.formatting import format_count, format_percent
from phalanx.io.atomic import atomic_write
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.svg import save_svg

_BATCH_SIZE = 256
_NO_ANSWER = [[0]]
"""Grid that is written to the submission file if nothing was submitted, because the file format requires a
grid."""
_NUM_GENERATED_TASKS = 200

_TEST_PAIR_SWITCHES = {
    Operation.NEXT_TEST_PAIR,
    Operation.PREVIOUS_TEST_PAIR,
    Operation.FIRST_UNSOLVED_TEST_PAIR,
}

Grid = list[list[int]]


@dataclasses.dataclass(frozen=True)
class TaskSubmission:
    """Submitted answers to one task."""

    task: ArcTask
    attempts: tuple[tuple[Grid | None, ...], ...]
    """For each attempt, the submitted grids, one per test pair. A grid is None if nothing was submitted for
    the pair."""
    steps: tuple[int, ...]
    """Number of steps in each attempt."""
    fits_canvas: bool = True
    """True if the task fits on the canvas. Otherwise, `attempts` is empty."""

    @property
    def correct(self) -> list[bool | None]:
        """For each test pair, whether one of the attempts is correct. None if the output is secret."""
        return [
            None if pair.output is None else any(grids[n] == pair.output.tolist() for grids in self.attempts)
            for n, pair in enumerate(self.task.tests)
        ]

    @property
    def solved(self) -> bool | None:
        """Whether all test outputs are correct. None if one of the outputs is secret."""
        return None if None in self.correct else all(self.correct)


@dataclasses.dataclass(frozen=True)
class Submission:
    """Submitted answers to the tasks of a dataset."""

    answers: tuple[TaskSubmission, ...]
    """Submitted answers, one entry per task."""
    operations: dict[str, int]
    """Number of times that each operation was used. The keys are the operations' display names."""
    name: str = ""
    """Name of the dataset with its split, or the path to the tasks. `phalanx eval` uses it as the name of the
    folder in which the files are saved."""
    num_attempts: int = 2
    """Number of attempts per task."""
    random: "Submission | None" = None
    """Submission of a random policy, as a baseline; None if there is none."""

    @property
    def known(self) -> list[TaskSubmission]:
        """Answers to the tasks whose test outputs are all known."""
        return [answer for answer in self.answers if answer.solved is not None]

    @property
    def num_solved(self) -> int:
        """Number of solved tasks. Tasks with secret outputs are not counted."""
        return sum(bool(answer.solved) for answer in self.answers)

    @property
    def num_fitting(self) -> int:
        """Number of tasks that fit on the canvas."""
        return sum(answer.fits_canvas for answer in self.answers)

    def submission(self) -> dict[str, list[dict[str, Grid]]]:
        """Return the contents of ARC Prize's submission file: for each task id, a list with one dictionary
        per test pair, whose keys are `attempt_1`, `attempt_2` and so on."""
        attempts = max(self.num_attempts, 2)
        return {
            answer.task.id: [
                {f"attempt_{k + 1}": _submitted_grid(answer, k, test) for k in range(attempts)}
                for test in range(len(answer.task.tests))
            ]
            for answer in self.answers
        }

    def as_record(self) -> dict[str, Any]:
        """Return the results as a JSON record. The success rate is the fraction of solved tasks among all
        tasks whose test outputs are known."""
        known = self.known
        baselines = {}
        if known:
            baselines["copy_input"] = sum(copy_solves(answer.task) for answer in known) / len(known)
            if self.random is not None:
                baselines["random"] = self.random.num_solved / len(known)
        return {
            "split": self.name,
            "mode": "submission",
            "attempts": self.num_attempts,
            "num_tasks": len(self.answers),
            "num_fitting": self.num_fitting,
            "num_known": len(known),
            "num_solved": self.num_solved,
            "success_rate": self.num_solved / len(known) if known else None,
            "baselines": baselines,
        }

    def task_records(self) -> list[dict[str, Any]]:
        """Return one JSON record per task."""
        return [
            {
                "task": answer.task.id,
                "family": answer.task.family,
                "solved": answer.solved,
                "num_outputs": len(answer.task.tests),
                "num_correct": answer.correct.count(True),
                "submitted": any(grid is not None for attempt in answer.attempts for grid in attempt),
                "fits_canvas": answer.fits_canvas,
                "steps": list(answer.steps),
            }
            for answer in self.answers
        ]

    def describe(self) -> list[str]:
        """Return the results as lines of text: how many tasks fit on the canvas, how many are solved, and how
        many the baselines solve."""
        lines = [f"{self.num_fitting} of {format_count(len(self.answers), 'task')} fit the canvas"]
        known = self.known
        if known:
            outputs = [correct for answer in known for correct in answer.correct]
            solved = _fraction(self.num_solved, len(known))
            lines.append(f"solved: {solved}, {outputs.count(True)} of {len(outputs)} outputs")
            copied = _fraction(sum(copy_solves(answer.task) for answer in known), len(known))
            random = "" if self.random is None else f", random actions {self.random.num_solved}"
            lines.append(f"Baselines: submitting the input solves {copied}{random}, submitting nothing 0")
        if len(known) < len(self.answers):
            lines.append(f"{format_count(len(self.answers) - len(known), 'task')} with secret outputs")
        return lines

    def save(self, folder: Path, title: str | None = None) -> None:
        """Save `submission.json`, `tasks.jsonl`, `summary.json`, `failures.svg` and `operations.svg` to a
        folder.

        If `folder` is a subfolder of a run's `submissions` folder, the report of the run shows the
        submission.

        Args:
            folder: Folder to create.
            title: Heading in the report. If None, the heading consists of the dataset name and the number of
                attempts.
        """
        from phalanx.arc.rendering.svg_task import draw_operations

        folder.mkdir(parents=True, exist_ok=True)
        title = f"{self.name}, {format_count(self.num_attempts, 'attempt')}" if title is None else title
        summary = {"title": title, "lines": self.describe(), "operations": self.operations}
        texts = {
            "submission.json": json.dumps(self.submission(), separators=(",", ":")),
            "tasks.jsonl": "".join(json.dumps(record) + "\n" for record in self.task_records()),
            "summary.json": json.dumps(summary, indent=1),
        }
        for name, text in texts.items():
            with atomic_write(folder / name, "w") as file:
                file.write(text)
        save_svg(draw_operations(self.operations), folder / "operations.svg")
        save_svg(self.draw_failures(), folder / "failures.svg")

    def draw_failures(self, max_tasks: int = 24) -> draw.Drawing:
        """Draw the submitted and the expected outputs of the first `max_tasks` tasks that were answered
        incorrectly or have secret outputs."""
        from phalanx.arc.rendering.svg_task import draw_failed_outputs

        failed = [answer for answer in self.answers if answer.fits_canvas and not answer.solved]
        grids = {}
        for answer in failed[:max_tasks]:
            for test, pair in enumerate(answer.task.tests):
                if not answer.correct[test]:
                    suffix = f", test {test + 1}" if len(answer.task.tests) > 1 else ""
                    submitted = answer.attempts[0][test]
                    predicted = None if submitted is None else np.array(submitted, np.int8)
                    grids[f"{answer.task.id}{suffix}"] = (pair.input, predicted, pair.output)
        wrong = sum(answer.solved is False for answer in failed)
        fitting = [answer for answer in self.known if answer.fits_canvas]
        secret = f", {len(failed) - wrong} with secret outputs" if len(failed) > wrong else ""
        title = f"Not solved: {wrong} of {format_count(len(fitting), 'task')} that fit{secret}"
        return draw_failed_outputs(grids, title)


def _fraction(number: int, total: int) -> str:
    return f"{number} of {format_count(total, 'task')} ({format_percent(number / total)})"


def _submitted_grid(answer: TaskSubmission, attempt: int, test: int) -> Grid:
    """Return the grid of an attempt at a test pair. If nothing was submitted in this attempt, return the grid
    of the latest earlier attempt with a submission, or a single black cell if there is no such attempt."""
    grids = [grid for grids in answer.attempts[: attempt + 1] if (grid := grids[test])]
    return grids[-1] if grids else _NO_ANSWER


def evaluate_on_dataset(
    config: ArcConfig, network: PolicyNetwork, settings: ArcEvalCommandConfig
) -> Submission:
    """Attempt the tasks of `settings.dataset` with a policy, and return the submission. As a baseline, the
    result also contains the submission of a random policy.

    Args:
        config: Settings of the environment in which the policy was trained.
        network: Policy network.
        settings: Dataset, number of attempts and random seed.
    """
    environment, too_large = submission_env(config, settings.dataset)
    submission = submit(
        environment, network, attempts=settings.num_attempts, seed=settings.sampling_seed, too_large=too_large
    )
    baseline = submit_random(environment, settings.sampling_seed)
    return dataclasses.replace(submission, name=settings.dataset, random=baseline)


def submission_env(config: ArcConfig, dataset: str) -> tuple[ArcEnvironment, list[ArcTask]]:
    """Create an environment in evaluation mode with the tasks of a dataset.

    Args:
        config: Settings of the environment. If the tasks are generated, the config also determines their
            families and the size of their grids.
        dataset: Name of a dataset or a path, with an optional split, such as `arc-agi-1/evaluation`.

    Returns:
        The environment, and the tasks that do not fit on its canvas.
    """
    source, split = dataset, ALL
    if not Path(dataset).exists() and "/" in dataset:
        source, split = dataset.rsplit("/", 1)
    data = config.dataset
    families, max_size = (data.families, config.grid_shape) if source == GENERATED else (None, None)
    tasks = load_tasks(
        source, split, families=families, max_size=max_size, num_tasks=_NUM_GENERATED_TASKS, seed=data.seed
    )
    for task in tasks:
        if not task.tests:
            raise ValueError(f"{dataset}: task {task.id!r} has no test pair to answer")
    fitting = [task for task in tasks if task.fits(config.grid_shape)]
    too_large = [task for task in tasks if not task.fits(config.grid_shape)]
    if not fitting:
        canvas = format_shape(config.grid_shape)
        raise ValueError(f"none of the {len(tasks)} tasks of {dataset} fits a canvas of {canvas}")
    episode = config.episode.model_copy(update={"mode": "evaluation", "attempts": 1})
    return ArcEnvironment.create(config.model_copy(update={"episode": episode}), fitting), too_large


def submit(
    environment: ArcEnvironment,
    network: PolicyNetwork | None,
    *,
    attempts: int = 1,
    seed: int = 0,
    too_large: Sequence[ArcTask] = (),
) -> Submission:
    """Attempt every task with a policy.

    Each attempt consists of one episode, or of one episode per test pair if no allowed operation switches
    between test pairs. The policy knows nothing about previous attempts. In the first attempt, it takes the
    most probable actions. In all other attempts, actions are sampled.

    Args:
        environment: Environment in evaluation mode.
        network: Policy network. If None, all attempts take random actions.
        attempts: Number of attempts per task.
        seed: Random seed for sampled attempts.
        too_large: Tasks that do not fit on the canvas. They are included in the result without attempts.
    """
    if environment.answers is None:
        raise ValueError("answers are submitted in evaluation mode: set episode.mode=evaluation")
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, got {attempts}")
    config, buffer = environment.config, environment.task_buffer
    act = eqx.Partial(_random_action, config) if network is None else eqx.Partial(select_action, network)
    by_task = not _TEST_PAIR_SWITCHES.isdisjoint(config.action.operations)
    num_episodes = [1 if by_task else len(task.tests) for task in buffer]
    episodes = np.array([(task, test) for task, count in enumerate(num_episodes) for test in range(count)])
    # Fingerprints without the answers, so that the random numbers do not depend on them.
    fingerprints = [buffer.without_answers[task].fingerprint for task in episodes[:, 0].tolist()]
    answers = [TaskSubmission(task, (), ()) for task in buffer]
    counts = np.zeros(NUM_OPERATIONS, np.int64)
    for attempt in range(attempts):
        keys = None
        if attempt or network is None:
            keys = episode_keys(f"{seed}/{attempt}", fingerprints, episodes[:, 1], 1)
        cells, sizes, lengths, used = run_episodes(
            _submitted, environment, act, episodes, keys, _BATCH_SIZE, record=True
        )
        counts += used.sum(axis=0)
        for index, answer in enumerate(answers):
            (rows,) = np.nonzero(episodes[:, 0] == index)
            grids = tuple(
                cells[row, test, : sizes[row, test, 0], : sizes[row, test, 1]].tolist() or None
                for test, row in enumerate(np.resize(rows, len(answer.task.tests)))
            )
            steps = int(lengths[rows].sum())
            answers[index] = TaskSubmission(answer.task, (*answer.attempts, grids), (*answer.steps, steps))
    answers += [TaskSubmission(task, (), (), fits_canvas=False) for task in too_large]
    operations = {operation_name(k): int(count) for k, count in enumerate(counts) if count}
    return Submission(tuple(answers), operations, num_attempts=attempts)


def submit_random(environment: ArcEnvironment, seed: int = 0) -> Submission:
    """Attempt every task once with a random policy, as a baseline."""
    return submit(environment, None, seed=seed)


def _random_action(config: ArcConfig, observation: PyTree, key: Key) -> Action:
    """Sample an allowed operation and random cells of the canvas."""
    rows, columns = (jnp.int32(side) for side in config.grid_shape)
    return random_action(key, config, config.action.operations, rows, columns)


def _submitted(environment: ArcEnvironment, _: ArcState, results: EpisodeResults) -> tuple[Array, ...]:
    """Return the submitted grids of each episode, their sizes, the number of steps, and the number of uses of
    each operation."""
    submission = results.final_states.submission
    sizes = submission.submitted_sizes[:, 0]
    rows, columns = environment.config.grid_shape
    area = area_bits(sizes[..., 0], sizes[..., 1], rows)
    cells = unpack_cells(submission.submitted_grids[:, 0], area, columns)
    assert results.step_states is not None
    is_running = jnp.arange(environment.max_episode_steps)[:, None] < results.lengths
    operations = jnp.where(is_running, results.step_states.last_operation, -1)
    used = jnp.sum(operations[..., None] == jnp.arange(NUM_OPERATIONS), axis=0)
    return cells, sizes, results.lengths, used
