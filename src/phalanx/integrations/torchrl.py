"""TorchRL environment that steps a batch of any Phalanx environment with one compiled call."""

import math
import operator
import secrets
from collections.abc import Sequence
from typing import Any

from phalanx.extras import require_extra

with require_extra(__name__, "torch", "torch", "tensordict", "torchrl", "jax"):
    import jax
    import jax.numpy as jnp
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
    from torchrl.envs import EnvBase

import numpy as np
from jaxtyping import Bool, PyTree, UInt32, UInt64

from phalanx.core.environment import Environment, info_fields, mask_size
from phalanx.core.spaces import Box, Composite as CompositeSpace, Discrete, Space, check_fields, convert_value
from phalanx.core.vector import (
    VectorEnvState,
    initial_vector_state,
    positive_integer,
    reset_where,
    step_where,
)

ACTION, OBSERVATION, MASK = "action", "observation", "action_mask"
"""Keys in a tensor dictionary. `ACTION` holds the action, `OBSERVATION` holds the observation if it is a
single array, and `MASK` holds the mask of legal actions."""

_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64")
_TORCH_DTYPES = {name: getattr(torch, name) for name in _DTYPES}
# Most torch functions do not support the other unsigned types.
_TORCH_DTYPES |= {"uint16": torch.int32, "uint32": torch.int64}


