"""The TorchRL integration: ARC with composite actions and observations, and nested spaces."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int32

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from torchrl.data import Categorical, Composite  # noqa: E402
from torchrl.envs import ActionMask, TransformedEnv, check_env_specs  # noqa: E402

from phalanx.arc.config import ArcConfig  # noqa: E402
from phalanx.arc.env import ArcEnvironment  # noqa: E402
from phalanx.arc.tasks import ArcTask  # noqa: E402
from phalanx.core.environment import Environment, EpisodeState, Key  # noqa: E402
from phalanx.core.spaces import Box, Composite as CompositeSpace, Discrete, Space  # noqa: E402
from phalanx.integrations.torchrl import (  # noqa: E402
    BatchedVecEnv,
    make_spec,
    to_jax,
    to_torch,
    torch_dtype,
)


def arc(selection: str, *, scalars: bool = False) -> BatchedVecEnv:
    task = ArcTask.from_dict({"train": [{"input": [[0, 0]], "output": [[3, 0]]}], "test": []}, "fill")
    config = ArcConfig(
        dataset={"max_grid_height": 2, "max_grid_width": 3},
        episode={"max_episode_steps": 4},
        action={"selection_format": selection, "allowed_operations": (2, 3, 34)},
        observation={"scalars": scalars},
    )
    return BatchedVecEnv(ArcEnvironment.create(config, task), 2)


def test_arc_has_composite_actions_and_grid_observations() -> None:
    env = arc("point")
    check_env_specs(env)
    first = env.reset()
    assert first["observation"].tolist() == [[[0, 0, -1], [-1, -1, -1]]] * 2
    assert first["observation"].dtype == torch.int8
    action = {"operation": [3, 2], "row": [0, 0], "col": [0, 1]}
    batch = TensorDict({"action": {k: torch.tensor(v) for k, v in action.items()}}, [2])
    after = env.step(batch)["next"]
    assert after["observation"].tolist() == [[[3, 0, -1], [-1, -1, -1]], [[0, 2, -1], [-1, -1, -1]]]
    assert after["terminated"].tolist() == [[True], [False]]
    assert after["reward"][0] > after["reward"][1]


def test_action_mask_keeps_random_operations_legal() -> None:
    env = TransformedEnv(arc("point"), ActionMask(action_key=("action", "operation")))
    data = env.rollout(20, break_when_any_done=False)
    assert data["action_mask"].shape == (2, 20, 42)
    assert data["action_mask"][0, 0].nonzero().squeeze(-1).tolist() == [2, 3, 34]
    assert set(data["action", "operation"].unique().tolist()) == {2, 3, 34}


def test_cell_masks_and_scalar_observations_match_the_specs() -> None:
    env = arc("mask", scalars=True)
    check_env_specs(env)
    data = env.rollout(2, break_when_any_done=False)
    assert data["action", "selection"].shape == (2, 2, 2, 3)
    assert data["action", "selection"].dtype == torch.bool
    assert data["similarity"].shape == (2, 2) and data["similarity"].dtype == torch.float32
    assert data["legal_operations"].shape == data["action_mask"].shape == (2, 2, 42)


def test_incomplete_action_is_rejected() -> None:
    env = arc("point")
    env.reset()
    with pytest.raises(TypeError, match=r"the keys operation, row, col, got \['operation'\]"):
        env.step(TensorDict({"action": {"operation": torch.zeros(2, dtype=torch.int64)}}, [2]))
    with pytest.raises(
        TypeError, match="'action' must be a dictionary with the keys operation, row, col, got "
    ):
        env.step(TensorDict({"action": torch.zeros(2, dtype=torch.int64)}, [2]))


class Inner(eqx.Module):
    level: Float[Array, "*batch"]
    kind: Int32[Array, "*batch"]


class Outer(eqx.Module):
    inner: Inner
    bits: Array


class CountState(EpisodeState):
    pass


class Counter(Environment[CountState, Outer, Array]):
    """Three steps with the action as the reward. Observations are nested and have unusual dtypes."""

    max_episode_steps: int = 3

    @property
    def observation_space(self) -> Space:
        inner = {"level": Box(-np.inf, np.inf, ()), "kind": Discrete(4)}
        return CompositeSpace.of(
            Outer, {"inner": CompositeSpace.of(Inner, inner), "bits": Box(0, 2**32 - 1, (2,), np.uint32)}
        )

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    def initial_state(self, key: Key) -> CountState:
        return CountState()

    def transition(
        self, state: CountState, action: Float[Array, "1"]
    ) -> tuple[CountState, Float[Array, ""], bool]:
        return state, action[0], False

    def observe(self, state: CountState) -> Outer:
        bits = jnp.array([0, 2**32 - 1], jnp.uint32)
        return Outer(Inner(state.step_count * 0.5, state.step_count), bits)


def test_nested_composites_become_nested_keys() -> None:
    env = BatchedVecEnv(Counter(), 2)
    check_env_specs(env)
    data = env.rollout(5)
    assert data.batch_size == (2, 3)
    assert data["next", "inner", "level"].tolist() == [[0.5, 1.0, 1.5]] * 2
    assert data["next", "inner", "kind"].tolist() == [[1, 2, 3]] * 2
    assert data["bits"][0, 0].tolist() == [0, 2**32 - 1]
    assert data["action"].shape == (2, 3, 1) and data["action"].dtype == torch.float32
    assert torch.equal(data["next", "reward"], data["action"])
    assert "action_mask" not in list(data.keys())


def test_discrete_space_is_categorical_and_unknown_space_is_rejected() -> None:
    spec = make_spec(Discrete(5), torch.Size([2]), None)
    assert isinstance(spec, Categorical) and spec.n == 5 and not isinstance(spec, Composite)

    class Odd(Space):
        def sample(self, key: object) -> None: ...

        def contains(self, value: object) -> bool:
            return False

    with pytest.raises(TypeError, match="Odd cannot be converted to a TorchRL spec"):
        make_spec(Odd(), torch.Size([2]), None)
    with pytest.raises(TypeError, match="no torch dtype for complex64"):
        torch_dtype(np.complex64)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"]
)
def test_array_conversion_copies_memory(dtype: str) -> None:
    array = jnp.asarray([[0, 1, 1], [1, 0, 1]], dtype)
    tensor = to_torch(array, torch_dtype(dtype))
    back = to_jax(tensor, dtype)
    tensor.zero_()
    assert back.dtype == array.dtype and (back == array).all()
    assert array.tolist() == [[0, 1, 1], [1, 0, 1]]
    # Aligned to 64 bytes, so that JAX could share the memory without a copy.
    aligned = torch.ones(64, dtype=torch_dtype(dtype))
    taken = to_jax(aligned, dtype)
    aligned.zero_()
    assert (taken == 1).all()
    assert to_jax(torch.ones(2, 3).t(), jnp.float32).shape == (3, 2)


def test_gym_env_of_torchrl_runs_phalanx_environments() -> None:
    """`GymEnv` passes `frameskip` and repeats the call without it after a `TypeError` about that argument."""
    from torchrl.envs import GymEnv

    import phalanx.integrations.gymnasium  # noqa: F401

    env = GymEnv("phalanx/arc-v2", config="mini", categorical_action_encoding=True)
    assert env.rollout(2).batch_size == (2,)
