"""Evaluation of ARC policies: success rate by task and family, pass@k, and baselines."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, UInt32
from pydantic import Field

from phalanx.arc.config import GENERATED, ArcConfig
from phalanx.arc.datasets import config_tasks
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, format_shape
from phalanx.core.episodes import Act, EpisodeResults, map_batches, rollout_episodes
from phalanx.core.evaluation import EvaluationConfig
from phalanx.formatting import format_percent
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.statistics import mean_pass_at_k

if TYPE_CHECKING:
    from phalanx.arc.env import ArcEnvironment

DecodingMode = Literal["greedy", "sampled"]

_BATCH_SIZE = 1024
NO_FAMILY = "no family"
"""Name of the group of tasks that have no family."""


class ArcEvaluationConfig(EvaluationConfig):
    """Settings for evaluations on ARC tasks during training."""

    split: str = "evaluation"
    """Split of `env.dataset.source` to evaluate on. Generated tasks differ between splits. If this equals
    `env.dataset.split`, the policy is evaluated on the training tasks."""
    num_generated_tasks: int = Field(default=200, ge=1)
    """Number of tasks to generate for the evaluation. Used only if the tasks are generated and `split`
    differs from `env.dataset.split`."""
    num_sampled_attempts: int = Field(default=8, ge=0)
    """Number of sampled attempts per task in the last evaluation, for pass@k, in addition to the greedy
    attempt. 0 disables pass@k."""
    pass_at_k: tuple[int, ...] = (1, 8)
    """Values of k for which pass@k is computed. Values above `num_sampled_attempts` are skipped."""


class ArcEvalCommandConfig(ArcEvaluationConfig):
    """Settings for `phalanx eval` with ARC policies."""

    dataset: str = ""
    """Tasks that the policy attempts: a dataset, file or folder, with an optional split, such as
    `arc-agi-1/evaluation`. If empty, the policy is evaluated on the tasks of its run."""
    num_attempts: int = Field(default=2, ge=1)
    """Number of attempts per task in `dataset`. The first attempt is greedy, and all further attempts are
    sampled. ARC Prize allows two attempts."""
    sampling_seed: int = 0
    """Random seed for sampled attempts."""


class ArcScore(TypedDict):
    """Scores of a group of episodes."""

    num_episodes: int
    """Number of episodes."""
    success_rate: float
    """Fraction of episodes that were solved."""
    similarity: float
    """Mean similarity of the final grids to the targets."""
    steps_to_solve: float | None
    """Mean number of steps in solved episodes; None if no episode was solved."""


@dataclasses.dataclass(frozen=True)
class ArcResult:
    """Scores of a policy on the tasks of an environment."""

    split: str
    """Split of the dataset that was evaluated."""
    mode: DecodingMode
    """How actions were selected: `greedy` takes the most probable actions, `sampled` samples them."""
    num_episodes: int
    """Number of episodes: the number of starting positions times `num_samples`. A starting position is a task
    in evaluation mode and a pair in training mode."""
    num_samples: int
    """Number of attempts per starting position; see `num_episodes`."""
    success_rate: float
    """Fraction of episodes that were solved."""
    success_rate_se: float | None
    """Standard error of the success rate, clustered by task; None if there is only one task."""
    similarity: float
    """Mean similarity of the final grids to the targets."""
    steps_to_solve: float | None
    """Mean number of steps in solved episodes; None if no episode was solved."""
    pass_at_k: dict[int, float]
    """For each k, the probability that at least one of k attempts succeeds, averaged over starting
    positions."""
    groups: dict[str, ArcScore]
    """Scores of each task family, by name, in order of first appearance."""
    tasks: dict[str, ArcScore]
    """Scores of each task, by task id, in the order of the environment's tasks."""
    baselines: dict[str, float]
    """Success rates of two trivial policies: `copy_input` submits the unchanged input, and `do_nothing` never
    submits."""
    notes: tuple[str, ...] = ()
    """Remarks about the dataset, such as the number of tasks that fit on the canvas."""

    def as_record(self) -> dict[str, Any]:
        """Return the result as a record for `evaluations.jsonl`, without the scores of individual tasks."""
        record = dataclasses.asdict(self)
        record["pass_at_k"] = {str(k): rate for k, rate in self.pass_at_k.items()}
        omitted = {"tasks", *(name for name in ("pass_at_k", "notes") if not record[name])}
        return {name: value for name, value in record.items() if name not in omitted}

    def task_records(self) -> list[dict[str, Any]]:
        """Return one record per task, with its id and scores."""
        return [{"task": name, **score} for name, score in self.tasks.items()]

    def describe(self) -> list[str]:
        """Describe the result in lines of text: the total scores, the scores of each family, the baselines
        and the notes."""
        error = "" if self.success_rate_se is None else f" ± {100 * self.success_rate_se:.1f}"
        total = f"{self.mode}: {100 * self.success_rate:.1f}{error}% of {self.num_episodes} episodes solved"
        passes = "".join(f", pass@{k} {100 * rate:.1f}%" for k, rate in self.pass_at_k.items())
        lines = [f"{total}{_details(self.similarity, self.steps_to_solve)}{passes}"]
        if len(self.groups) > 1:
            width = max(map(len, self.groups))
            lines += [
                f"  {name:{width}}  {100 * score['success_rate']:5.1f}% of {score['num_episodes']}"
                f"{_details(score['similarity'], score['steps_to_solve'])}"
                for name, score in self.groups.items()
            ]
        copied = format_percent(self.baselines["copy_input"])
        lines.append(f"Baselines: submitting the input solves {copied}, submitting nothing 0%")
        return [*lines, *self.notes]