class BatchedVecEnv(EnvBase):
    """A batch of environments that TorchRL steps as one environment.

    - Observation: one entry per field of the environment's observation, or an `observation` entry if the
      observation is a single array. If the environment restricts the legal actions, there is also
      `action_mask`. If an action has several fields, the mask applies to the first one.
    - Action: `action`, int64 with shape `[batch]`, or `("action", field)` for each field of an action with
      several fields.
    - `reward`, `done`, `terminated` and `truncated` have shape `[batch, 1]`.

    There is no auto-reset: a step that ends an episode returns its terminal observation, and further steps
    change nothing until the next reset. `reset` resets all environments, or only those that the `_reset`
    entry of its argument selects. The state is kept in this object as JAX arrays (`env.state`). Observations
    and actions are copied between torch and JAX.

    Args:
        environment: Environment to batch.
        batch_size: Number of environments.
        seed: Seed for the episodes.
        device: Device of the tensors that the environment returns.
    """

    def __init__(
        self, environment: Environment, batch_size: Any, *, seed: int = 0, device: Any = "cpu"
    ) -> None:
        size = _parse_batch_size(batch_size)
        super().__init__(device=device, batch_size=torch.Size([size]))
        self.environment = environment
        self._state: VectorEnvState | None = None
        self._info: Any = None
        self._set_specs()
        self._set_seed(seed)

    def _set_specs(self) -> None:
        shape, device = self.batch_size, self.device
        self.observation_spec = self._make_observation_spec()
        action_spec = make_spec(self.environment.action_space, shape, device)
        if isinstance(action_spec, Composite):
            action_spec = Composite({ACTION: action_spec}, shape=shape, device=device)
        self.action_spec = action_spec
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names}, shape=shape, device=device)

    def _make_observation_spec(self) -> Composite:
        shape, device, size = self.batch_size, self.device, mask_size(self.environment)
        spec = make_spec(self.environment.observation_space, shape, device)
        if not isinstance(spec, Composite):
            spec = Composite({OBSERVATION: spec}, shape=shape, device=device)
        if size is not None:
            spec[MASK] = Categorical(2, shape=(*shape, size), dtype=torch.bool, device=device)
        return spec

    @property
    def state(self) -> VectorEnvState:
        """States, observations, legal actions and termination flags of all environments."""
        if self._state is None:
            raise RuntimeError("the environments have not been reset: call reset() first")
        return self._state

    @property
    def last_info(self) -> dict[str, torch.Tensor]:
        """Fields of the last step's info as tensors, such as `proved` in proof environments."""
        if self._info is None:
            raise RuntimeError("there is no info yet: call step() first")
        return {
            name: to_torch(value, torch_dtype(value.dtype), self.device)
            for name, value in info_fields(self._info).items()
        }

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        mask = np.ones(self.batch_size, bool)
        if reset is not None:
            mask = reset.reshape(self.batch_size).cpu().numpy().copy()
            if self._state is None and not mask.all():
                raise RuntimeError("the first reset must reset all environments; remove '_reset'")
        if self._state is None or mask.any():
            state = initial_vector_state(self.environment, len(mask)) if self._state is None else self._state
            self._state = self._reset_where(mask, state)
        return self._entries(self.state)

    def _reset_where(self, mask: Bool[np.ndarray, " batch"], state: VectorEnvState) -> VectorEnvState:
        """Start new episodes where `mask` is True."""
        return self._reset_with_episode_keys(self.environment, mask, state)

    def _reset_with_episode_keys(
        self, environment: Environment, mask: Bool[np.ndarray, " batch"], state: VectorEnvState
    ) -> VectorEnvState:
        """Start new episodes where `mask` is True, with keys from `episode_keys`."""
        keys = episode_keys(self._seed, self._num_episodes)
        self._num_episodes[mask] += 1
        return reset_where(environment, mask, keys, state)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        state, step = self.state, tensordict.get("_step", None)
        space = self.environment.action_space
        actions = from_tensors(space, tensordict.get(ACTION), self.batch_size, ACTION)
        if step is not None:
            step = step.reshape(self.batch_size).cpu().numpy().copy()
        state, rewards, self._info = step_where(self.environment, step, state, actions)
        self._state, entries = state, self._entries(state)
        entries["reward"] = to_torch(rewards, torch.float32, self.device).unsqueeze(-1)
        return entries

    def _entries(self, state: VectorEnvState) -> TensorDict:
        state = jax.block_until_ready(state)
        device = self.device

        def convert(space: Any, value: Any) -> torch.Tensor:
            dtype = torch.int64 if isinstance(space, Discrete) else torch_dtype(space.dtype)
            return to_torch(value, dtype, device)

        entries = convert_value(convert, self.environment.observation_space, state.observations)
        entries = entries if isinstance(entries, dict) else {OBSERVATION: entries}
        if state.legal_actions is not None:
            entries[MASK] = to_torch(state.legal_actions, torch.bool, device)
        for name in ("terminated", "truncated"):
            entries[name] = to_torch(getattr(state, name), torch.bool, device).unsqueeze(-1)
        entries["done"] = entries["terminated"] | entries["truncated"]
        return TensorDict(entries, batch_size=self.batch_size, device=device)

    def _set_seed(self, seed: int | None) -> None:
        """Set the seed for all episodes that start from now on. If None, a random seed is chosen."""
        self._seed = secrets.randbits(32) if seed is None else operator.index(seed)
        self._num_episodes = np.zeros(self.batch_size, np.uint64)

    def __repr__(self) -> str:
        name, environment = type(self).__name__, type(self.environment).__name__
        return f"{name}({environment}, batch_size={self.batch_size[0]}, device={str(self.device)!r})"


def num_envs(env: Any) -> int:
    """Return the number of environments in a TorchRL environment.

    This is the product of the sizes in the `batch_size` attribute. If the environment has no `batch_size`,
    its `num_workers` is returned, or 1 if it has neither attribute.
    """
    size = getattr(env, "batch_size", None)
    if size is not None:
        return int(torch.Size(size).numel())
    return int(getattr(env, "num_workers", 1))


def _parse_batch_size(batch_size: Any) -> int:
    sizes = batch_size if isinstance(batch_size, Sequence) else [batch_size]
    if len(sizes) != 1:
        raise TypeError(f"batch_size must be an integer or a size with one axis, got {batch_size!r}")
    return positive_integer(sizes[0], "batch_size")


