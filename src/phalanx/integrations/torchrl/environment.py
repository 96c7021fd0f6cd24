"""Any Phalanx environment as a TorchRL environment: a batch that steps in formation within one process.

Specs and tensordict entries are in `specs`; what proofs have besides, their queries, is in `proofs`.
"""

import dataclasses
import operator
import secrets
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Bool, PyTree, UInt32, UInt64
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from phalanx.core.environment import Environment, Keys
from phalanx.core.vector import select_rows
from phalanx.integrations.environments import (
    MASK,
    OBSERVATION,
    blank_batch,
    legal_rows,
    mask_size,
    whole_number,
)
from phalanx.integrations.torchrl.specs import (
    named_entries,
    named_spec,
    spec_of,
    to_torch,
    torch_dtype,
    value_of,
)

ACTION = "action"
"""The key of an action that is no record."""


class Batch(eqx.Module):
    """Where a batch of environments stands, as JAX arrays."""

    states: PyTree
    observations: PyTree
    legal: Bool[Array, "batch actions"] | None
    """Which actions are legal; None where all of them always are."""
    terminated: Bool[Array, " batch"]
    truncated: Bool[Array, " batch"]


class BatchedVecEnv(EnvBase):
    """A batch of any Phalanx environment that TorchRL steps as one.

    - Observation: the fields of the environment's observation under their names and in their shapes, behind
      the batch; an observation that is one array is at `observation`. For environments that have legal
      actions also `action_mask`, of the action or of a record's first field.
    - Action: at `action`, int64 [B]; the fields of an action that is a record are at `("action", field)`.
    - `reward`, `done`, `terminated` and `truncated` are [B, 1].

    It never resets itself: a step that ends an episode returns its terminal observation, and further steps
    change nothing until a reset, of all or where `_reset` says so. The state lives in this object, as JAX
    arrays (`env.batch`), and only copies of its arrays cross the border, in both directions.
    """

    def __init__(
        self, environment: Environment, batch_size: Any, *, seed: int = 0, device: Any = "cpu"
    ) -> None:
        size = _whole_number(batch_size)
        super().__init__(device=device, batch_size=torch.Size([size]))
        self.environment = environment
        self._batch: Batch | None = None
        self._info: Any = None
        self._set_specs()
        self._set_seed(seed)

    def _set_specs(self) -> None:
        shape, device = self.batch_size, self.device
        self.observation_spec = self._observed_spec()
        acted = spec_of(self.environment.action_space, shape, device)
        self.action_spec = (
            Composite({ACTION: acted}, shape=shape, device=device) if isinstance(acted, Composite) else acted
        )
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names}, shape=shape, device=device)

    def _observed_spec(self) -> Composite:
        shape, device, size = self.batch_size, self.device, mask_size(self.environment)
        observed = named_spec(self.environment.observation_space, OBSERVATION, shape, device)
        if size is not None:
            observed[MASK] = Categorical(2, shape=(*shape, size), dtype=torch.bool, device=device)
        return observed

    @property
    def batch(self) -> Batch:
        """Where the environments stand."""
        if self._batch is None:
            raise RuntimeError("the environments have not begun: call reset() first")
        return self._batch

    @property
    def last_info(self) -> dict[str, torch.Tensor]:
        """What the last step told besides the rest (for proofs `proved`, `overflow`, ...), as copies."""
        if self._info is None:
            raise RuntimeError("nothing has been told yet: call step() first")
        fields = {field.name: getattr(self._info, field.name) for field in dataclasses.fields(self._info)}
        return {
            name: to_torch(value, torch_dtype(value.dtype), self.device)
            for name, value in fields.items()
            if isinstance(value, jax.Array)
        }

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = np.ones(self.batch_size, bool)
        if mask is not None:
            chosen = mask.reshape(self.batch_size).cpu().numpy().copy()
            if self._batch is None and not chosen.all():
                raise RuntimeError(
                    "the first reset must start all environments, but '_reset' names some only"
                )
        if self._batch is None or chosen.any():
            batch = _blank(self.environment, len(chosen)) if self._batch is None else self._batch
            self._batch = self._begin(chosen, batch)
        return self._entries(self.batch)

    def _begin(self, chosen: Bool[np.ndarray, " batch"], batch: Batch) -> Batch:
        """The batch with new episodes where they are asked for."""
        return self._begin_drawn(self.environment, chosen, batch)

    def _begin_drawn(
        self, environment: Environment, chosen: Bool[np.ndarray, " batch"], batch: Batch
    ) -> Batch:
        """The same, with episodes that an environment draws from each one's own key."""
        keys = episode_keys(self._seed, self._episodes)
        self._episodes[chosen] += 1
        return _begin_where(environment, chosen, keys, batch)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch, moving = self.batch, tensordict.get("_step", None)
        actions = value_of(self.environment.action_space, tensordict.get(ACTION), self.batch_size, ACTION)
        if moving is not None:
            moving = moving.reshape(self.batch_size).cpu().numpy().copy()
        batch, rewards, self._info = _advance(self.environment, batch, actions, moving)
        self._batch, entries = batch, self._entries(batch)
        entries["reward"] = to_torch(rewards, torch.float32, self.device).unsqueeze(-1)
        return entries

    def _entries(self, batch: Batch) -> TensorDict:
        batch = jax.block_until_ready(batch)
        device = self.device
        entries = named_entries(self.environment.observation_space, OBSERVATION, batch.observations, device)
        if batch.legal is not None:
            entries[MASK] = to_torch(batch.legal, torch.bool, device)
        for name in ("terminated", "truncated"):
            entries[name] = to_torch(getattr(batch, name), torch.bool, device).unsqueeze(-1)
        entries["done"] = entries["terminated"] | entries["truncated"]
        return TensorDict(entries, batch_size=self.batch_size, device=device)

    def _set_seed(self, seed: int | None) -> None:
        """The same seed gives the same episodes from the next full reset on; None takes one by chance.

        Episodes that run already go on.
        """
        self._seed = secrets.randbits(32) if seed is None else operator.index(seed)
        self._episodes = np.zeros(self.batch_size, np.uint64)

    def __repr__(self) -> str:
        name, environment = type(self).__name__.lstrip("_"), type(self.environment).__name__
        return f"{name}({environment}, batch_size={self.batch_size[0]}, device={str(self.device)!r})"


