"""The ARC environment."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32, PyTree

from phalanx.arc import backends, evaluation_mode, reward as rewards, task_sampling, text
from phalanx.arc.actions import Action, action_space, encode_action, legal_operations, random_action
from phalanx.arc.bitplanes import pack_grid, trim
from phalanx.arc.config import GENERATED, ArcConfig
from phalanx.arc.datasets import config_tasks, fitting_tasks
from phalanx.arc.evaluation import (
    ArcEvalCommandConfig,
    ArcEvaluationConfig,
    ArcEvaluator,
    held_out_environment,
)
from phalanx.arc.evaluation_mode import HiddenTestOutputs
from phalanx.arc.expert import ArcExpert
from phalanx.arc.networks import ArcNetworkConfig, create_network
from phalanx.arc.observation import ArcObservation, Observation, create_observation, observation_space
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.reward import RewardFunction, RewardWeights
from phalanx.arc.state import (
    NUM_BOARDS,
    ArcState,
    RegisterIndex,
    StepInfo,
    blank_states,
    replace_fields,
)
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, Tasks, as_buffer, with_answers
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.arc.tasks import ArcTask, as_grid
from phalanx.core.backends import resolve_backend
from phalanx.core.environment import EnvironmentWithArrays, Key, Keys
from phalanx.core.evaluation import EvaluationConfig, EvaluationResult
from phalanx.core.spaces import Space
from phalanx.core.vector import map_where
from phalanx.native import native_unavailable_reason
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.registry import config_from

Env = TypeVar("Env", bound="ArcEnvironment")
ResetResult = tuple[ArcState, Observation]
"""State and observation at the start of an episode."""
StepResult = tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]
"""New state, observation, reward, done flag and info of a step."""

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ArcEnvironment(EnvironmentWithArrays[ArcState, Observation, Action]):
    """ARC tasks as a grid-editing environment. An episode starts with the input of an input-output pair,
    which the agent changes step by step into the output.

    Grids of different sizes are stored in the top-left corner of a canvas, which has the same size for all
    tasks (`config.grid_shape`).

    - Observation: the working grid, int8 [rows, columns] with -1 outside the grid, and any
      optional fields that `config.observation` enables.
    - Action: one of 42 operations on a point, a bounding box or a mask of cells.
    - Reward: change in similarity to the target, a step penalty and a success bonus (see `RewardConfig`), or
      a custom function.
    - Termination: when the grid is submitted or solved. Truncation: after `max_episode_steps` steps.

    In evaluation mode, an episode consists of a complete task. The agent edits one grid per test pair and
    submits all grids together. States and backends contain the tasks without their test outputs, and nothing
    about the answers is revealed before the last submission.

    Use `create` or `from_config` to create an environment, and `with_tasks`, `with_task_weights` and
    `with_reward` to create modified copies. Tasks, task weights and reward weights are arrays. If an
    environment is an argument of a compiled function, these arrays are traced, so passing a modified copy
    does not recompile the function. If the environment is a static argument or captured in a closure, the
    arrays are constants of the program.
    """

    config: ArcConfig
    task_arrays: TaskArrays
    """Grids of the tasks as arrays. In evaluation mode, they do not contain the test outputs."""
    task_weights: Float32[Array, "*groups tasks"] | None
    """Sampling weight of each task. If None, tasks are sampled uniformly. The `groups` axes are those of
    `TaskArrays`."""
    reward_weights: RewardWeights
    """Weights of the default reward, in the order of `REWARD_WEIGHTS`. Initially, these are the values in
    `config.reward`."""
    tasks: TaskBuffer | None = None
    """The tasks with their ids and grids. None inside a compiled function that takes the environment as a
    traced argument."""
    reward_function: RewardFunction | None = None
    """Custom reward function. If None, the default reward is used."""
    answers: HiddenTestOutputs | None = None
    """Hidden test outputs in evaluation mode, or None in training mode."""

    version: ClassVar[int] = 2
    config_type: ClassVar = ArcConfig
    network_config: ClassVar = ArcNetworkConfig
    evaluation_config: ClassVar = ArcEvaluationConfig
    eval_config: ClassVar = ArcEvalCommandConfig
    array_fields: ClassVar = ("task_arrays", "task_weights", "reward_weights", "reward_function", "answers")
    name_fields: ClassVar = ("tasks",)

    @classmethod
    def create(cls: type[Env], config: ArcConfig, task: Tasks | None = None) -> Env:
        """Create an environment with uniform task sampling and the default reward. Use `with_task_weights`
        and `with_reward` to change these.

        Args:
            config: Settings. If the backend is `auto`, it is replaced by the backend that is actually used.
            task: A task, several tasks or a task buffer. If None, the tasks of `config.dataset` are used.
        """
        buffer = None if task is None else with_answers(as_buffer(task))
        environment: Env = _create(cls, config, buffer, native_unavailable_reason())
        return environment

    @classmethod
    def from_config(  # type: ignore[override]
        cls: type[Env],
        config: ArcConfig,
        *,
        task: ArcTask | str | None = None,
        tasks: Tasks | None = None,
        max_episode_steps: int | None = None,
    ) -> Env:
        """Create an environment from its settings. At most one of `task` and `tasks` may be given. If neither
        is given, the tasks of `config.dataset` are used.

        Args:
            config: Settings.
            task: One task, or the id of a task in the config's dataset.
            tasks: Several tasks or a task buffer.
            max_episode_steps: Overrides `config.episode.max_episode_steps` if it is not None.
        """
        if max_episode_steps is not None:
            config = config_from(ArcConfig, config, [f"episode.max_episode_steps={max_episode_steps}"])
        if task is not None and tasks is not None:
            raise TypeError("both task and tasks were given; pass only one of them")
        if isinstance(task, str):
            buffer = as_buffer(config_tasks(config.dataset))
            task = buffer[buffer.index_of(task)]
        return cls.create(config, tasks if task is None else task)

    def with_tasks(self: Env, tasks: Tasks | TaskArrays) -> Env:
        """Return a copy of the environment with new tasks. If the environment has task weights, they are
        reset to equal weights.

        If the new tasks fit in the arrays of the current tasks, they are padded to the same shape, so that
        compiled functions are not recompiled. `TaskBuffer.from_tasks` can reserve space for this. States of
        running episodes refer to the old tasks and cannot be used with the copy.
        """
        if isinstance(tasks, TaskArrays):
            buffer, arrays, answers = None, tasks, self.answers
            if answers is not None:
                num_tests, rows = answers.sizes.shape[-2], self.config.grid_shape[0]
                arrays, answers = evaluation_mode.split_answers(tasks, num_tests, rows)
        else:
            buffer = with_answers(as_buffer(tasks))
            buffer.check(self.config)
            buffer = buffer.pad_to(self.task_arrays)
            arrays, answers = evaluation_mode.hide_answers(self.config, buffer)
        weights = None if self.task_weights is None else jnp.ones(arrays.table.shape[-2], jnp.float32)
        return dataclasses.replace(
            self, tasks=buffer, task_arrays=arrays, task_weights=weights, answers=answers
        )

    def with_task_weights(self: Env, weights: object) -> Env:
        """Return a copy of the environment with new sampling weights, one per task. If `weights` is None,
        tasks are sampled uniformly."""
        if weights is None:
            return dataclasses.replace(self, task_weights=None)
        padded_tasks = self.task_arrays.table.shape[-2]
        num_tasks = padded_tasks if self.tasks is None else len(self.tasks)
        valid = task_sampling.validate_task_weights(weights, num_tasks, padded_tasks)
        return dataclasses.replace(self, task_weights=valid)

    def with_reward(self: Env, function: RewardFunction | None = None, **weights: Any) -> Env:
        """Return a copy of the environment with a different reward. Pass either a function or weights.

        Args:
            function: Custom reward function, which maps one `RewardInput` to a scalar. If it is an Equinox
                module, its arrays are traced. If None, the default reward is used.
            weights: New weights of the default reward, such as `step_penalty=-0.1`. Other weights keep their
                values. Weights may be traced.
        """
        if function is not None and weights:
            raise ValueError("pass either a reward function or weights of the default reward, not both")
        if function is not None:
            return dataclasses.replace(self, reward_function=rewards.as_reward_function(function))
        changed = rewards.replace_reward_weights(self.reward_weights, weights)
        return dataclasses.replace(self, reward_weights=changed, reward_function=None)

    @property
    def max_episode_steps(self) -> int:
        return self.config.episode.max_episode_steps

    @property
    def task_buffer(self) -> TaskBuffer:
        """The tasks with their ids and grids. Raises `ValueError` inside a compiled function that takes the
        environment as a traced argument."""
        if self.tasks is None:
            raise ValueError(
                "this environment was an argument of a compiled program (or of jax.tree.map), so it has only "
                "the arrays of its tasks. Use the environment that was passed to the program"
            )
        return self.tasks

    @property
    def observation_space(self) -> Space:
        return observation_space(self.config)

    @property
    def action_space(self) -> Space:
        return action_space(self.config)

    def reset(self, key: Key) -> ResetResult:
        return self._start(self._sample_start(key, self._cumulative_weights))

    def batch_reset(self, keys: Keys) -> ResetResult:
        return self._start(jax.vmap(self._sample_start, (0, None))(keys, self._cumulative_weights))

    def batch_reset_to(self, tasks: Int32[Array, "*batch"], pairs: Int32[Array, "*batch"]) -> ResetResult:
        """Start one episode on each of the given pairs, instead of sampling tasks and pairs.

        Args:
            tasks: Index of each episode's task.
            pairs: Index of each episode's first pair. In evaluation mode, and for tasks without
                demonstrations, it is an index of a test pair; otherwise, it is an index of a demonstration
                pair. Indices that are too large are taken modulo the number of these pairs.
        """
        return self._start(task_sampling.start_at(tasks, pairs, self.task_arrays))

    def state_from_grid(self, grid: object, task: int | str = 0, pair: int = 0) -> ArcState:
        """Create the first state of an episode that starts with the given working grid.

        Args:
            grid: Working grid, as rows of colors or an array. It may be padded with -1 at the bottom and on
                the right, as in observations.
            task: Index or id of the task.
            pair: Index of the pair, as in `batch_reset_to`.
        """
        rows, columns = self.config.grid_shape
        cells = as_grid(trim(grid), "state_from_grid")
        if cells.shape[0] > rows or cells.shape[1] > columns:
            raise ValueError(f"a grid of {cells.shape} does not fit a canvas of {(rows, columns)}")
        index = self.task_buffer.index_of(task) if isinstance(task, str) else task
        if not 0 <= index < len(self.task_buffer):
            raise ValueError(f"task {index} does not exist: there are {len(self.task_buffer)} tasks")
        state, _ = self.batch_reset_to(jnp.int32(index), jnp.int32(pair))
        planes, size = pack_grid(cells, rows), np.array(cells.shape)
        changed: Any = backends.replace_grid(self.config, self.task_arrays, state.detach(), planes, size)
        return replace_fields(changed, tasks=state.tasks, submission=state.submission)

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: ArcState, observations: Observation
    ) -> ResetResult:
        self._check(states)
        if self.answers is not None:
            states = replace_fields(states, tasks=self._visible_tasks)
            return super().batch_reset_where(mask, keys, states, observations)
        zeros = jnp.zeros((mask.shape[0], 3), jnp.uint32)
        shared = (self.task_arrays, self._cumulative_weights)
        start_bits = map_where(task_sampling.sample_start, mask, keys, zeros, shared=shared)
        grid = observations.working_grid if isinstance(observations, ArcObservation) else observations
        state, grid = backends.reset(self.config, self.task_arrays, mask, start_bits, states.detach(), grid)
        state = replace_fields(state, tasks=states.tasks)
        return state, self._observe(state, grid)

    def step(self, state: ArcState, action: Action) -> StepResult:
        self._check(state)
        encoded = encode_action(action, state.batch_shape, state.grid_shape)
        new, grid, info = backends.step(self.config, self.task_arrays, encoded, state.detach())
        if self.answers is not None:
            before = replace_fields(state, tasks=None)
            new, info = evaluation_mode.step(self.config, self.task_arrays, self.answers, before, new, info)
        reward = rewards.compute_reward(self.config, self.reward_weights, self.reward_function, state, info)
        new = replace_fields(new, tasks=state.tasks)
        # In evaluation mode, the backend's unpacked grid may be that of another test pair.
        observation = self._observe(new, grid if self.answers is None else None)
        return new, observation, reward, jnp.asarray(info.episode_done), info

    def batch_step(self, states: ArcState, actions: Action) -> StepResult:
        return self.step(states, actions)

    def observe(self, state: ArcState) -> Observation:
        return self._observe(state, None)

    def is_done(self, state: ArcState) -> Bool[Array, "*batch"]:
        return state.episode_done

    def sample_action(self, key: Key, state: ArcState) -> Action:
        """Sample a uniformly random action, with an allowed operation and cells of the working grid."""
        return random_action(key, self.config, self.config.action.operations, state.height, state.width)

    def invalid_action(self, key: Key, state: ArcState) -> Action:
        """Sample an action whose operation does not exist or is not allowed. Used in tests."""
        illegal = sorted({-1, 99, *range(NUM_OPERATIONS + 1)} - set(self.config.action.operations))
        choice = jax.random.randint(key, (), 0, len(illegal))
        action = self.sample_action(key, state)
        return eqx.tree_at(lambda a: a.operation, action, jnp.asarray(illegal, jnp.int32)[choice])

    def comparable_state(self, state: ArcState) -> PyTree:
        counters = jnp.array([RegisterIndex.STEP_COUNT, RegisterIndex.STATUS])
        registers = state.registers.at[..., counters].set(0)
        return state.boards, registers, state.similarity, state.submission

    def legal_actions(self, state: ArcState) -> Bool[Array, "*batch 42"]:
        """Return the mask of legal operations. The cells need no mask, because all cells of the canvas may be
        selected."""
        return legal_operations(state, self.config)

    def expert(self) -> ArcExpert:
        """Return the expert for the environment's tasks. It follows known solutions, and otherwise plans
        actions that turn the current grid into the output."""
        return ArcExpert(self.config, self.task_buffer.tasks)

    def refresh_tasks(self, rng: np.random.Generator, seed: int, update: int) -> "ArcEnvironment":
        """Return a copy of the environment with new tasks for one behavior-cloning update.

        There are `dataset.tasks_per_update` tasks, or fewer if the dataset is smaller. If `dataset.source` is
        `generated`, the tasks are generated from `seed` and `update`. Otherwise, they are sampled from this
        environment's tasks with `rng`, and augmented if `dataset.augment` is set. The shapes of the arrays
        are the same for every update.
        """
        from phalanx.arc.augmentation import augment_tasks
        from phalanx.arc.generators.generate import generate_tasks

        data, every = self.config.dataset, self.task_buffer.tasks
        rows, columns = self.config.grid_shape
        count = data.tasks_per_update
        if data.source == GENERATED:
            # A different seed for every update, and for runs whose seeds differ modulo 1000. Datasets use
            # seeds 0 to 999.
            task_seed = 1000 * (1 + update) + seed % 1000
            size = {"max_height": rows, "max_width": columns}
            tasks = generate_tasks(data.families, count, task_seed, split="training", **size)
        else:
            count = min(count, len(every))
            tasks = [every[int(index)] for index in rng.permutation(len(every))[:count]]
            if data.augment:
                tasks = augment_tasks(tasks, jax.random.key(int(rng.integers(2**31))))
        num_pairs = count * max(len(task.pairs) for task in every)
        buffer = TaskBuffer.from_tasks(tasks, num_tasks=count, num_pairs=num_pairs, num_rows=rows)
        return self.with_tasks(buffer)

    @classmethod
    def default_network(cls, settings: ArcConfig, config: ArcNetworkConfig, key: Key) -> PolicyNetwork:
        """Create a policy network for an environment, without loading the environment's tasks.

        Args:
            settings: Settings of the environment, which determine the observations and actions.
            config: Architecture and size of the network.
            key: Random key for the initial parameters.
        """
        return create_network(config, settings, key)

    def held_out(self, settings: EvaluationConfig) -> "ArcEnvironment":
        """Return an environment in evaluation mode, with the held-out tasks that `settings` selects. The
        result is cached."""
        assert isinstance(settings, ArcEvaluationConfig)
        return held_out_environment(self.config, settings)

    def evaluate(
        self, network: PolicyNetwork, settings: EvaluationConfig, final: bool
    ) -> list[EvaluationResult]:
        """Evaluate a policy on held-out tasks or, if `settings.dataset` is set, on the tasks of a dataset.

        Args:
            network: Policy network.
            settings: `ArcEvaluationConfig` during training, `ArcEvalCommandConfig` for `phalanx eval`.
            final: True for the last evaluation of a run. In addition to the greedy policy, it evaluates
                `settings.num_sampled_attempts` sampled attempts per task for pass@k.

        Returns:
            If `settings.dataset` is set, a single result, with the submission for this dataset. Otherwise,
            the result of the greedy policy, followed by the result of the sampled attempts if they were
            evaluated.
        """
        assert isinstance(settings, ArcEvaluationConfig)
        if isinstance(settings, ArcEvalCommandConfig) and settings.dataset:
            from phalanx.arc.submission import evaluate_on_dataset

            return [evaluate_on_dataset(self.config, network, settings)]
        evaluation = ArcEvaluator.held_out(self.config, settings)
        results: list[EvaluationResult] = [evaluation.evaluate(network)]
        if final and (count := settings.num_sampled_attempts):
            pass_at_k = tuple(k for k in settings.pass_at_k if k <= count)
            seed = settings.sampling_seed if isinstance(settings, ArcEvalCommandConfig) else 0
            sampled = evaluation.evaluate(
                network, mode="sampled", num_samples=count, pass_at_k=pass_at_k, seed=seed
            )
            results.append(sampled)
        return results

    def fingerprint(self) -> str:
        """Return a hash of the tasks."""
        return self.task_buffer.fingerprint

    def metadata(self) -> dict[str, Any]:
        """Return a dictionary whose `families` entry contains the sorted names of the task families."""
        return {"families": sorted({task.family for task in self.task_buffer if task.family})}

    def export_policy(self, network: PolicyNetwork, folder: "Path", settings: EvaluationConfig) -> None:
        """Write the policy and held-out tasks to a run folder, so that the report page can run the policy in
        the browser."""
        from phalanx.arc.browser.export import export_agent

        export_agent(network, self.config, self.held_out(settings).task_buffer, folder)

    @property
    def render_modes(self) -> tuple[str, ...]:
        return ("svg", "ansi", "rgb_array")

    def render(self, state: ArcState, mode: str = "svg") -> Any:
        """Draw the input, the working grid and, in training mode, the target of a state.

        Args:
            state: A single state.
            mode: One of `render_modes`.
        """
        from phalanx.arc.rendering.modes import render_state_as

        return render_state_as(self.attach_names(state), mode, show_target=self.answers is None)

    def task_name(self, state: ArcState) -> str:
        return self.task_buffer[int(state.task_index)].id

    @property
    def has_text(self) -> bool:
        return True

    def observation_text(self, state: ArcState) -> str:
        if state.batch_shape:
            raise ValueError(f"expected a single state, got a batch of shape {state.batch_shape}")
        return self.observation_texts(state)[0]

    def observation_texts(self, states: ArcState, prompt_format: str = "full") -> list[str]:
        if prompt_format == "compact":
            return text.compact_observation_texts(self.task_buffer, states)
        return text.observation_texts(self.config, self.attach_names(states))

    def episode_keys(self, states: ArcState) -> list[str]:
        tasks = np.asarray(states.task_index).tolist()
        return [text.episode_key(self.task_buffer[task]) for task in tasks]

    def parse_action(self, answer: str, state: ArcState) -> Action:
        return text.parse_action(self.config, answer)

    def parse_actions(self, answers: Sequence[str], states: ArcState) -> tuple[Action | None, list[str]]:
        return text.parse_actions(self.config, answers)

    def action_text(self, action: Action, state: ArcState) -> str:
        return text.action_text(action)

    def episode_metrics(self, info: Any) -> dict[str, Array]:
        return {"success_mask": jnp.asarray(info.solved), "similarity_scores": jnp.asarray(info.similarity)}

    def attach_names(self, states: ArcState) -> ArcState:
        return replace_fields(states, tasks=self.task_arrays if self.tasks is None else self._visible_tasks)

    def detach_names(self, states: ArcState) -> ArcState:
        self._check_tasks(states)
        return replace_fields(states, tasks=None)

    def with_answers(self, states: ArcState) -> ArcState:
        """Return the states with the complete tasks attached, including the test outputs, which evaluation
        mode hides from agents."""
        return replace_fields(states, tasks=self.task_buffer)

    def __repr__(self) -> str:
        rows, columns = self.config.grid_shape
        parts = [f"canvas {rows}x{columns}", self.config.action.selection_format, self.config.episode.mode]
        parts += [f"backend {self.config.backend}", str(self.tasks or self.task_arrays)]
        parts += ["weighted"] * (self.task_weights is not None)
        parts += ["custom reward"] * (self.reward_function is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def _visible_tasks(self) -> TaskBuffer | None:
        """Tasks that are attached to states. In evaluation mode, they have no test outputs. None if `tasks`
        is None."""
        return self.tasks if self.tasks is None or self.answers is None else self.tasks.without_answers

    @property
    def _cumulative_weights(self) -> Float32[Array, " tasks"] | None:
        if self.task_weights is None:
            return None
        return task_sampling.cumulative_weights(self.task_weights, self.task_arrays)

    def _sample_start(self, key: Key, cumulative: Float32[Array, " tasks"] | None) -> EpisodeStart:
        bits = task_sampling.sample_start(key, self.task_arrays, cumulative)
        # In evaluation mode, an episode starts with the first test pair.
        return bits if self.answers is None else bits.at[1].set(0)

    def _start(self, start_bits: EpisodeStart) -> ResetResult:
        bits = start_bits
        if self.answers is not None:
            bits = evaluation_mode.start_bits_per_test(start_bits, self.answers.sizes.shape[-2])
        batch = bits.shape[:-1]
        blank = blank_states(batch, self.config.grid_shape)
        grid_shape = self.config.grid_shape if self.config.observation.working_grid else (0, 0)
        grid = jnp.zeros((*batch, *grid_shape), jnp.int8)
        state, grid = backends.reset(self.config, self.task_arrays, jnp.ones(batch, bool), bits, blank, grid)
        if self.answers is not None:
            state = evaluation_mode.start(self.config, self.task_arrays, start_bits, state)
        state = replace_fields(state, tasks=self._visible_tasks)
        return state, self._observe(state, grid if self.answers is None else None)

    def _observe(self, state: ArcState, grid: Int8[Array, "*batch rows columns"] | None) -> Observation:
        with_tasks = state if self.config.observation.is_single_array else self.attach_names(state)
        return create_observation(with_tasks, self.config, grid)

    def _check(self, states: ArcState) -> None:
        """Raise an error if the states do not match the environment's shapes, dtypes, mode or tasks."""
        rows, columns = self.config.grid_shape
        if states.grid_shape != (rows, columns):
            raise ValueError(
                f"the states have a canvas of {states.grid_shape}, the environment of {(rows, columns)}"
            )
        batch = states.batch_shape
        for name, shape, dtype in (
            ("boards", (*batch, NUM_BOARDS, rows), jnp.uint32),
            ("registers", (*batch, len(RegisterIndex)), jnp.int32),
            ("similarity", batch, jnp.float32),
        ):
            leaf = getattr(states, name)
            if jnp.shape(leaf) != shape or jnp.result_type(leaf) != dtype:
                raise ValueError(
                    f"a state's {name} must be {jnp.dtype(dtype).name} of shape {shape} on a canvas of "
                    f"{rows}x{columns}, got {jnp.result_type(leaf)} of shape {jnp.shape(leaf)}"
                )
        if (states.submission is None) != (self.answers is None):
            raise ValueError("the states belong to another mode (training or evaluation): start new episodes")
        self._check_tasks(states)

    def _check_tasks(self, states: ArcState) -> None:
        """Raise an error if the states refer to different tasks than this environment. The check is skipped
        if no `TaskBuffer` is attached to the states or the environment's `tasks` is None. The backends always
        check the task indices."""
        own = self._visible_tasks
        if isinstance(states.tasks, TaskBuffer) and own is not None and states.tasks != own:
            raise ValueError(
                f"the states belong to other tasks than the environment: they refer to {states.tasks}, the "
                f"environment has {own}; start new episodes after changing the tasks"
            )


# Cached because `batch_step(states, actions, config)` creates the environment on every call.
@functools.lru_cache(maxsize=128)
def _create(cls: type[Any], config: ArcConfig, tasks: TaskBuffer | None, native_unavailable: str) -> Any:
    config = config.model_copy(update={"backend": resolve_backend(config.backend)})
    tasks = fitting_tasks(config.dataset) if tasks is None else tasks
    tasks.check(config)
    if config.episode.mode == "evaluation" and Operation.SUBMIT not in config.action.operations:
        raise ValueError(
            "evaluation mode requires submissions: action.allowed_operations must contain "
            f"{int(Operation.SUBMIT)} (Submit)"
        )
    arrays, answers = evaluation_mode.hide_answers(config, tasks)
    with jax.ensure_compile_time_eval():
        weights = jnp.asarray(rewards.reward_weights_from_config(config.reward))
    return cls(config, arrays, None, weights, tasks, answers=answers)