def _details(similarity: float, steps: float | None) -> str:
    return f", similarity {similarity:.3f}" + ("" if steps is None else f", {steps:.1f} steps to solve")


@dataclasses.dataclass(frozen=True)
class ArcEvaluator:
    """Evaluates policies on all tasks of an environment.

    In evaluation mode, there is one episode per task; in training mode, there is one episode per pair. In
    training mode, an episode that does not end on the pair that it started with counts as unsolved, with
    similarity 0.
    """

    environment: "ArcEnvironment"
    notes: tuple[str, ...] = ()
    """Remarks to include in the results."""

    @classmethod
    def held_out(cls, config: ArcConfig, settings: ArcEvaluationConfig) -> "ArcEvaluator":
        """Create an evaluator for the held-out tasks of a training run, in evaluation mode.

        Args:
            config: Settings of the training environment.
            settings: Selects the tasks to evaluate on.
        """
        environment = held_out_environment(config, settings)
        datasets = dict.fromkeys((config.dataset, environment.config.dataset))
        notes = [
            f"{data.source}, {data.split}: {canvas_note(config_tasks(data), data.grid_shape)}"
            for data in datasets
            if data.source != GENERATED
        ]
        return cls(environment, tuple(notes))

    @property
    def starts(self) -> Int[np.ndarray, "starts 2"]:
        """Task index and pair index of each starting position: one per task in evaluation mode, one per pair
        in training mode."""
        environment = self.environment
        counts = [
            1 if environment.answers is not None else len(task.demos or task.tests)
            for task in environment.task_buffer
        ]
        return np.array(
            [(task, pair) for task, count in enumerate(counts) for pair in range(count)], np.int32
        )

    def evaluate(
        self,
        network: PolicyNetwork,
        *,
        mode: DecodingMode = "greedy",
        num_samples: int = 1,
        pass_at_k: tuple[int, ...] = (),
        seed: int = 0,
    ) -> ArcResult:
        """Run a policy on every task, or on every pair in training mode, and return its scores.

        The random numbers for an attempt depend on the seed, the task, the pair and the index of the attempt.
        They do not depend on other tasks, the order of the tasks or the batch size. The compiled program is
        reused by later evaluations in the same environment.

        Args:
            network: Policy network.
            mode: `greedy` takes the most probable actions, `sampled` samples them.
            num_samples: Number of attempts per task or pair. It must be 1 in `greedy` mode.
            pass_at_k: Values of k for which pass@k is computed.
            seed: Random seed for sampled attempts.
        """
        if mode not in ("greedy", "sampled"):
            raise ValueError(f"mode must be 'greedy' or 'sampled', got {mode!r}")
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if mode == "greedy" and num_samples > 1:
            raise ValueError(
                f"greedy attempts are identical: use mode='sampled' or num_samples=1, got {num_samples}"
            )
        if wrong := [k for k in pass_at_k if not 1 <= k <= num_samples]:
            raise ValueError(f"pass@{wrong[0]} needs k between 1 and num_samples, which is {num_samples}")
        environment = self.environment
        buffer, starts = environment.task_buffer, self.starts
        episodes = np.repeat(starts, num_samples, axis=0)
        keys = None
        if mode == "sampled":
            fingerprints = [buffer[task].fingerprint for task in starts[:, 0].tolist()]
            keys = episode_keys(seed, fingerprints, starts[:, 1], num_samples)
        act = eqx.Partial(select_action, network)
        solved, similarity, lengths = run_episodes(_measure, environment, act, episodes, keys, _BATCH_SIZE)

        def score(rows: Int[np.ndarray, " chosen"]) -> ArcScore:
            is_solved = solved[rows]
            return {
                "num_episodes": len(rows),
                "success_rate": float(is_solved.mean()),
                # An exact sum, which does not depend on the order of the tasks.
                "similarity": math.fsum(similarity[rows].tolist()) / len(rows),
                "steps_to_solve": float(lengths[rows][is_solved].mean()) if is_solved.any() else None,
            }

        by_task = np.split(np.arange(len(episodes)), np.flatnonzero(np.diff(episodes[:, 0])) + 1)
        by_family: dict[str, list[np.ndarray]] = {}
        for task, rows in zip(buffer, by_task, strict=True):
            by_family.setdefault(task.family or NO_FAMILY, []).append(rows)
        num_solved = solved.reshape(-1, num_samples).sum(axis=1).tolist()
        return ArcResult(
            split=environment.config.dataset.split,
            mode=mode,
            num_samples=num_samples,
            **score(np.arange(len(episodes))),
            success_rate_se=_standard_error(solved, by_task),
            pass_at_k={k: mean_pass_at_k(num_samples, num_solved, k) for k in pass_at_k},
            groups={name: score(np.concatenate(parts)) for name, parts in by_family.items()},
            tasks={task.id: score(rows) for task, rows in zip(buffer, by_task, strict=True)},
            baselines={"copy_input": sum(map(copy_solves, buffer)) / len(buffer), "do_nothing": 0.0},
            notes=self.notes,
        )


