"""Proof environments under TorchRL: `BatchedVecEnv`, whose queries can be listed and assigned, and its maker.

Stepping a batch of any environment is in `environment`; which queries come next is in `queries`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Bool
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from phalanx.compat.deepprooflog.queries import (
    OTHER_NAMES,
    QuerySchedule,
    known_depths,
    plan_of,
    proof_config,
    proof_environment,
)
from phalanx.core.device_memory import batch_size_for_memory
from phalanx.core.environment import Environment
from phalanx.core.vector import VectorEnvState, select_rows
from phalanx.integrations.torchrl import BatchedVecEnv as EnvironmentVecEnv, to_torch
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.vocabulary import IndexManager
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.queries import SampledQueries

STEPS, KGE_SCORE = "episode_step", "kge_log_score"
"""Keys of the steps of an episode, and of what the goals that an embedding closed add up to."""

_NESTED = {
    "reward_type": ("reward", "type"),
    "train_neg_ratio": ("queries", "negative_ratio"),
}
"""Arguments of training scripts that are a level further down in `ProofConfig`."""


class BatchedVecEnv(EnvironmentVecEnv):
    """A batch of proof environments, or by `from_environment` of any others, that TorchRL steps as one.

    Keys and shapes are those of `BatchedVecEnv`: `sub_index` [B, 1, A, 3], `derived_sub_indices`
    [B, S, A, 3], `action_mask` [B, S], and for bookkeeping `label`, `depth` (of the query), `episode_step`
    (the steps taken; `step_count` is left to TorchRL's `StepCounter`), `proved`, and with an embedding
    `kge_log_score`, what the goals that it closed add up to.

    `batch_size="auto"` takes as many environments as memory has room for, 1,024 at most. `kge_engine`, an
    embedding as `load_kge` reads it, may close goals by the `_kge` twins of their predicates.

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
        kge_engine: KGE | None = None,
        seed: int = 0,
        device: Any = "cpu",
        **settings: Any,
    ) -> None:
        """`settings` are fields of `ProofConfig`, such as `max_depth`, `padding_states` or `reward`."""
        config = proof_config(index_manager, config, settings)
        plan = QuerySchedule(
            queries,
            labels=labels,
            depths=query_depths,
            mode=mode,
            index_manager=index_manager,
            known_depths=known_depths(index_manager, data_handler),
        )
        environment = proof_environment(config, index_manager, data_handler, plan, kge_engine)
        self._open(environment, plan, batch_size, seed, device)
        self.index_manager, self.data_handler = index_manager, data_handler

    @classmethod
    def from_environment(
        cls, environment: Environment, batch_size: Any, *, seed: int = 0, device: Any = "cpu"
    ) -> "BatchedVecEnv":
        """The same for any Phalanx environment."""
        return _EnvironmentVecEnv(environment, batch_size, seed, device)

    def _open(
        self, environment: Environment, plan: QuerySchedule | None, batch_size: Any, seed: int, device: Any
    ) -> None:
        self._plan, self._drawn_from = plan, None if plan is None else plan.settled()
        self._drawing = environment
        if batch_size == "auto":
            batch_size = batch_size_for_memory(bytes_per_environment(environment))
        super().__init__(environment, batch_size, seed=seed, device=device)
        self._places = np.full(self.batch_size, -1, np.int32)

    def _make_observation_spec(self) -> Composite:
        observed, shape, device = super()._make_observation_spec(), self.batch_size, self.device
        if self._plan is None:
            return observed
        # Queries of any depth may be assigned.
        observed["depth"] = Unbounded(shape=shape, dtype=torch.int32, device=device)
        observed[STEPS] = observed["step_count"]
        del observed["step_count"]
        observed["proved"] = Categorical(2, shape=shape, dtype=torch.bool, device=device)
        if self._proofs().closer is not None:
            observed[KGE_SCORE] = Unbounded(shape=shape, dtype=torch.float32, device=device)
        return observed

    def _entries(self, batch: VectorEnvState) -> TensorDict:
        entries = super()._entries(batch)
        if self._plan is None:
            return entries
        entries[STEPS] = entries.pop("step_count")
        proved = batch.states.goals[:, 0, 0] == self._proofs().program.true_index
        entries["proved"] = to_torch(proved, torch.bool, self.device)
        if batch.states.log_score is not None:
            entries[KGE_SCORE] = to_torch(batch.states.log_score, torch.float32, self.device)
        return entries

    def _proofs(self) -> ProofEnvironment:
        assert isinstance(self.environment, ProofEnvironment)
        return self.environment

    @property
    def query_indices(self) -> np.ndarray:
        """Which of `queries` each environment started from; -1 where the environment drew it itself."""
        return self._places.copy()

    def _reset_where(self, chosen: Bool[np.ndarray, " batch"], batch: VectorEnvState) -> VectorEnvState:
        if self._plan is None:
            return super()._reset_where(chosen, batch)
        places = self._plan.next_places(int(chosen.sum()))
        self._places[chosen] = -1 if places is None else places
        if places is not None:
            # Others keep their episodes, whose queries may be of a list that is gone.
            given = self._plan.at(np.where(chosen, self._places, 0))
            return _begin_at(self._proofs(), chosen, given, batch)
        if self._plan.settled() is not self._drawn_from:
            self._drawing = self._plan.adapted(self._proofs())
            self._drawn_from = self._plan.settled()
        return self._reset_with_episode_keys(self._drawing, chosen, batch)

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
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

    def _planned(self) -> QuerySchedule:
        if self._plan is None:
            raise AttributeError(f"{type(self.environment).__name__} starts from no queries")
        return self._plan


