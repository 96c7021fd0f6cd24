"""Phalanx environments as TorchRL environments: a batch that steps in formation within one process.

Specs and tensordict entries are in `torchrl_specs`, the queries of proof environments in `proof_batches`.
"""

import dataclasses
import functools
import operator
import secrets
from collections.abc import Sequence
from typing import Any

try:
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("torch", "tensordict", "torchrl"):
        raise
    raise ModuleNotFoundError(
        f'phalanx.adapters.torchrl needs {error.name}: pip install "phalanx[torch]"', name=error.name
    ) from error

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree, UInt32, UInt64

from phalanx.adapters.batch_environment import (
    MASK,
    OBSERVATION,
    blank_batch,
    has_own_mask,
    legal_operations,
    whole_number,
)
from phalanx.adapters.proof_batches import QueryPlan, known_depths, plan_of, proof_config, proof_environment
from phalanx.adapters.torch_arrays import to_torch, torch_dtype
from phalanx.adapters.torchrl_specs import named_entries, named_spec, spec_of, value_of
from phalanx.core.environment import Environment, Keys
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.vocabulary import IndexManager
from phalanx.proofs.search.environment import ProofEnv
from phalanx.proofs.search.queries import SampledQueries

ACTION = "action"
"""The key of an action that is no record."""


class Batch(eqx.Module):
    """Where a batch of environments stands, as JAX arrays."""

    states: PyTree
    observations: PyTree
    terminated: Bool[Array, " batch"]
    truncated: Bool[Array, " batch"]


class BatchedVecEnv(EnvBase):
    """A batch of proof environments, or by `from_environment` of any others, that TorchRL steps as one.

    - Observation: the fields of the environment's observation under their names and in their shapes, behind
      the batch: `sub_index` [B, 1, A, 3], `derived_sub_indices` [B, S, A, 3], `action_mask` [B, S]; an
      observation that is one array is at `observation`.
    - Action: at `action`, int64 [B]; the fields of an action that is a record are at `("action", field)`.
    - `reward`, `done`, `terminated` and `truncated` are [B, 1].

    It never resets itself: a step that ends an episode returns its terminal observation, and further steps
    change nothing until a reset, of all or where `_reset` says so. The state lives in this object, as JAX
    arrays (`env.batch`), and only copies of its arrays cross the border, in both directions.

    Queries may be atoms, strings such as `aunt(5,76)` or an array of indices. `mode="train"` draws them at
    random, with the negatives that the config asks for (or, with `labels`, evenly from the labelled ones);
    `mode="eval"` takes them in their order, as many at a time as environments start, and the first again
    after the last: `query_indices` says which. `queries`, `labels`, `query_depths` and `mode` can be
    assigned, and count from the next reset; under a transform assign to `env.base_env`.
    """

    def __init__(
        self,
        *,
        index_manager: IndexManager,
        data_handler: DataHandler,
        queries: Any,
        batch_size: Any,
        config: ProofConfig | None = None,
        mode: str = "train",
        labels: Any = None,
        query_depths: Any = None,
        seed: int = 0,
        device: Any = "cpu",
        **settings: Any,
    ) -> None:
        """`settings` are fields of `ProofConfig`, such as `max_depth`, `padding_states` or `reward`."""
        config = proof_config(index_manager, config, settings)
        plan = QueryPlan(
            queries,
            labels=labels,
            depths=query_depths,
            mode=mode,
            index_manager=index_manager,
            known_depths=known_depths(index_manager, data_handler),
        )
        self._open(
            proof_environment(config, index_manager, data_handler, plan), plan, batch_size, seed, device
        )
        self.index_manager, self.data_handler = index_manager, data_handler

    @classmethod
    def from_environment(
        cls, environment: Environment, batch_size: Any, *, seed: int = 0, device: Any = "cpu"
    ) -> "BatchedVecEnv":
        """The same for any Phalanx environment."""
        return _EnvironmentVecEnv(environment, batch_size, seed, device)

    def _open(
        self, environment: Environment, plan: QueryPlan | None, batch_size: Any, seed: int, device: Any
    ) -> None:
        size = _whole_number(batch_size)
        super().__init__(device=device, batch_size=torch.Size([size]))
        self.environment, self._drawing = environment, environment
        self._plan, self._drawn_from = plan, None if plan is None else plan.settled()
        self._batch: Batch | None = None
        self._info: Any = None
        self._places = np.full(size, -1, np.int32)
        self._legal = None if has_own_mask(environment) else legal_operations(environment)
        self._set_specs()
        self._set_seed(seed)

    def _set_specs(self) -> None:
        shape, device = self.batch_size, self.device
        observed = named_spec(self.environment.observation_space, OBSERVATION, shape, device)
        if self._legal is not None:
            legal = (*shape, len(self._legal))
            observed[MASK] = Categorical(2, shape=legal, dtype=torch.bool, device=device)
        if isinstance(self.environment, ProofEnv):
            # Queries of any depth may be assigned.
            observed["depth"] = Unbounded(shape=shape, dtype=torch.int32, device=device)
        self.observation_spec = observed
        acted = spec_of(self.environment.action_space, shape, device)
        self.action_spec = (
            Composite({ACTION: acted}, shape=shape, device=device) if isinstance(acted, Composite) else acted
        )
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names}, shape=shape, device=device)

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

    @property
    def query_indices(self) -> np.ndarray:
        """Which of `queries` each environment started from; -1 where the environment drew it itself."""
        return self._places.copy()

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
            self._batch = self._restarted(chosen)
        return self._entries(self.batch)

    def _restarted(self, chosen: Bool[np.ndarray, " batch"]) -> Batch:
        batch = _blank(self.environment, len(chosen)) if self._batch is None else self._batch
        if self._plan is not None and isinstance(self.environment, ProofEnv):
            places = self._plan.next_places(int(chosen.sum()))
            self._places[chosen] = -1 if places is None else places
            if places is not None:
                # Others keep their episodes, whose queries may be of a list that is gone.
                given = self._plan.at(np.where(chosen, self._places, 0))
                return _begin_at(self.environment, chosen, given, batch)
            if self._plan.settled() is not self._drawn_from:
                self._drawing = self._plan.adapted(self.environment)
                self._drawn_from = self._plan.settled()
        keys = episode_keys(self._seed, self._episodes)
        self._episodes[chosen] += 1
        return _begin_where(self._drawing, chosen, keys, batch)

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
        if self._legal is not None:
            entries[MASK] = torch.from_numpy(self._legal).to(device).repeat(*self.batch_size, 1)
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
        if self._plan is not None:
            self._plan.seed(self._seed)

    @property
    def queries(self) -> Any:
        """The queries that episodes start from."""
        return self._planned().queries

    @queries.setter
    def queries(self, queries: Any) -> None:
        self._planned().queries = queries

    @property
    def labels(self) -> Any:
        """Which queries are true; None where all are."""
        return self._planned().labels

    @labels.setter
    def labels(self, labels: Any) -> None:
        self._planned().labels = labels

    @property
    def query_depths(self) -> Any:
        """The depths of the queries; None takes those that the data handler knows."""
        return self._planned().depths

    @query_depths.setter
    def query_depths(self, depths: Any) -> None:
        self._planned().depths = depths

    @property
    def mode(self) -> str:
        """`train` or `eval`."""
        return self._planned().mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._planned().mode = mode

    def __repr__(self) -> str:
        name = type(self.environment).__name__
        return f"BatchedVecEnv({name}, batch_size={self.batch_size[0]}, device={str(self.device)!r})"

    def _planned(self) -> QueryPlan:
        if self._plan is None:
            raise AttributeError(f"{type(self.environment).__name__} starts from no queries")
        return self._plan


