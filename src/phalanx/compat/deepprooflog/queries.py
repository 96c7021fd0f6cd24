"""Proof environments from a data handler, and which queries the episodes of a batch start from.

Stepping them under TorchRL is in `proofs`; nothing of torch is here.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from phalanx.kg.atoms import Atom, parse_atom
from phalanx.kg.formats import SPLITS
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.vocabulary import IndexManager
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.queries import SampledQueries

OTHER_NAMES: Mapping[str, str] = {
    "unification_engine": "engine, which is `native`, `xla` or `auto`",
    "use_exact_memory": "memory_pruning, which is always exact",
    "reward_type": "reward={'type': ...}",
    "train_neg_ratio": "config=ProofConfig(queries={'negative_ratio': ...})",
    "negative_ratio": "config=ProofConfig(queries={'negative_ratio': ...})",
    "corruption_mode": "config=ProofConfig(queries={'negative_ratio': 0}) for no negatives",
    "corruption_scheme": "config=ProofConfig(queries={'corruption': ...}): head, tail, either or both",
    "sampler": "nothing: negatives are drawn as ProofConfig.queries says, and are never known triples",
    "max_arity": "nothing: atoms have two arguments",
    "padding_idx": "nothing: it is index_manager.padding_idx, 0",
    "runtime_var_start_index": "nothing: it is index_manager.runtime_var_start_index",
    "total_vocab_size": "nothing: tables are sized by index_manager.num_predicate_embeddings and "
    "num_constant_embeddings",
    "true_pred_idx": "nothing: it is index_manager.true_idx",
    "false_pred_idx": "nothing: it is index_manager.false_idx",
    "end_pred_idx": "nothing: it is index_manager.end_idx",
    "atom_stringifier": "nothing: names are the index_manager's",
    "eval_mode": "mode, which is `train` or `eval`",
    "n_envs": "batch_size",
    "num_envs": "batch_size",
    "max_steps": "max_depth",
    "kge_action": "kge_engine, an embedding as load_kge(folder, index_manager) reads it",
    "kge_inference_engine": "kge_engine, an embedding as load_kge(folder, index_manager) reads it",
    "verbose": "nothing: environments print nothing; `render` and `last_info` tell",
    "prover_verbose": "nothing: environments print nothing; `render` and `last_info` tell",
    "use_parallel_envs": "nothing: a batch steps in one process",
    "parallel_env_start_method": "nothing: a batch steps in one process",
}
"""Arguments by the names that they have elsewhere, and what says the same here."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raises on the first argument that nothing here has, with the name that it has here if it has one."""
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"the nearest are {', '.join(near)}" if near else f"there are {', '.join(names)}"
        hint = f"use {OTHER_NAMES[name]}" if name in OTHER_NAMES else hint
        raise TypeError(f"there is no argument {name!r} here; {hint}")


def proof_config(
    index_manager: IndexManager, config: ProofConfig | None, settings: Mapping[str, Any]
) -> ProofConfig:
    """A config with some settings changed; without one, the default that fits the vocabulary."""
    check_names(settings, ProofConfig.model_fields)
    if config is None:
        given = {"padding_atoms": index_manager.padding_atoms, **settings}
    else:
        given = {**config.model_dump(), **settings}
    made = ProofConfig(**given)
    if made.padding_atoms > index_manager.padding_atoms:
        raise ValueError(
            f"states of {made.padding_atoms} atoms hold more variables than the index manager has numbers "
            f"for; make it with IndexManager(data_handler, padding_atoms={made.padding_atoms})"
        )
    return made


def proof_environment(
    config: ProofConfig,
    index_manager: IndexManager,
    data_handler: DataHandler,
    queries: "QuerySchedule",
    kge: KGE | None = None,
) -> ProofEnvironment:
    """The environment over a handler's facts and rules that draws from a plan's queries."""
    positives, depths = queries.positives()
    return ProofEnvironment.create(
        config,
        Program.of_data(data_handler, index_manager),
        positives,
        depths=depths,
        known=index_manager.encode_atoms(sorted(data_handler.known)),
        domains=index_manager.constant_domains,
        names=index_manager,
        kge=kge,
    )


def known_depths(index_manager: IndexManager, data_handler: DataHandler) -> dict[tuple[int, ...], int]:
    """Every depth that the handler's files give, of any split, by the indices of the atom."""
    merged: dict[Atom, int] = {}
    for split in SPLITS:
        merged.update(data_handler.depths(split) or {})
    rows = index_manager.encode_atoms(list(merged)).tolist()
    return {tuple(row): depth for row, depth in zip(rows, merged.values(), strict=True)}


def plan_of(environment: ProofEnvironment) -> "QuerySchedule":
    """The plan of an environment that exists already: its queries and their depths."""
    rows = environment.queries.positives.tolist()
    depths = zip(map(tuple, rows), environment.queries.depths.tolist(), strict=True)
    return QuerySchedule(environment.queries.positives, known_depths=dict(depths))


