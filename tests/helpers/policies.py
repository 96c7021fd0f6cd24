"""Policies with known success rates, and tasks to evaluate them on."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, Int32

from phalanx.arc import ArcConfig, ArcTask, DatasetConfig, EpisodeConfig, GridPair, ObservationConfig
from phalanx.arc.actions import BboxAction, PointAction
from phalanx.arc.config import ActionConfig
from phalanx.arc.observation import ArcObservation
from phalanx.core.environment import Key
from phalanx.nn.distributions import MaskedCategorical
from phalanx.training import Algorithm, CheckpointRef
from phalanx.training.checkpoints import Which
from phalanx.training.trained_policy import restore_state

SUBMIT = 34
NOTHING = 99
"""An operation that does not exist and changes nothing."""


def initial_policy(algorithm: Algorithm) -> Any:
    """Return the policy that a run of this algorithm starts from."""
    return algorithm.policy(algorithm.init(jax.random.key(algorithm.config.seed)))


def restore_policy(algorithm: Algorithm, run: str | Path, which: Which = "newest") -> Any:
    """Restore the policy of a checkpoint."""
    return algorithm.policy(restore_state(algorithm, CheckpointRef(Path(run), which)))


class Deterministic(eqx.Module):
    """A distribution that has one action with probability 1."""

    action: BboxAction

    def sample(self, key: Key) -> BboxAction:
        return self.action

    def mode(self) -> BboxAction:
        return self.action

    def log_prob(self, action: BboxAction) -> Float[Array, ""]:
        return jnp.float32(0)

    def entropy(self) -> Float[Array, ""]:
        return jnp.float32(0)


class SolutionPolicy(eqx.Module):
    """A policy that looks up its input and executes the known solution."""

    inputs: Int8[Array, "pairs rows columns"]
    steps: Int32[Array, "pairs longest 5"]

    def __call__(self, observation: ArcObservation) -> tuple[Deterministic, Float[Array, ""]]:
        pair = jnp.argmax(jnp.all(self.inputs == observation.input_grid, axis=(1, 2)))
        fields = self.steps[pair, jnp.minimum(observation.step_count, self.steps.shape[1] - 1)]
        return Deterministic(BboxAction(*fields)), jnp.float32(0)


def knows(
    tasks: list[ArcTask], canvas: tuple[int, int], ignorant_of: tuple[str, ...] = (), submits: bool = False
) -> SolutionPolicy:
    """Create a policy that knows the solutions of all pairs except those of the families `ignorant_of`.

    It submits its solutions if `submits` is true.
    """
    pairs = [
        (pair.input, () if task.family in ignorant_of else solution)
        for task in tasks
        for pair, solution in zip(task.pairs, task.solutions, strict=True)
    ]
    inputs = np.full((len(pairs), *canvas), -1, np.int8)
    steps = np.zeros((len(pairs), 1 + max(len(solution) for _, solution in pairs), 5), np.int32)
    steps[..., 0] = NOTHING
    for row, (grid, solution) in enumerate(pairs):
        inputs[row, : grid.shape[0], : grid.shape[1]] = grid
        for at, step in enumerate(solution):
            steps[row, at] = step.operation, step.r1, step.c1, step.r2, step.c2
        if submits and solution:
            steps[row, len(solution)] = SUBMIT, 0, 0, 0, 0
    return SolutionPolicy(jax.device_put(inputs), jax.device_put(steps))


def box_config(side: int, mode: str = "training", max_steps: int = 8) -> ArcConfig:
    return ArcConfig(
        episode=EpisodeConfig(max_episode_steps=max_steps, mode=mode),
        dataset=DatasetConfig(max_grid_height=side, max_grid_width=side),
        action=ActionConfig(selection_format="bbox"),
        observation=ObservationConfig(input_grid=True, scalars=True),
    )


class Paints(eqx.Module):
    """A policy with fixed logits for the colors."""

    logits: Float[Array, "10"]

    def __call__(self, observation: Array) -> tuple["PaintCell", Float[Array, ""]]:
        return PaintCell(MaskedCategorical(self.logits)), jnp.float32(0.5)


class PaintCell(eqx.Module):
    """A distribution over the ten colors of the cell (0, 0)."""

    colors: MaskedCategorical

    def sample(self, key: Key) -> PointAction:
        return PointAction(self.colors.sample(key), 0, 0)

    def mode(self) -> PointAction:
        return PointAction(self.colors.mode(), 0, 0)

    def log_prob(self, action: PointAction) -> Float[Array, ""]:
        return self.colors.log_prob(action.operation)

    def entropy(self) -> Float[Array, ""]:
        return self.colors.entropy()


EVERY_COLOR = Paints(jnp.zeros(10))
"""Paints each color with probability 1/10."""


def only(color: int) -> Paints:
    """Create a policy that always paints one color."""
    return Paints(jnp.where(jnp.arange(10) == color, 0.0, -jnp.inf))


CELL = ArcConfig(
    episode=EpisodeConfig(max_episode_steps=1),
    dataset=DatasetConfig(max_grid_height=1, max_grid_width=1),
)
"""Episodes with one cell and one step."""


def cell_task(id: str, colors: list[int], tests: tuple[int, ...] = (), family: str = "") -> ArcTask:
    """Create a task with a black cell as input; each color is the output of a demonstration or test pair."""
    demo_pairs, test_pairs = (
        tuple(GridPair(np.array([[0]]), np.array([[color]])) for color in group) for group in (colors, tests)
    )
    return ArcTask(id, demo_pairs, test_pairs, family)


def keys_of(numbers: list[int]) -> jax.Array:
    return jnp.stack([jax.random.key(number) for number in numbers])