class _EnvironmentVecEnv(BatchedVecEnv):
    """A batch of an environment that exists already."""

    def __init__(self, environment: Environment, batch_size: Any, seed: int, device: Any) -> None:
        plan = plan_of(environment) if isinstance(environment, ProofEnv) else None
        self._open(environment, plan, batch_size, seed, device)


def num_environments(env: Any) -> int:
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


def _choose(mask: Bool[Array, " batch"], new: PyTree, old: PyTree) -> PyTree:
    def pick(one: Array, other: Array) -> Array:
        return jnp.where(mask.reshape(-1, *(1,) * (one.ndim - 1)), one, other)

    return jax.tree.map(pick, new, old)


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
    none = jnp.zeros(size, bool)
    return Batch(*blank_batch(environment, size), none, none)


@functools.partial(jax.jit, static_argnums=0)
def _begin_where(environment: Environment, mask: Bool[Array, " batch"], keys: Keys, batch: Batch) -> Batch:
    states, seen = environment.batch_reset_where(mask, keys, batch.states, batch.observations)
    return Batch(states, seen, batch.terminated & ~mask, batch.truncated & ~mask)


@functools.partial(jax.jit, static_argnums=0)
def _begin_at(
    environment: ProofEnv, mask: Bool[Array, " batch"], given: SampledQueries, batch: Batch
) -> Batch:
    none = jnp.zeros_like(mask)
    return _choose(mask, Batch(*environment.reset_to(*given), none, none), batch)


@functools.partial(jax.jit, static_argnums=0)
def _advance(
    environment: Environment, batch: Batch, actions: PyTree, moving: Bool[Array, " batch"] | None
) -> tuple[Batch, Array, Any]:
    states, seen, rewards, _, info = environment.batch_step(batch.states, actions)
    after = Batch(states, seen, info.terminated, info.truncated)
    if moving is None:
        return after, rewards, info
    # Finished environments stay as they are in any case; these ones wait for their turn.
    return _choose(moving, after, batch), jnp.where(moving, rewards, 0), info