class _EnvironmentVecEnv(BatchedVecEnv):
    """A batch of an environment that exists already; one of proofs starts from its own queries."""

    def __init__(self, environment: Environment, batch_size: Any, seed: int, device: Any) -> None:
        plan = plan_of(environment) if isinstance(environment, ProofEnvironment) else None
        self._open(environment, plan, batch_size, seed, device)


def bytes_per_environment(environment: Environment) -> int:
    """About the memory that an environment takes: its state and observation, here and in a rollout."""
    begun = jax.eval_shape(environment.reset, jax.ShapeDtypeStruct((2,), jnp.uint32))
    return 4 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(begun))


@jax.jit
def _begin_at(
    environment: ProofEnvironment, mask: Bool[Array, " batch"], given: SampledQueries, batch: VectorEnvState
) -> VectorEnvState:
    states, seen = environment.reset_to(*given)
    none = jnp.zeros_like(mask)
    return select_rows(
        mask, VectorEnvState(states, seen, jax.vmap(environment.legal_actions)(states), none, none), batch
    )


def create_environments(
    args: Any,
    dh: DataHandler,
    index_manager: IndexManager,
    *,
    kge_engine: KGE | None = None,
    **settings: Any,
) -> tuple[BatchedVecEnv, BatchedVecEnv, BatchedVecEnv]:
    """Environments over the training, the test and the validation queries.

    `args` (a namespace or a mapping) has `n_envs` and `n_eval_envs`, numbers of environments that step
    together or `auto`; `seed`; and any field of `ProofConfig`, as well as `reward_type` and
    `train_neg_ratio`. What is of no concern to environments, such as a learning rate, is passed over. Other
    `settings` are those of `BatchedVecEnv`. Without test or validation queries those of the split before
    serve.
    """
    given = dict(args) if isinstance(args, Mapping) else dict(vars(args))
    fields = {name: value for name, value in given.items() if name in ProofConfig.model_fields}
    for name, (room, field) in _NESTED.items():
        if name in given:
            fields[room] = {**dict(fields.get(room, {})), field: given[name]}
    if "n_envs" not in given:
        raise TypeError(f"args has no n_envs, the number of environments that step together; got {given}")
    # Asked for by a name that nothing here has, and on purpose: to pass over it would change the training.
    if given.get("use_parallel_envs"):
        raise TypeError(f"args has use_parallel_envs, for which there is {OTHER_NAMES['use_parallel_envs']}")
    batch, eval_batch = given["n_envs"], given.get("n_eval_envs", given["n_envs"])
    seed, config = int(given.get("seed", 0)), proof_config(index_manager, None, fields)
    test = dh.test_queries or dh.valid_queries or dh.train_queries

    def made(queries: Any, size: Any, mode: str, seed: int) -> BatchedVecEnv:
        return BatchedVecEnv(
            index_manager=index_manager,
            data_handler=dh,
            queries=queries,
            batch_size=size,
            mode=mode,
            kge_engine=kge_engine,
            seed=seed,
            config=config,
            **settings,
        )

    return (
        made(dh.train_queries, batch, "train", seed),
        made(test, eval_batch, "eval", seed + 1),
        made(dh.valid_queries or dh.train_queries, eval_batch, "eval", seed + 2),
    )
