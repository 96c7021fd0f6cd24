"""`SPEC`: how the ARC environment is made, trained and evaluated."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from phalanx.arc.augmentation import augment_tasks
from phalanx.arc.config import GENERATED, ArcConfig
from phalanx.arc.datasets import config_tasks
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.evaluation import (
    NO_FAMILY,
    ArcEvalCommandConfig,
    ArcEvaluationConfig,
    ArcEvaluator,
    held_out_environment,
)
from phalanx.arc.expert import ArcExpert
from phalanx.arc.generators.generate import generate_tasks
from phalanx.arc.networks import ArcNetworkConfig, create_network
from phalanx.arc.rendering.snapshot import as_cells
from phalanx.arc.state import ArcState
from phalanx.arc.submission import evaluate_on_dataset
from phalanx.arc.task_buffer import TaskBuffer, Tasks, as_buffer
from phalanx.arc.tasks import ArcTask, Grid
from phalanx.arc.text import ArcText
from phalanx.config import load_config
from phalanx.core.evaluation import EvaluationConfig, EvaluationEpisodes, EvaluationResult
from phalanx.core.spec import EnvSpec, Evaluation
from phalanx.nn.policy_network import PolicyNetwork


def make_arc(
    config: ArcConfig,
    *,
    task: ArcTask | str | None = None,
    tasks: Tasks | None = None,
    max_episode_steps: int | None = None,
) -> ArcEnvironment:
    """Create an ARC environment. At most one of `task` and `tasks` may be given. If neither is given, the
    tasks of `config.dataset` are used.

    Args:
        config: Settings.
        task: One task, or the id of a task in the config's dataset.
        tasks: Several tasks or a task buffer.
        max_episode_steps: Overrides `config.episode.max_episode_steps` if it is not None.
    """
    if max_episode_steps is not None:
        config = load_config(ArcConfig, config, [f"episode.max_episode_steps={max_episode_steps}"])
    if task is not None and tasks is not None:
        raise TypeError("both task and tasks were given; pass only one of them")
    if isinstance(task, str):
        # The other tasks may be larger than the canvas.
        buffer = as_buffer(config_tasks(config.dataset))
        task = buffer[buffer.index_of(task)]
    return ArcEnvironment.create(config, tasks if task is None else task)


@dataclasses.dataclass(frozen=True)
class ArcTasks:
    """Fresh tasks for every update if `dataset.tasks_per_update` is set, and held-out tasks for
    evaluations."""

    environment: ArcEnvironment
    seed: int

    @property
    def fingerprint(self) -> str:
        return self.environment.task_buffer.fingerprint

    @property
    def metadata(self) -> dict[str, Any]:
        tasks = self.environment.task_buffer
        return {"families": sorted({task.family for task in tasks if task.family})}

    @property
    def keeps_episodes(self) -> bool:
        # States refer to the tasks of their environment.
        return self.environment.config.dataset.tasks_per_update is None

    def training(self, update: int) -> ArcEnvironment:
        """Return the environment with the tasks of an update, which depend only on the seed and the update.

        The shapes of the arrays are the same for every update.
        """
        data, every = self.environment.config.dataset, self.environment.task_buffer.tasks
        if (count := data.tasks_per_update) is None:
            return self.environment
        rows, columns = self.environment.config.grid_shape
        if data.source == GENERATED:
            # A different seed for every update, and for runs whose seeds differ modulo 1000. Datasets use
            # seeds 0 to 999.
            task_seed = 1000 * (1 + update) + self.seed % 1000
            size = {"max_height": rows, "max_width": columns}
            tasks = generate_tasks(data.families, count, task_seed, split="training", **size)
        else:
            rng = np.random.default_rng((self.seed, update))
            count = min(count, len(every))
            tasks = [every[int(index)] for index in rng.permutation(len(every))[:count]]
            if data.augment:
                tasks = augment_tasks(tasks, jax.random.key(int(rng.integers(2**31))))
        num_pairs = count * max(len(task.pairs) for task in every)
        buffer = TaskBuffer.from_tasks(tasks, num_tasks=count, num_pairs=num_pairs, num_rows=rows)
        return self.environment.with_tasks(buffer)

    def held_out(self, settings: EvaluationConfig) -> ArcEnvironment:
        """Return an environment in evaluation mode, with the held-out tasks that `settings` selects."""
        assert isinstance(settings, ArcEvaluationConfig)
        return held_out_environment(self.environment.config, settings)


def evaluate_held_out(
    tasks: ArcTasks, network: PolicyNetwork, settings: ArcEvaluationConfig, final: bool, seed: int = 0
) -> Sequence[EvaluationResult]:
    """Evaluate a policy on held-out tasks.

    Args:
        tasks: Task source of the run.
        network: Policy network.
        settings: Selects the tasks and the number of sampled attempts.
        final: Also evaluate `settings.num_sampled_attempts` sampled attempts per task, for pass@k.
        seed: Seed for the sampled attempts.
    """
    evaluator = ArcEvaluator.held_out(tasks.environment.config, settings)
    results: list[EvaluationResult] = [evaluator.evaluate(network)]
    if final and (count := settings.num_sampled_attempts):
        pass_at_k = tuple(k for k in settings.pass_at_k if k <= count)
        results.append(
            evaluator.evaluate(network, mode="sampled", num_samples=count, pass_at_k=pass_at_k, seed=seed)
        )
    return results


def evaluation_episodes(tasks: ArcTasks, settings: ArcEvaluationConfig) -> EvaluationEpisodes:
    """Return the greedy attempts of an evaluation, grouped by family."""
    evaluator = ArcEvaluator.held_out(tasks.environment.config, settings)
    buffer, starts = evaluator.environment.task_buffer, evaluator.starts
    groups = [buffer[task].family or NO_FAMILY for task in starts[:, 0].tolist()]
    return EvaluationEpisodes(evaluator.environment, _reset_to_pairs, starts, groups)


def _reset_to_pairs(environment: ArcEnvironment, starts: Any) -> Any:
    return environment.batch_reset_to(starts[:, 0], starts[:, 1])


def evaluate_or_submit(
    tasks: ArcTasks, network: PolicyNetwork, settings: ArcEvalCommandConfig, final: bool
) -> Sequence[EvaluationResult]:
    """Evaluate a policy on held-out tasks or, if `settings.dataset` is set, attempt the tasks of a dataset.
    In this case, the only result is the submission."""
    if settings.dataset:
        return [evaluate_on_dataset(tasks.environment.config, network, settings)]
    return evaluate_held_out(tasks, network, settings, final, settings.sampling_seed)


def task_name(environment: ArcEnvironment, state: ArcState) -> str:
    """Return the id of a state's task."""
    return environment.task_buffer[int(state.task_index)].id