class QuerySchedule:
    """The queries that a batch starts from, and in which order.

    `train` draws queries at random: as the environment's config says, negatives included, or, where labels
    are given, evenly among the given ones. `eval` takes the given queries in their order, for those
    environments that start anew, and begins again after the last. All four settings may be assigned at any
    time and count from the next start.
    """

    def __init__(
        self,
        queries: Any,
        *,
        labels: Any = None,
        depths: Any = None,
        mode: str = "train",
        index_manager: IndexManager | None = None,
        known_depths: Mapping[tuple[int, ...], int] | None = None,
    ) -> None:
        self.queries, self.labels, self.depths, self.mode = queries, labels, depths, mode
        self._index_manager, self._known_depths = index_manager, known_depths or {}
        self._settled: tuple[Any, ...] | None = None
        self._cursor = 0
        self._random = np.random.default_rng(0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "mode" and value not in ("train", "eval"):
            raise ValueError(f"mode must be 'train' or 'eval', got {value!r}")
        if name in ("queries", "labels", "depths", "mode"):
            object.__setattr__(self, "_settled", None)
            object.__setattr__(self, "_cursor", 0)
        object.__setattr__(self, name, value)

    def seed(self, seed: int) -> None:
        """Begin anew, with another order of what is drawn at random."""
        self._cursor = 0
        self._random = np.random.default_rng(seed)

    def settled(
        self,
    ) -> tuple[
        Int32[np.ndarray, "queries atom"], Int32[np.ndarray, " queries"], Bool[np.ndarray, " queries"] | None
    ]:
        """Queries, depths and labels as arrays; raises where they do not fit one another."""
        if self._settled is None:
            self._settled = self._checked()
        return self._settled

    def positives(self) -> tuple[Int32[np.ndarray, "queries atom"], Int32[np.ndarray, " queries"]]:
        """The queries that an environment may draw, and their depths.

        Where all are labelled negative these are all of them: an environment needs some, and draws none.
        """
        encoded, depths, labels = self.settled()
        kept = np.ones(len(encoded), bool) if labels is None or not labels.any() else labels
        return encoded[kept], depths[kept]

    def adapted(self, environment: ProofEnvironment) -> ProofEnvironment:
        """The environment, drawing from this plan's queries."""
        positives, depths = self.positives()
        return ProofEnvironment.create(
            environment.config,
            environment.program,
            positives,
            depths=depths,
            known=environment.known.triples,
            domains=environment.known.domains,
            names=environment.names,
            kge=None if environment.closer is None else environment.closer.kge,
        )

    def next_places(self, count: int) -> Int32[np.ndarray, " count"] | None:
        """Which queries the next `count` episodes start from; None where the environment draws them."""
        encoded, _, labels = self.settled()
        if self.mode == "train":
            if labels is None:
                return None
            return self._random.integers(len(encoded), size=count).astype(np.int32)
        places = (self._cursor + np.arange(count)) % len(encoded)
        self._cursor = (self._cursor + count) % len(encoded)
        return places.astype(np.int32)

    def at(self, places: Int32[np.ndarray, " batch"]) -> SampledQueries:
        """The queries at some places; positive unless labels say otherwise."""
        encoded, depths, labels = self.settled()
        told = np.ones(len(encoded), bool) if labels is None else labels
        shown = np.where(told, depths, np.int32(-1))
        return SampledQueries(*(jnp.asarray(array[places]) for array in (encoded, told, shown)))

    def _checked(self) -> tuple[Any, ...]:
        encoded = self._encoded()
        if not len(encoded):
            raise ValueError("a batch needs at least one query to start from, got none")
        labels = None if self.labels is None else np.asarray(self.labels)
        if labels is not None:
            _check_length(encoded, labels, "labels")
            if not np.isin(labels, (0, 1)).all():
                raise ValueError(f"labels must be 0 and 1, got {sorted(set(labels.tolist()))}")
            labels = labels.astype(bool)
        if self.depths is not None:
            depths = np.asarray(self.depths, np.int32)
        else:
            rows = map(tuple, encoded.tolist())
            depths = np.array([self._known_depths.get(row, -1) for row in rows], np.int32)
        _check_length(encoded, depths, "query_depths")
        return encoded, depths, labels

    def _encoded(self) -> np.ndarray:
        if isinstance(self.queries, np.ndarray):
            terms = 3 if self._index_manager is None else 1 + self._index_manager.arity
            if self.queries.ndim != 2 or self.queries.shape[1] != terms:
                raise ValueError(
                    f"encoded queries must have the shape (n, {terms}), got {self.queries.shape}"
                )
            return self.queries.astype(np.int32)
        if self._index_manager is None:
            raise TypeError(
                "queries by name need an index manager; make the environment with "
                "BatchedVecEnv(index_manager=..., ...) or assign an array of indices (n, 3)"
            )
        return self._index_manager.encode_atoms([_atom(query) for query in self.queries])


def _atom(query: Atom | str) -> Atom:
    return parse_atom(query) if isinstance(query, str) else query


def _check_length(encoded: np.ndarray, given: np.ndarray, name: str) -> None:
    if given.shape != (len(encoded),):
        raise ValueError(
            f"{len(encoded)} queries have {name} of the shape {given.shape}; assign as many {name} as "
            f"queries, or None"
        )
