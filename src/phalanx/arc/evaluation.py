"""How many tasks of an ARC environment a policy solves: by task and family, and in k attempts (pass@k).

Playing the episodes is in `evaluation`.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from math import comb
from typing import Any, Literal, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, UInt32

from phalanx.arc.env import ArcEnvironment
from phalanx.arc.tasks import ArcTask
from phalanx.core.episodes import map_batches, rollout_episodes
from phalanx.nn.policy_network import PolicyNetwork, select_action


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The share of the choices of k attempts, out of those made, that hold a success.

    An unbiased estimate for k fresh attempts (Chen et al. 2021, "Evaluating large language models trained on
    code"), where 1 - (1 - successes / attempts) ** k is too low.

    >>> pass_at_k(attempts=4, successes=1, k=2)
    0.5
    """
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@k needs at least k attempts: k is {k}, attempts are {attempts}")
    if not 0 <= successes <= attempts:
        raise ValueError(f"successes must lie between 0 and {attempts}, the attempts, got {successes}")
    # Whole numbers until the last division: nothing overflows, and 0 and 1 come out exactly.
    every = comb(attempts, k)
    return (every - comb(attempts - successes, k)) / every


def mean_pass_at_k(attempts: int, successes: Iterable[int], k: int) -> float:
    """Over puzzles that were attempted equally often.

    >>> mean_pass_at_k(attempts=4, successes=[0, 1, 4], k=2)
    0.5
    """
    estimates = [pass_at_k(attempts, count, k) for count in successes]
    if not estimates:
        raise ValueError("pass@k of no puzzles at all is not defined")
    return sum(estimates) / len(estimates)


EvaluationMode = Literal["greedy", "sampled"]

_BATCH_SIZE = 1024
"""Episodes played together, if nothing else is said."""
NO_FAMILY = "no family"
"""Under which tasks count that name none."""


class ArcScore(TypedDict):
    """What a set of episodes came to."""

    episodes: int
    success_rate: float
    similarity: float
    steps_to_solve: float | None


@dataclasses.dataclass(frozen=True)
class ArcResult:
    """A policy's scores on the tasks of an environment."""

    mode: EvaluationMode
    episodes: int
    """Pairs times attempts at each."""
    attempts: int
    success_rate: float
    """Share of episodes that ended solved."""
    success_rate_se: float | None
    """Its standard error over other tasks of the same kind; none where there is only one task."""
    similarity: float
    """Mean similarity of the final grids to the targets."""
    steps_to_solve: float | None
    """Mean over the solved episodes; none where there are none."""
    pass_at_k: dict[int, float]
    """The chance that one of k attempts at a pair succeeds, mean over the pairs."""
    families: dict[str, ArcScore]
    """In order of first appearance."""
    tasks: dict[str, ArcScore]
    """By id, in the order of the environment's buffer."""

    def as_record(self, split: str, with_tasks: bool = False) -> dict[str, Any]:
        """A line of a run's `evaluations.jsonl`; when it was made, the run adds."""
        record = {"split": split, **dataclasses.asdict(self)}
        record["pass_at_k"] = {str(k): share for k, share in self.pass_at_k.items()}
        left_out = {"pass_at_k": not self.pass_at_k, "tasks": not with_tasks}
        return {name: value for name, value in record.items() if not left_out.get(name)}

    def describe(self) -> str:
        """A line on the whole, and one on each family where there are several."""
        error = "" if self.success_rate_se is None else f" ± {100 * self.success_rate_se:.1f}"
        total = f"{self.mode}: {100 * self.success_rate:.1f}{error} % of {self.episodes} episodes solved"
        passes = "".join(f", pass@{k} {100 * share:.1f} %" for k, share in self.pass_at_k.items())
        lines = [f"{total}{_details(self.similarity, self.steps_to_solve)}{passes}"]
        if len(self.families) > 1:
            width = max(map(len, self.families))
            lines += [
                f"  {name:{width}}  {100 * score['success_rate']:5.1f} % of {score['episodes']}"
                f"{_details(score['similarity'], score['steps_to_solve'])}"
                for name, score in self.families.items()
            ]
        return "\n".join(lines)


def _details(similarity: float, steps: float | None) -> str:
    return f", similarity {similarity:.3f}" + ("" if steps is None else f", {steps:.1f} steps to solve")


