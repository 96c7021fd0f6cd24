"""`BatchedVecEnv`: a batch of proof environments for TorchRL.

Its constructor arguments and observation keys are those of DeepProofLog's class of the same name.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from phalanx.extras import require_extra

with require_extra(__name__, "torch", "jax", "torch", "tensordict", "torchrl"):
    import jax
    import jax.numpy as jnp
    import torch
    from tensordict import TensorDict
    from torchrl.data import Categorical, Composite, Unbounded

import numpy as np
from jaxtyping import Array, Bool, Int32

from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.compat.deepprooflog.settings import build_config
from phalanx.core.vector import VectorEnvState, select_rows
from phalanx.integrations.torchrl import BatchedVecEnv as EnvironmentVecEnv, to_torch
from phalanx.kg.atoms import parse_atom
from phalanx.kg.formats import SPLITS
from phalanx.kg.kge.embedding import KGE
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.queries import SampledQuery

STEP_COUNT_KEY, KGE_SCORE_KEY = "episode_step", "kge_log_score"
_RENAMED_KEYS = {"goals": "sub_index", "successors": "derived_sub_indices", "step_count": STEP_COUNT_KEY}
"""DeepProofLog's keys for the fields of an observation."""


def _schedule_setting(name: str, description: str) -> property:
    """Return a property that gets and sets a field of the environment's `QuerySchedule`."""
    return property(
        lambda env: getattr(env._schedule, name),
        lambda env, value: setattr(env, "_schedule", dataclasses.replace(env._schedule, **{name: value})),
        doc=description,
    )


