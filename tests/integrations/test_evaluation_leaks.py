"""Integrations do not reveal hidden test outputs before the last submission of an evaluation.

Like `tests/arc/test_no_leak.py`, compare two sets of tasks that differ only in their hidden outputs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcEnvironment, ArcTask, BboxAction, GridPair, ObservationConfig, as_grid
from phalanx.integrations.gymnax import GymnaxEnv

TASKS, STEPS = 1000, 8
CONFIG = ArcConfig(
    dataset={"max_grid_height": 2, "max_grid_width": 2},
    action={"selection_format": "bbox"},
    episode={"mode": "evaluation", "max_episode_steps": STEPS - 2, "attempts": 2},
    observation=ObservationConfig(
        input_grid=True, target_grid=True, selected=True, clipboard=True, num_demonstrations=1, scalars=True
    ),
)
OPERATIONS = np.array([0, 1, 2, 31, 32, 33, 34, 37, 38, 39, 40, 41])
StepOutputs = Iterator[tuple[np.ndarray, Any, np.ndarray]]
"""For each step: the ended episodes, all returned values, and the solved episodes."""


@functools.cache
def create_environment(seed: int) -> ArcEnvironment:
    """Create tasks with one or two hidden outputs drawn with the seed. Half of them equal their inputs."""
    input_rng, output_rng = np.random.default_rng(0), np.random.default_rng(seed)
    tasks = []
    for number in range(TASKS):
        demo = GridPair(*(as_grid(input_rng.integers(0, 3, (2, 2))) for _ in range(2)))
        inputs = [as_grid(input_rng.integers(0, 3, (1, 2))) for _ in range(1 + number % 2)]
        size = output_rng.integers(1, 3, 2)
        outputs = [
            g if output_rng.random() < 0.5 else as_grid(output_rng.integers(0, 3, size)) for g in inputs
        ]
        pairs = tuple(GridPair(g, output) for g, output in zip(inputs, outputs, strict=True))
        tasks.append(ArcTask(f"t{number}", (demo,), pairs))
    return ArcEnvironment.create(CONFIG, tasks)


def actions() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        boxes = rng.integers(0, 2, (TASKS, 4))
        yield np.column_stack([rng.choice(OPERATIONS, TASKS), boxes]).astype(np.int32)


def gymnasium(environment: ArcEnvironment) -> StepOutputs:
    pytest.importorskip("gymnasium")
    from phalanx.integrations.gymnasium import GymnasiumVectorEnv

    env = GymnasiumVectorEnv(environment, TASKS, autoreset_mode="SameStep")
    yield np.zeros(TASKS, bool), env.reset(seed=1), np.zeros(TASKS, bool)
    for action in actions():
        observations, reward, terminated, truncated, infos = env.step(action)
        final = infos.pop("final_info", {"solved": np.zeros(TASKS, bool)})
        infos = {name: value for name, value in infos.items() if not name.endswith(("final_obs", "_info"))}
        ended = terminated | truncated
        yield ended, (observations, np.where(ended, 0, reward), truncated, ended, infos), final["solved"]


def torchrl(environment: ArcEnvironment) -> StepOutputs:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict

    from phalanx.integrations.torchrl import BatchedVecEnv

    env = BatchedVecEnv(environment, TASKS, seed=1)
    yield np.zeros(TASKS, bool), env.reset().to_dict(), np.zeros(TASKS, bool)
    names = ("operation", "r1", "c1", "r2", "c2")
    for action in actions():
        fields = {name: torch.from_numpy(action[:, k].copy()) for k, name in enumerate(names)}
        outputs = env.step(TensorDict({"action": fields}, [TASKS]))["next"].to_dict()
        info = env.last_info
        yield outputs["done"].numpy()[:, 0], (outputs, info, env.state.states), info["solved"].numpy()


def compiled(wrap: Callable[[ArcEnvironment], Any], method: str) -> Callable[..., Any]:
    """Compile a batched method with the environment as an argument, so that both environments share it."""
    return jax.jit(lambda environment, *args: jax.vmap(getattr(wrap(environment), method))(*args))


KEYS = jax.random.split(jax.random.key(1), TASKS)


def stoa(environment: ArcEnvironment) -> StepOutputs:
    adapter = pytest.importorskip("phalanx.integrations.stoa").PhalanxToStoa
    state, first = STOA_RESET(adapter)(environment, KEYS)
    yield np.zeros(TASKS, bool), (state.base_env_state, first), np.zeros(TASKS, bool)
    for action in actions():
        state, outputs = STOA_STEP(adapter)(environment, state, jnp.asarray(action))
        yield (
            np.asarray(outputs.last()),
            (state.base_env_state, outputs),
            np.asarray(outputs.extras["info"]["solved"]),
        )


def gymnax_style(environment: ArcEnvironment) -> StepOutputs:
    observations, state = GYMNAX_RESET(environment, KEYS)
    yield np.zeros(TASKS, bool), (observations, state), np.zeros(TASKS, bool)
    for action in actions():
        outputs = GYMNAX_STEP(environment, KEYS, state, BboxAction(*jnp.asarray(action.T)))
        state = outputs[1]
        yield np.asarray(outputs[3]), outputs, np.asarray(outputs[4]["solved"])


STOA_RESET, STOA_STEP = (functools.cache(functools.partial(compiled, method=m)) for m in ("reset", "step"))
GYMNAX_RESET, GYMNAX_STEP = (compiled(GymnaxEnv, m) for m in ("reset", "step_env"))


@pytest.mark.parametrize("adapter", [gymnasium, torchrl, stoa, gymnax_style], ids=lambda f: f.__name__)
def test_integrations_do_not_leak_hidden_outputs(
    adapter: Callable[[ArcEnvironment], StepOutputs],
) -> None:
    num_different = 0
    for number, ((ended, outputs, solved), (other_ended, other_outputs, other_solved)) in enumerate(
        zip(adapter(create_environment(1)), adapter(create_environment(2)), strict=True)
    ):
        np.testing.assert_array_equal(ended, other_ended, f"step {number}: whether it ended")
        leaves, others = jax.tree.leaves(outputs), jax.tree.leaves(other_outputs)
        assert len(leaves) == len(others) > 5
        for one, other in zip(leaves, others, strict=True):
            rows = ~ended if np.shape(one)[:1] == (TASKS,) else ...
            np.testing.assert_array_equal(np.asarray(one)[rows], np.asarray(other)[rows], f"step {number}")
        num_different += int((solved != other_solved).sum())
    assert num_different > 20, "the hidden outputs must differ"