@functools.lru_cache(maxsize=8)
def held_out_environment(config: ArcConfig, settings: ArcEvaluationConfig) -> "ArcEnvironment":
    """Return the environment in which a policy is evaluated during a training run. The result is cached.

    Args:
        config: Settings of the training environment.
        settings: Selects the tasks to evaluate on.
    """
    from phalanx.arc.env import ArcEnvironment

    dataset = config.dataset
    if settings.split != dataset.split:
        dataset = dataset.model_copy(
            update={"split": settings.split, "num_generated_tasks": settings.num_generated_tasks}
        )
    episode = config.episode.model_copy(update={"mode": "evaluation"})
    return ArcEnvironment.create(config.model_copy(update={"dataset": dataset, "episode": episode}))


def copy_solves(task: ArcTask) -> bool:
    """Return whether submitting the inputs unchanged would solve the task."""
    return all(
        pair.output is not None and np.array_equal(pair.input, pair.output) for pair in task.tests
    ) and bool(task.tests)


def canvas_note(tasks: Iterable[ArcTask], grid_shape: tuple[int, int]) -> str:
    """Describe how many tasks fit on a canvas.

    >>> canvas_note([], (30, 30))
    '0 of 0 tasks fit a canvas of 30x30'
    """
    fit = [task.fits(grid_shape) for task in tasks]
    return f"{sum(fit)} of {len(fit)} tasks fit a canvas of {format_shape(grid_shape)}"