class BatchedVecEnv(EnvironmentVecEnv):
    """A batch of proof environments that TorchRL uses as a single environment.

    Observations have the keys `sub_index` [B, 1, A, 3], `derived_sub_indices` [B, S, A, 3] and `action_mask`
    [B, S]. B is the batch size, A is the maximum number of goals in a state (`padding_atoms`), and S is the
    maximum number of successor states (`padding_states`). The last axis holds the predicate and the terms of
    a goal. Additional keys for bookkeeping are `label`, `depth` (of the query), `episode_step` (number of
    steps) and `proved`. The number of steps is not called `step_count`, because TorchRL's `StepCounter` uses
    this name. With an embedding, the key `kge_log_score` contains the sum of the log-probabilities of the
    goals that the embedding closed.

    `queries`, `labels`, `query_depths` and `mode` can be assigned and take effect at the next reset. If the
    environment is transformed, assign to `env.base_env`.

    Args:
        index_manager: Index manager, which encodes the atoms in states.
        data_handler: Facts, rules and known triples.
        queries: Atoms, strings such as `aunt(5,76)`, or an array of encoded atoms.
        batch_size: Number of environments.
        config: Environment settings. If None, the defaults are used.
        mode: `train` samples queries at random. If `labels` is given, queries are sampled uniformly from
            `queries`. Otherwise, they are sampled as specified by the config, including negatives. `eval`
            takes the queries in order and starts again after the last query.
        labels: Whether each query is true. None means that all are true.
        query_depths: Proof depths of the queries. Defaults to those in the data handler.
        kge_engine: An embedding that can close goals; see `load_kge`. None means no embedding.
        seed: Seed for the episodes.
        device: Device of the tensors.
        settings: Fields of `ProofConfig`, under their own names or under DeepProofLog's.
    """

    environment: ProofEnvironment

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
        config = build_config(index_manager, config, settings)
        known_depths = _known_depths(index_manager, data_handler)
        self._schedule = QuerySchedule(queries, labels, query_depths, mode, index_manager, known_depths)
        create = functools.partial(
            ProofEnvironment.create,
            config,
            Program.from_knowledge_base(data_handler, index_manager),
            vocabulary=index_manager,
            kge=kge_engine,
        )
        positives, depths = self._schedule.positives()
        known = index_manager.encode(sorted(data_handler.known))
        environment = create(positives, depths=depths, known=known)
        # The first queries remain known triples when others are assigned.
        self._create_environment = functools.partial(create, known=environment.known.triples)
        self._sampling_env, self._sampled_from = environment, self._schedule.arrays
        super().__init__(environment, batch_size, seed=seed, device=device)
        self._query_indices = np.full(self.batch_size, -1, np.int32)
        self.index_manager, self.data_handler = index_manager, data_handler

    def _make_observation_spec(self) -> Composite:
        spec, shape, device = super()._make_observation_spec(), self.batch_size, self.device
        spec["goals"] = spec["goals"].unsqueeze(1)
        for name, renamed in _RENAMED_KEYS.items():
            spec[renamed] = spec[name]
            del spec[name]
        # Queries of any depth can be assigned.
        spec["depth"] = Unbounded(shape=shape, dtype=torch.int32, device=device)
        spec["proved"] = Categorical(2, shape=shape, dtype=torch.bool, device=device)
        if self.environment.kge_action is not None:
            spec[KGE_SCORE_KEY] = Unbounded(shape=shape, dtype=torch.float32, device=device)
        return spec

    def _entries(self, batch: VectorEnvState) -> TensorDict:
        entries = super()._entries(batch)
        entries["goals"] = entries["goals"].unsqueeze(1)
        for name, renamed in _RENAMED_KEYS.items():
            entries[renamed] = entries.pop(name)
        proved = batch.states.goals[:, 0, 0] == self.environment.program.true_index
        entries["proved"] = to_torch(proved, torch.bool, self.device)
        if batch.states.log_score is not None:
            entries[KGE_SCORE_KEY] = to_torch(batch.states.log_score, torch.float32, self.device)
        return entries

    @property
    def query_indices(self) -> np.ndarray:
        """Index of each environment's query in `queries`, or -1 if the environment sampled its query."""
        return self._query_indices.copy()

    def _reset_where(self, chosen: Bool[np.ndarray, " batch"], batch: VectorEnvState) -> VectorEnvState:
        indices = self._schedule.next_indices(int(chosen.sum()))
        self._query_indices[chosen] = -1 if indices is None else indices
        if indices is not None:
            # The other rows keep their episodes, whose queries may no longer be in the list.
            queries = self._schedule.take(np.where(chosen, self._query_indices, 0))
            return _start_where(self.environment, chosen, queries, batch)
        if self._schedule.arrays is not self._sampled_from:
            positives, depths = self._schedule.positives()
            self._sampling_env = self._create_environment(positives, depths=depths)
            self._sampled_from = self._schedule.arrays
        return self._reset_with_episode_keys(self._sampling_env, chosen, batch)

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self._schedule.cursor, self._schedule.random = 0, np.random.default_rng(self._seed)

    queries = _schedule_setting("queries", "Queries that episodes start from.")
    labels = _schedule_setting("labels", "Whether each query is true. None means that all are true.")
    query_depths = _schedule_setting("depths", "Proof depths of the queries. Defaults to the data handler's.")
    mode = _schedule_setting("mode", "`train` or `eval`.")