def attach_tasks(environment: ArcEnvironment, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attach the tasks to the states in records of episodes, so that the states draw themselves."""
    attach = environment.attach_names
    return [
        {
            **record,
            "initial_state": attach(record["initial_state"]),
            "final_state": attach(record["final_state"]),
            "step_states": [attach(state) for state in record["step_states"]],
        }
        for record in records
    ]


def state_grids(environment: ArcEnvironment, state: ArcState) -> dict[str, Grid]:
    """Return the input, the working grid and, unless it is unknown, the expected output of a state."""
    pair = environment.task_buffer[int(state.task_index)].pairs[int(state.pair_index)]
    grids = {"Input": pair.input, "Working grid": as_cells(state.working_grid)}
    return grids if pair.output is None else grids | {"Expected output": pair.output}


SPEC = EnvSpec(
    make=make_arc,
    config=ArcConfig,
    network=lambda arc, config, key: create_network(config, arc, key),
    network_config=ArcNetworkConfig,
    evaluation=Evaluation(ArcEvaluationConfig, evaluate_held_out, evaluation_episodes),
    eval_command=Evaluation(ArcEvalCommandConfig, evaluate_or_submit),
    tasks=ArcTasks,
    expert=lambda environment: ArcExpert(environment.config, environment.task_buffer.tasks),
    text=ArcText,
    task_name=task_name,
    episode_view=attach_tasks,
    grids=state_grids,
)