def episode_keys(
    seed: int | str, fingerprints: Sequence[str], pairs: Int[np.ndarray, " starts"], num_samples: int
) -> UInt32[np.ndarray, "episodes 2"]:
    """Compute one PRNG key, as raw key data, for each attempt at each starting position (a task and one of
    its pairs). The keys for the same starting position are consecutive.

    The key data is a hash of the seed, the task, the pair and the index of the attempt. `jax.random.fold_in`
    is not used, because it would have to be compiled.

    Args:
        seed: Random seed.
        fingerprints: Fingerprint of the task of each starting position.
        pairs: Pair index of each starting position.
        num_samples: Number of attempts per starting position.
    """
    digests = [
        hashlib.blake2b(f"{seed}/{fingerprint}/{pair}/{attempt}".encode(), digest_size=8).digest()
        for fingerprint, pair in zip(fingerprints, pairs, strict=True)
        for attempt in range(num_samples)
    ]
    return np.frombuffer(b"".join(digests), "<u4").astype(np.uint32).reshape(-1, 2)


SummarizeFunction = Callable[["ArcEnvironment", ArcState, EpisodeResults], tuple[Array, ...]]
"""Function `(environment, initial_states, results)` that computes arrays from a batch of episodes. The
leading axis of each array is the batch."""


def run_episodes(
    summarize: SummarizeFunction,
    environment: "ArcEnvironment",
    act: Act,
    episodes: Int[np.ndarray, "episodes 2"],
    key_data: UInt32[np.ndarray, "episodes 2"] | None,
    batch_size: int,
    record: bool = False,
) -> list[np.ndarray]:
    """Run a policy on the given tasks and pairs, in batches, and return the arrays that `summarize` computes.

    Args:
        summarize: Function that computes arrays from the results of a batch of episodes.
        environment: The environment.
        act: Policy, as a function `act(observation, key) -> action`.
        episodes: Task index and pair index of each episode.
        key_data: Raw data of one PRNG key per episode; see `episode_keys`. If None, actions are greedy.
        batch_size: Maximum number of episodes in a batch.
        record: Keep the states of all steps in the results.
    """

    def run_batch(rows: Int[np.ndarray, " batch"]) -> tuple[Array, ...]:
        keys = None if key_data is None else jax.device_put(key_data[rows])
        starts = jax.device_put(episodes[rows].astype(np.int32))
        return _run_batch(summarize, environment, act, starts, keys, record)

    return map_batches(run_batch, len(episodes), batch_size)


@eqx.filter_jit
def _run_batch(
    summarize: SummarizeFunction,
    environment: "ArcEnvironment",
    act: Act,
    episodes: Int32[Array, "batch 2"],
    key_data: UInt32[Array, "batch 2"] | None,
    record: bool,
) -> tuple[Array, ...]:
    states, observations = environment.batch_reset_to(episodes[:, 0], episodes[:, 1])
    # An explicit generator, so that the keys do not depend on JAX's default.
    keys = None if key_data is None else jax.random.wrap_key_data(key_data, impl="threefry2x32")
    max_steps = environment.max_episode_steps
    results = rollout_episodes(environment, act, states, observations, keys, max_steps, record)
    return summarize(environment, states, results)


def _measure(
    environment: "ArcEnvironment", states: ArcState, results: EpisodeResults
) -> tuple[Bool[Array, " batch"], Float[Array, " batch"], Int32[Array, " batch"]]:
    """Return whether each episode was solved, its final similarity, and its number of steps."""
    solved, similarity = results.episode_metrics["success_mask"], results.episode_metrics["similarity_scores"]
    if environment.answers is None:
        same_pair = results.final_states.pair_index == states.pair_index
        solved, similarity = solved & same_pair, jnp.where(same_pair, similarity, 0.0)
    return solved, similarity, results.lengths


def _standard_error(
    solved: Bool[np.ndarray, " episodes"], by_task: Sequence[Int[np.ndarray, " _"]]
) -> float | None:
    """Compute the standard error of the success rate. It is clustered by task, because episodes of one task
    are correlated. Return None if there are fewer than two tasks.

    Args:
        solved: Whether each episode was solved.
        by_task: For each task, the indices of its episodes.
    """
    num_tasks = len(by_task)
    if num_tasks < 2:
        return None
    rate = solved.mean()
    squares = math.fsum(float(np.sum(solved[rows] - rate)) ** 2 for rows in by_task)
    return math.sqrt(num_tasks / (num_tasks - 1) * squares) / len(solved)