def evaluate_arc(
    environment: ArcEnvironment,
    network: PolicyNetwork,
    *,
    mode: EvaluationMode = "greedy",
    attempts: int = 1,
    pass_at: tuple[int, ...] = (),
    seed: int = 0,
    batch_size: int | None = None,
) -> ArcResult:
    """Play every task (in evaluation, where it is handed in as a whole) or every pair, `attempts` times.

    The random numbers of an attempt follow from the seed, the task, the pair and the attempt's number, so
    neither the other tasks, nor their order, nor `batch_size` (the most episodes played together) matter.
    In training an episode that ends on another pair than its own (the pair operations allow that) counts as
    unsolved, with similarity 0. The compiled run is kept for the next evaluation of the same environment.
    """
    _check(mode, attempts, pass_at, batch_size)
    buffer = environment.task_buffer
    starts = _starts(environment)
    episodes = np.repeat(starts, attempts, axis=0)
    keys = None
    if mode == "sampled":
        fingerprints = [task.fingerprint for task in buffer]
        keys = episode_keys(seed, [fingerprints[task] for task in starts[:, 0]], starts[:, 1], attempts)

    def attempt(rows: Int[np.ndarray, " batch"]) -> tuple[Array, ...]:
        words = None if keys is None else jax.device_put(keys[rows])
        return _attempt(environment, network, jax.device_put(episodes[rows]), words)

    results = _Results(*map_batches(attempt, len(episodes), batch_size or _BATCH_SIZE))
    by_task = np.split(np.arange(len(episodes)), np.flatnonzero(np.diff(episodes[:, 0])) + 1)
    by_family: dict[str, list[np.ndarray]] = {}
    for task, rows in zip(buffer, by_task, strict=True):
        by_family.setdefault(task.family or NO_FAMILY, []).append(rows)
    solved_by_pair = [int(count) for count in results.solved.reshape(-1, attempts).sum(axis=1)]
    return ArcResult(
        mode=mode,
        attempts=attempts,
        **results.score(np.arange(len(episodes))),
        success_rate_se=_standard_error(results.solved, by_task),
        pass_at_k={k: mean_pass_at_k(attempts, solved_by_pair, k) for k in pass_at},
        families={name: results.score(np.concatenate(parts)) for name, parts in by_family.items()},
        tasks={task.id: results.score(rows) for task, rows in zip(buffer, by_task, strict=True)},
    )


@dataclasses.dataclass(frozen=True)
class _Results:
    """One value for each episode."""

    solved: Bool[np.ndarray, " episodes"]
    similarity: Float[np.ndarray, " episodes"]
    lengths: Int[np.ndarray, " episodes"]

    def score(self, rows: Int[np.ndarray, " chosen"]) -> ArcScore:
        """Of some episodes."""
        solved, lengths = self.solved[rows], self.lengths[rows]
        return {
            "episodes": len(rows),
            "success_rate": float(solved.mean()),
            # Exact before it is rounded, so that the order of the tasks does not show.
            "similarity": math.fsum(self.similarity[rows].tolist()) / len(rows),
            "steps_to_solve": float(lengths[solved].mean()) if solved.any() else None,
        }


def _check(mode: str, attempts: int, pass_at: Sequence[int], batch_size: int | None) -> None:
    if mode not in ("greedy", "sampled"):
        raise ValueError(f"mode must be 'greedy' or 'sampled', got {mode!r}")
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, got {attempts}")
    if mode == "greedy" and attempts > 1:
        raise ValueError(f"greedy attempts are all alike, got attempts={attempts}; use mode='sampled'")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    for k in pass_at:
        if not 1 <= k <= attempts:
            raise ValueError(f"pass@{k} needs at least {k} attempts and k from 1 on, attempts are {attempts}")


def _starts(environment: ArcEnvironment) -> Int[np.ndarray, "pairs 2"]:
    """Task and pair of all episodes: in evaluation one for each task, in training one for each pair."""
    whole = environment.answers is not None
    counts = [1 if whole else len(task.demos or task.tests) for task in environment.task_buffer]
    return np.array([(task, pair) for task, count in enumerate(counts) for pair in range(count)], np.int32)


def copy_solves(task: ArcTask) -> bool:
    """Whether handing in the inputs as they are would be right."""
    return all(
        pair.output is not None and np.array_equal(pair.input, pair.output) for pair in task.tests
    ) and bool(task.tests)


def episode_keys(
    seed: int | str, fingerprints: Sequence[str], pairs: Int[np.ndarray, " pairs"], attempts: int
) -> UInt32[np.ndarray, "episodes 2"]:
    """A key for each episode, from a digest: quicker than folding numbers in, which must be compiled."""
    digests = [
        hashlib.blake2b(f"{seed}/{fingerprint}/{pair}/{attempt}".encode(), digest_size=8).digest()
        for fingerprint, pair in zip(fingerprints, pairs, strict=True)
        for attempt in range(attempts)
    ]
    return np.frombuffer(b"".join(digests), "<u4").astype(np.uint32).reshape(-1, 2)


@eqx.filter_jit
def _attempt(
    environment: ArcEnvironment,
    network: PolicyNetwork,
    episodes: Int32[Array, "batch 2"],
    words: UInt32[Array, "batch 2"] | None,
) -> tuple[Bool[Array, " batch"], Float[Array, " batch"], Int32[Array, " batch"]]:
    """Whether solved, similarity and length of each episode; greedy where there are no keys."""
    states, observations = environment.batch_reset_to(episodes[:, 0], episodes[:, 1])
    # The generator is named because the words must mean the same whichever one is JAX's default.
    keys = None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")
    limit = environment.config.episode.max_episode_steps
    played = rollout_episodes(
        environment, eqx.Partial(select_action, network), states, observations, keys, limit
    )
    solved, similarity = played.episode_metrics["success_mask"], played.episode_metrics["similarity_scores"]
    if environment.answers is None:
        own = played.final_states.pair_index == states.pair_index
        solved, similarity = solved & own, jnp.where(own, similarity, 0.0)
    return solved, similarity, played.lengths


def _standard_error(
    solved: Bool[np.ndarray, " episodes"], by_task: Sequence[Int[np.ndarray, " _"]]
) -> float | None:
    """Of the success rate, tasks being what is drawn: pairs of one task and attempts at it are alike."""
    tasks = len(by_task)
    if tasks < 2:
        return None
    rate = solved.mean()
    squares = math.fsum(float(np.sum(solved[rows] - rate)) ** 2 for rows in by_task)
    return math.sqrt(tasks / (tasks - 1) * squares) / len(solved)