def episode_keys(seed: int, num_episodes: UInt64[np.ndarray, " batch"]) -> UInt32[np.ndarray, "batch 2"]:
    """Compute the PRNG key for the next episode of each environment.

    The key depends on the seed, the index of the environment in the batch, and the number of episodes that
    this environment has had so far (its entry in `num_episodes`). SplitMix64 ensures that no two episodes of
    a batch have the same key.
    """
    counter = (np.arange(len(num_episodes), dtype=np.uint64) << np.uint64(32)) | num_episodes
    bits = _splitmix64(_splitmix64(np.full_like(counter, seed % 2**64)) ^ counter)
    return np.stack([bits >> np.uint64(32), bits & np.uint64(2**32 - 1)], axis=1).astype(np.uint32)


def _splitmix64(bits: UInt64[np.ndarray, " batch"]) -> UInt64[np.ndarray, " batch"]:
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return a torch dtype that can represent all values of a NumPy dtype."""
    name = np.dtype(dtype).name
    if name not in _TORCH_DTYPES:
        raise TypeError(f"there is no torch dtype for {name}; supported are {', '.join(_TORCH_DTYPES)}")
    return _TORCH_DTYPES[name]


def to_torch(array: jax.Array, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """Copy a JAX array to a tensor."""
    # JAX arrays are immutable and share memory, so the tensor must not be a view.
    view = torch.from_dlpack(array)
    return view.to(device=device, dtype=dtype, copy=True)


def to_jax(tensor: torch.Tensor, dtype: Any) -> jax.Array:
    """Copy a tensor to a JAX array."""
    # Copied by torch, because `from_dlpack(copy=True)` shares the memory of an aligned tensor on the CPU.
    own = tensor.detach().to(dtype=torch_dtype(dtype), copy=True, memory_format=torch.contiguous_format)
    return jnp.from_dlpack(own).astype(dtype)


def make_spec(space: Space, batch_size: torch.Size, device: torch.device | None) -> TensorSpec:
    """Convert a space to a TorchRL spec for a batch of values."""
    match space:
        case CompositeSpace(fields=fields):
            specs = {name: make_spec(field, batch_size, device) for name, field in fields}
            return Composite(specs, shape=batch_size, device=device)
        case Discrete(n=n):
            return Categorical(n, shape=batch_size, dtype=torch.int64, device=device)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            batched = torch.Size((*batch_size, *shape))
            tensor_dtype = torch_dtype(dtype)
            if tensor_dtype == torch.bool:
                return Categorical(2, shape=batched, dtype=torch.bool, device=device)
            if math.isinf(low) and math.isinf(high):
                return Unbounded(shape=batched, dtype=tensor_dtype, device=device)
            return Bounded(low, high, shape=batched, dtype=tensor_dtype, device=device)
    raise TypeError(
        f"{type(space).__name__} cannot be converted to a TorchRL spec; Box, Discrete and Composite can"
    )


def from_tensors(space: Space, entry: Any, batch_size: torch.Size, name: str) -> PyTree:
    """Create a batch of values of a space from copies of tensors.

    Args:
        space: Space of the values.
        entry: Tensor with the values or, for a composite space, a tensor dictionary with the fields.
        batch_size: Required batch shape of the tensors.
        name: Name of the entry, for error messages.
    """
    if isinstance(space, CompositeSpace):
        check_fields(space, entry, repr(name))
        fields = {
            field: from_tensors(inner, entry.get(field), batch_size, f"{name}, {field}")
            for field, inner in space.fields
        }
        return space.constructor(**fields)
    leaf: Any = Box(0, space.n - 1, (), np.int32) if isinstance(space, Discrete) else space
    expected, dtype = (*batch_size, *leaf.shape), leaf.dtype
    if tuple(entry.shape) != expected:
        raise ValueError(f"{name!r} must have the shape {expected}, got {tuple(entry.shape)}")
    if entry.is_floating_point() and not np.issubdtype(dtype, np.inexact):
        raise TypeError(f"{name!r} must be integers, got {entry.dtype}")
    if isinstance(space, Discrete):
        # A number that does not fit into 32 bits must not wrap around to a legal one.
        entry = entry.to(torch.int64).clamp(-1, space.n)
    return to_jax(entry, dtype)