def num_envs(env: Any) -> int:
    """How many environments step at once: the size of `env.batch_size`, or `env.num_workers`; else 1."""
    size = getattr(env, "batch_size", None)
    if size is not None:
        return int(torch.Size(size).numel())
    return int(getattr(env, "num_workers", 1))


def _whole_number(batch_size: Any) -> int:
    if isinstance(batch_size, Sequence):
        if len(batch_size) != 1:
            raise TypeError(f"batch_size must be a whole number or a size of one, got {batch_size!r}")
        batch_size = batch_size[0]
    return whole_number(batch_size, "batch_size")


def episode_keys(seed: int, episodes: UInt64[np.ndarray, " batch"]) -> UInt32[np.ndarray, "batch 2"]:
    """A key for each environment's next episode, by seed, environment and the number of its episodes so far.

    Made by SplitMix64's mixing, which gives no two (environment, episode) pairs of a seed the same key.
    """
    counter = (np.arange(len(episodes), dtype=np.uint64) << np.uint64(32)) | episodes
    words = _mix(_mix(np.full_like(counter, seed % 2**64)) ^ counter)
    return np.stack([words >> np.uint64(32), words & np.uint64(2**32 - 1)], axis=1).astype(np.uint32)


def _mix(words: UInt64[np.ndarray, " batch"]) -> UInt64[np.ndarray, " batch"]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _blank(environment: Environment, size: int) -> Batch:
    states, observations = blank_batch(environment, size)
    legal = jax.eval_shape(lambda states: legal_rows(environment, states), states)
    none = jnp.zeros(size, bool)
    return Batch(states, observations, None if legal is None else jnp.zeros(legal.shape, bool), none, none)


@jax.jit
def _begin_where(environment: Environment, mask: Bool[Array, " batch"], keys: Keys, batch: Batch) -> Batch:
    states, seen = environment.batch_reset_where(mask, keys, batch.states, batch.observations)
    legal = legal_rows(environment, states)
    return Batch(states, seen, legal, batch.terminated & ~mask, batch.truncated & ~mask)


@jax.jit
def _advance(
    environment: Environment, batch: Batch, actions: PyTree, moving: Bool[Array, " batch"] | None
) -> tuple[Batch, Array, Any]:
    states, seen, rewards, _, info = environment.batch_step(batch.states, actions)
    after = Batch(states, seen, legal_rows(environment, states), info.terminated, info.truncated)
    if moving is None:
        return after, rewards, info
    # Finished environments stay as they are in any case; these ones wait for their turn.
    return select_rows(moving, after, batch), jnp.where(moving, rewards, 0), info