@dataclasses.dataclass
class QuerySchedule:
    """The queries that episodes start from, and their order.

    In `train` mode without labels, the environment samples queries, including negatives, according to its
    config. In `train` mode with labels, queries are sampled uniformly from `queries`. In `eval` mode, queries
    are taken in order, starting again after the last query. To change a field, create another schedule with
    `dataclasses.replace`.
    """

    queries: Any
    labels: Any
    depths: Any
    """Proof depths of the queries. If None, those in `known_depths` are used."""
    mode: str
    index_manager: IndexManager
    known_depths: Mapping[tuple[int, ...], int]
    """Known proof depths by encoded query."""
    random: np.random.Generator = dataclasses.field(default_factory=np.random.default_rng)
    """Random number generator for sampling queries."""
    cursor: int = dataclasses.field(default=0, init=False)
    """Index of the next query in `eval` mode."""

    def __post_init__(self) -> None:
        if self.mode not in ("train", "eval"):
            raise ValueError(f"mode must be 'train' or 'eval', got {self.mode!r}")

    def positives(self) -> tuple[Int32[np.ndarray, "queries atom"], Int32[np.ndarray, " queries"]]:
        """Return the queries that are labeled true, and their depths.

        An environment may sample these queries. If all queries are labeled false, all of them are returned,
        because an environment needs at least one query.
        """
        encoded, depths, labels = self.arrays
        kept = labels if labels.any() else ~labels
        return encoded[kept], depths[kept]

    def next_indices(self, count: int) -> Int32[np.ndarray, " count"] | None:
        """Return the indices of the next `count` queries, or None if the environment samples queries."""
        num_queries = len(self.arrays[0])
        if self.mode == "train":
            if self.labels is None:
                return None
            return self.random.integers(num_queries, size=count).astype(np.int32)
        indices = (self.cursor + np.arange(count)) % num_queries
        self.cursor = (self.cursor + count) % num_queries
        return indices.astype(np.int32)

    def take(self, indices: Int32[np.ndarray, " batch"]) -> SampledQuery:
        """Return the queries with the given indices."""
        encoded, depths, labels = self.arrays
        shown_depths = np.where(labels, depths, np.int32(-1))
        return SampledQuery(*(jnp.asarray(array[indices]) for array in (encoded, labels, shown_depths)))

    @functools.cached_property
    def arrays(self) -> tuple[Any, ...]:
        """Queries, depths and labels as arrays. Raises `ValueError` if their lengths differ."""
        encoded = self._encode_queries()
        if not len(encoded):
            raise ValueError("a batch needs at least one query to start from, got none")
        labels = np.ones(len(encoded)) if self.labels is None else np.asarray(self.labels)
        _check_length(encoded, labels, "labels")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(f"labels must be 0 or 1, got {sorted(set(labels.tolist()))}")
        if self.depths is not None:
            depths = np.asarray(self.depths, np.int32)
        else:
            rows = map(tuple, encoded.tolist())
            depths = np.array([self.known_depths.get(row, -1) for row in rows], np.int32)
        _check_length(encoded, depths, "query_depths")
        return encoded, depths, labels.astype(bool)

    def _encode_queries(self) -> np.ndarray:
        if isinstance(self.queries, np.ndarray):
            terms = 1 + self.index_manager.arity
            if self.queries.ndim != 2 or self.queries.shape[1] != terms:
                raise ValueError(f"encoded queries must have shape (n, {terms}), got {self.queries.shape}")
            return self.queries.astype(np.int32)
        return self.index_manager.encode(
            [parse_atom(query) if isinstance(query, str) else query for query in self.queries]
        )


def _check_length(encoded: np.ndarray, given: np.ndarray, name: str) -> None:
    if given.shape != (len(encoded),):
        raise ValueError(
            f"{name} has shape {given.shape}, but there are {len(encoded)} queries; assign as many {name} as "
            "queries, or None"
        )


def _known_depths(index_manager: IndexManager, data_handler: DataHandler) -> dict[tuple[int, ...], int]:
    """Return the known proof depths of the queries in all splits, by encoded atom."""
    merged = {atom: depth for split in SPLITS for atom, depth in (data_handler.depths(split) or {}).items()}
    rows = index_manager.encode(list(merged)).tolist()
    return dict(zip(map(tuple, rows), merged.values(), strict=True))


@jax.jit
def _start_where(
    environment: ProofEnvironment,
    mask: Bool[Array, " batch"],
    queries: SampledQuery,
    batch: VectorEnvState,
) -> VectorEnvState:
    states, observations = environment.reset_to(*queries)
    false = jnp.zeros_like(mask)
    legal = jax.vmap(environment.legal_actions)(states)
    return select_rows(mask, VectorEnvState(states, observations, legal, false, false), batch)
