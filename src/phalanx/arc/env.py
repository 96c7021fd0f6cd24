"""The ARC environment: reset, step, what an agent sees, and which operations are legal.

How operations work is in the engines; tasks are in `tasks`, `buffer` and `readers`, rewards in `rewards`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, PyTree, UInt32

from phalanx.arc import text as words
from phalanx.arc.actions import Action, action_space, random_action
from phalanx.arc.backends import transition
from phalanx.arc.backends.interface import Packed, blank_states, check_packed, encode_action
from phalanx.arc.bitplanes import pack_grid, trim
from phalanx.arc.config import ArcConfig
from phalanx.arc.evaluation_mode import HiddenTestOutputs, hide_answers, start, step, words_by_test
from phalanx.arc.observation import (
    Observation,
    is_plain,
    legal_operations,
    observation_of,
    observation_space,
    working_of,
)
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.parts import ArcParts, Made
from phalanx.arc.reward import (
    RewardFunction,
    RewardNumbers,
    StepInfo,
    as_reward,
    compute_reward,
    info_of,
    reward_weights_by_name,
    transition_of,
)
from phalanx.arc.state import STATUS, STEP_COUNT, ArcState, SubmissionState, bound_to
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, Tasks, UnnamedTasks, as_buffer, with_answers
from phalanx.arc.task_files import config_tasks
from phalanx.arc.task_sampling import START_WORDS, cumulative_weights, sample_start, start_at
from phalanx.arc.tasks import as_grid
from phalanx.core.backends import resolve_backend
from phalanx.core.environment import Key, Keys, TracedEnvironment
from phalanx.core.spaces import Space
from phalanx.core.vector import map_where, select_rows
from phalanx.native import native_unavailable_reason


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ArcEnvironment(ArcParts, TracedEnvironment[ArcState, Observation, Action]):
    """ARC puzzles: an agent edits a working grid until it equals the pair's output.

    - Observation: the working grid, int8 [rows, columns], -1 outside its area; more by `config.observation`.
    - Action: one of 42 operations on a point, a box or a mask of cells.
    - Reward: change of similarity, a step penalty, a success bonus (`RewardConfig`), or your own function.
    - Termination: submission or solution; truncation at `max_episode_steps`.

    In evaluation an episode is a whole task and its answers are handed in by Submit: states and engines have
    the tasks without the outputs of their test pairs, and nothing is told before the last hand-in.

    Make it with `create`, which settles the engine and checks that the tasks fit; `with_tasks`,
    `with_weights` and `with_reward` give changed copies. Tasks, weights and the numbers of the reward are
    arrays: as an argument of a compiled function an environment brings them along, so that a changed copy
    needs no new compilation. As a static argument or in a closure they are constants of the program.
    """

    config: ArcConfig
    tasks: TaskBuffer | None
    """The tasks that `reset` draws from; None inside a program that has the environment as an argument."""
    arrays: TaskArrays
    """What the engines read of the tasks; in evaluation without the outputs of test pairs."""
    weights: Float32[Array, "*groups tasks"] | None
    """How often each task is drawn in proportion to the others; None draws all equally often."""
    numbers: RewardNumbers
    """What the default reward pays, in the order of `REWARD_WEIGHTS`; `config.reward` has the first ones."""
    reward: RewardFunction | None = None
    """Pays in the default reward's place."""
    answers: HiddenTestOutputs | None = None
    """The outputs of test pairs, in evaluation."""

    version: ClassVar[int] = 2
    traced_fields: ClassVar = ("arrays", "weights", "numbers", "reward", "answers")
    named_fields: ClassVar = ("tasks",)

    @classmethod
    def create(
        cls: type[Made],
        config: ArcConfig,
        task: Tasks | None = None,
        *,
        weights: object = None,
        reward: RewardFunction | None = None,
    ) -> Made:
        """The environment over a task, several tasks or a buffer; None takes the config's own.

        `weights` are as in `with_weights`. `reward` is a function from one `Transition` to a number; an
        Equinox module in its place may hold arrays, which are traced as the tasks are.
        """
        buffer = None if task is None else with_answers(as_buffer(task))
        made: Any = _environment(cls, config, buffer, native_unavailable_reason())  # type: ignore[arg-type]
        if reward is not None:
            made = dataclasses.replace(made, reward=as_reward(reward))
        return made if weights is None else made.with_weights(weights)

    @property
    def observation_space(self) -> Space:
        return observation_space(self.config)

    @property
    def action_space(self) -> Space:
        return action_space(self.config)

    def reset(self, key: Key) -> tuple[ArcState, Observation]:
        return self._start(self._drawn(key, self._bounds))

    def batch_reset(self, keys: Keys) -> tuple[ArcState, Observation]:
        return self._start(jax.vmap(self._drawn, (0, None))(keys, self._bounds))

    def _drawn(self, key: Key, bounds: Float32[Array, " tasks"] | None) -> UInt32[Array, "3"]:
        words = sample_start(key, self.arrays, bounds)
        # A whole task begins with its first test pair.
        return words if self.answers is None else words.at[1].set(0)

    def batch_reset_to(
        self, tasks: Int32[Array, " batch"], pairs: Int32[Array, " batch"]
    ) -> tuple[ArcState, Observation]:
        """Start the given pairs of the given tasks, for evaluations that leave none out.

        Pairs count from 0 among those that the mode starts from: the tests in evaluation, where it is
        the one that a whole task begins with, and for a task without demonstrations; the demonstrations
        otherwise. After the last comes the first again.
        """
        return self._start(start_at(tasks, pairs, self.arrays))

    def state_from_grid(self, grid: object, task: int | str = 0, pair: int = 0) -> ArcState:
        """The first state of an episode whose working grid is this one, on a pair as `batch_reset_to` counts.

        The grid is rows of colors or an array; cells of -1 at its lower and right edge, as an observation has
        them outside its area, are left out. `task` is an index or an id. `stack_states` makes batches.
        """
        rows, columns = self.config.grid_shape
        cells = as_grid(trim(grid), "state_from_grid")
        if cells.shape[0] > rows or cells.shape[1] > columns:
            raise ValueError(f"a grid of {cells.shape} does not fit a canvas of {(rows, columns)}")
        index = self.task_buffer.index_of(task) if isinstance(task, str) else task
        if not 0 <= index < len(self.task_buffer):
            raise ValueError(f"there are {len(self.task_buffer)} tasks, so there is no task {index}")
        state, _ = self._start(start_at(jnp.int32(index), jnp.int32(pair), self.arrays))
        planes = pack_grid(cells, rows)
        packed: Packed = transition.with_grid(
            self.config, self.arrays, packed_of(state), planes, *cells.shape
        )
        return ArcState(*packed, state.tasks, columns, state.work)

    @property
    def _bounds(self) -> Float32[Array, " tasks"] | None:
        return None if self.weights is None else cumulative_weights(self.weights, self.arrays)

    def _start(self, words: UInt32[Array, "*batch 3"]) -> tuple[ArcState, Observation]:
        if self.answers is not None:
            tests = words_by_test(words, self.answers.sizes.shape[-2])
            packed: Packed
            packed, work = start(self.config, self.arrays, words, self._first_states(tests)[0])
            state = ArcState(*packed, self._shown, self.config.grid_shape[1], work)
            return state, self._observation(state, None)
        packed, working = self._first_states(words)
        state = ArcState(*packed, self.tasks, self.config.grid_shape[1])
        return state, self._observation(state, working)

    def _first_states(self, words: UInt32[Array, "*batch 3"]) -> tuple[Packed, Array]:
        batch = words.shape[:-1]
        rows, columns = self.config.grid_shape
        seen = (rows, columns) if self.config.observation.working_grid else (0, 0)
        return transition.reset(
            self.config,
            self.arrays,
            jnp.ones(batch, bool),
            words,
            blank_states(batch, rows),
            jnp.zeros((*batch, *seen), jnp.int8),
        )

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: ArcState, observations: Observation
    ) -> tuple[ArcState, Observation]:
        self._check(states)
        bounds = self._bounds
        if self.answers is not None:
            fresh, seen = self.batch_reset(keys)
            return select_rows(mask, (fresh, seen), (bound_to(fresh.tasks, states), observations))
        words = map_where(
            sample_start,
            mask,
            keys,
            jnp.zeros((mask.shape[0], START_WORDS), jnp.uint32),
            shared=(self.arrays, bounds),
        )
        packed, working = transition.reset(
            self.config, self.arrays, mask, words, packed_of(states), working_of(observations)
        )
        state = ArcState(*packed, states.tasks, states.columns)
        return state, self._observation(state, working)

    def step(
        self, state: ArcState, action: Action
    ) -> tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]:
        self._check(state)
        fields = encode_action(action, state.batch_shape, state.grid_shape)
        packed, outcome = transition.step(self.config, self.arrays, self.numbers, fields, packed_of(state))
        work: SubmissionState | None = None
        seen: Array | None = outcome.observation
        if self.answers is not None:
            nameless = bound_to(None, state)
            packed, work, outcome = step(
                self.config, self.arrays, self.answers, self.numbers, nameless, packed, outcome
            )
            seen = None
        new = ArcState(*packed, state.tasks, state.columns, work)
        info = info_of(new.similarity, outcome)
        paid = outcome.reward
        if self.reward is not None:
            limit = self.config.episode.max_episode_steps
            happened = transition_of(state.similarity, new.similarity, ~state.episode_done, outcome, limit)
            paid = compute_reward(self.reward, happened, ~state.episode_done)
        return new, self._observation(new, seen), paid, outcome.done, info

    def batch_step(
        self, states: ArcState, actions: Action
    ) -> tuple[ArcState, Observation, Float32[Array, " batch"], Bool[Array, " batch"], StepInfo]:
        return self.step(states, actions)

    def _check(self, states: ArcState) -> None:
        if states.grid_shape != self.config.grid_shape:
            raise ValueError(
                f"a state of {states.grid_shape} does not fit a canvas of {self.config.grid_shape}"
            )
        check_packed(packed_of(states), states.grid_shape, states.batch_shape)
        if (states.work is None) != (self.answers is None):
            raise ValueError("states of training and of evaluation differ: start new episodes")
        self._check_tasks(states)

    def _observation(self, state: ArcState, working: Array | None) -> Observation:
        return observation_of(state if is_plain(self.config) else self.bind(state), self.config, working)

    def observe(self, state: ArcState) -> Observation:
        return self._observation(state, None)

    def is_done(self, state: ArcState) -> Bool[Array, "*batch"]:
        return state.episode_done

    def sample_action(self, key: Key, state: ArcState) -> Action:
        """A random legal operation on random cells of the area."""
        return random_action(key, self.config, self.config.action.operations, state.height, state.width)

    def invalid_action(self, key: Key, state: ArcState) -> Action:
        """A legal action's cells with an operation that does not exist or is not allowed."""
        illegal = sorted(
            {-1, NUM_OPERATIONS, 99, *range(NUM_OPERATIONS)} - set(self.config.action.operations)
        )
        choice = jax.random.randint(key, (), 0, len(illegal))
        action = self.sample_action(key, state)
        return eqx.tree_at(lambda a: a.operation, action, jnp.asarray(illegal, jnp.int32)[choice])

    def content(self, state: ArcState) -> PyTree:
        registers = state.registers.at[..., jnp.array([STEP_COUNT, STATUS])].set(0)
        return state.boards, registers, state.similarity, state.work

    def legal_actions(self, state: ArcState) -> Bool[Array, "*batch 42"]:
        """Which operations are legal; cells may be any of the canvas."""
        return legal_operations(state, self.config)

    @property
    def render_modes(self) -> tuple[str, ...]:
        return ("svg", "ansi", "rgb_array")

    def render(self, state: ArcState, mode: str = "svg") -> Any:
        """Input, working grid and, but in evaluation, the target."""
        from phalanx.arc.rendering.modes import render_picture

        return render_picture(self.bind(state), mode, show_target=self.answers is None)

    def task_name(self, state: ArcState) -> str:
        return words.task_of(self.bind(state)).id

    @property
    def has_text(self) -> bool:
        return True

    def observation_text(self, state: ArcState) -> str:
        if state.batch_shape:
            raise ValueError(f"expected a single state, got a batch of shape {state.batch_shape}")
        return self.observation_texts(state)[0]

    def observation_texts(self, states: ArcState) -> list[str]:
        return words.observation_texts(self.config, self.bind(states), self.config.action.operations)

    def parse_action(self, text: str, state: ArcState) -> Action:
        return words.parse_action(self.config, text, self.config.action.operations)

    def parse_actions(self, texts: Sequence[str], states: ArcState) -> tuple[Action | None, list[str]]:
        return words.parse_actions(self.config, texts, self.config.action.operations)

    def action_text(self, action: Action, state: ArcState) -> str:
        return words.action_text(action)

    def measures(self, info: Any) -> dict[str, Array]:
        return {"success_mask": jnp.asarray(info.solved), "similarity_scores": jnp.asarray(info.similarity)}

    def __repr__(self) -> str:
        rows, columns = self.config.grid_shape
        parts = [
            f"canvas {rows}x{columns}",
            self.config.action.selection_format,
            self.config.episode.mode,
        ]
        parts += [f"backend {self.config.backend}", str(self.tasks or UnnamedTasks(self.arrays))]
        parts += ["weighted"] * (self.weights is not None) + ["own reward"] * (self.reward is not None)
        return f"{type(self).__name__}({', '.join(parts)})"


def packed_of(state: ArcState) -> Packed:
    """A state's leaves."""
    return Packed(state.boards, state.registers, state.similarity)


@functools.lru_cache(maxsize=128)
def _environment(cls: type[Any], config: ArcConfig, tasks: TaskBuffer | None, why_not_native: str) -> Any:
    """Made once for equal arguments: `batch_step(states, actions, config)` asks for it at every call."""
    config = config.model_copy(update={"backend": resolve_backend(config.backend)})
    tasks = config_tasks(config) if tasks is None else tasks
    tasks.check(config)
    if config.episode.mode == "evaluation" and Operation.SUBMIT not in config.action.operations:
        raise ValueError(
            "in evaluation answers are handed in: action.allowed_operations must contain "
            f"{int(Operation.SUBMIT)} (Submit)"
        )
    arrays, answers = hide_answers(config, tasks)
    with jax.ensure_compile_time_eval():
        numbers = jnp.asarray(reward_weights_by_name(config.reward))
    return cls(config, tasks, arrays, None, numbers, answers=answers)
