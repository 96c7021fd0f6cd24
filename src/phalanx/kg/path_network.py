"""A path network: messages go out from the entity asked about, one step a layer, and score what they reach.

It scores an answer by all the paths to it at once, where rules take them one by one (NBFNet, Zhu and others,
2021; RED-GNN, Zhang and Yao, 2022), and has no numbers of any entity's own. Forward and backward are in C++,
or in `plain_network` where there is no compiled extension.
"""

import io
import json
import math
import os
import zipfile
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.formatting import format_count
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import read_verified
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.questions import (
    KGE_WEIGHTS,
    EntityScorer,
    RuleRankingResult,
    SplitRanker,
    chosen_ranks,
    weighed,
)
from phalanx.kg.rules.mining import graph_of
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import IndexManager
from phalanx.native import native_module

WIDTH = 32
"""Numbers of an entity at a layer; the native kernel has room for so many."""
NETWORK = "network over paths"
_FEW_RELATIONS = 32


class PathNetworkConfig(Config):
    """Settings of `fit_path_network`; the same ones give the same network, on any number of threads."""

    layers: int = Field(default=5, ge=1, le=8)
    """Steps from the entity asked about; what is farther off has one score."""
    specific: bool | None = None
    """Whether each relation asked for has messages of its own; None: where relations are few."""
    epochs: float = Field(default=1.5, gt=0)
    """How many times the training facts are asked for, from both sides."""
    batch_size: int = Field(default=32, ge=1)
    """Questions of a minibatch."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Adam's, after the first 200 minibatches; it falls along a cosine to 0."""
    seed: int = Field(default=0, ge=0)
    """Of the parameters and of the order of the questions."""


class PathNetwork:
    """A network over the facts of a knowledge base, which scores the answers to questions."""

    def __init__(
        self,
        data: DataHandler,
        config: PathNetworkConfig,
        parameters: Float32[np.ndarray, " parameters"] | None = None,
        threads: int = 2,
    ) -> None:
        data = data.binary()
        self.config, self.index = config, IndexManager(data)
        few = self.index.num_predicates <= _FEW_RELATIONS
        self._specific = few if config.specific is None else config.specific
        self.triples = self.index.encode_atoms(data.facts)
        graph = graph_of(self.triples, self.index)
        self.questions = _engine(graph, config.layers, self._specific, threads)
        self.parameters = self._start() if parameters is None else parameters

    def _start(self) -> np.ndarray:
        """Messages do the same for every relation asked for; only what learning finds makes them differ."""
        directed, draw = 2 * self.index.num_predicates, np.random.default_rng(self.config.seed)
        parts = []
        for _ in range(self.config.layers):
            parts.append(draw.normal(0, 1, directed * WIDTH))
            if self._specific:
                parts.append(np.zeros(directed * directed * WIDTH))
            parts += [draw.normal(0, WIDTH**-0.5, WIDTH * WIDTH) for _ in range(2)]
            parts += [np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH)]
        parts += [draw.normal(0, 1, directed * WIDTH), np.tile(draw.normal(0, WIDTH**-0.5, WIDTH), directed)]
        return np.concatenate([*parts, np.zeros(directed)]).astype(np.float32)

    def scores(self, rows: Int32[np.ndarray, "questions 2"]) -> Float32[np.ndarray, "questions entities"]:
        """Of all entities, numbered from 0 as relations are; 2r asks for the tails of r, 2r + 1 for heads."""
        table = np.zeros((len(rows), self.index.num_constants), np.float32)
        self.questions.score(self.parameters, np.ascontiguousarray(rows), table)
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the parameters, the settings and the names of the relations."""
        packed = io.BytesIO()
        np.savez(
            packed,
            parameters=self.parameters,
            relations=np.array(self.index.predicates),
            config=np.array(json.dumps(self.config.model_dump())),
        )
        with atomic_write(path, checksum=True) as file:
            file.write(packed.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str], data: DataHandler, threads: int = 2) -> "PathNetwork":
        """Reads a network for a knowledge base of the same relations; its entities may be others."""
        try:
            # From memory: of a damaged file NumPy leaves the handle open.
            with np.load(io.BytesIO(read_verified(path, "learn it again")), allow_pickle=False) as arrays:
                relations, config = arrays["relations"].tolist(), str(arrays["config"])
                parameters = arrays["parameters"]
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise ValueError(f"{path} holds no path network: {error}") from error
        network = cls(data, PathNetworkConfig(**json.loads(config)), threads=threads)
        if relations != list(network.index.predicates):
            raise ValueError(f"{path} is a network of other relations, as {relations[0]}")
        if parameters.shape != network.parameters.shape or parameters.dtype != np.float32:
            raise ValueError(f"{path} has {parameters.size} parameters, not {network.parameters.size}")
        network.parameters = parameters
        return network


def _engine(graph: Any, layers: int, specific: bool, threads: int) -> Any:
    compiled = native_module()
    if compiled is not None:
        return compiled.PathNetwork(graph, layers, specific, threads)
    from phalanx.kg.plain_network import PathQuestions

    return PathQuestions(graph, layers, specific, threads)


def fit_path_network(
    data: DataHandler,
    config: PathNetworkConfig | None = None,
    *,
    threads: int = 2,
    budget: TimeLimit | None = None,
    **settings: Any,
) -> PathNetwork:
    """Learn to answer the training facts, each without itself; other splits are not looked at.

    Adam on the softmax loss over all entities, other right answers left out.
    """
    config = PathNetworkConfig(**{**(config or PathNetworkConfig()).model_dump(), **settings})
    budget = budget or TimeLimit()
    network = PathNetwork(data, config, threads=threads)
    relation, head, tail = (network.triples[network.triples[:, 1] != network.triples[:, 2]] - 1).T
    rows = np.concatenate(
        [np.stack([head, 2 * relation, tail], 1), np.stack([tail, 2 * relation + 1, head], 1)]
    )
    if not len(rows):
        raise ValueError(f"{data.dataset} has no facts about two entities to learn from")
    steps = max(1, round(config.epochs * len(rows) / config.batch_size))
    draw = np.random.default_rng(config.seed + 1)
    order = np.concatenate([draw.permutation(len(rows)) for _ in range(math.ceil(config.epochs) + 1)])
    parameters, gradient = network.parameters, np.empty_like(network.parameters)
    mean, square = np.zeros_like(parameters), np.zeros_like(parameters)
    warm, loss = min(200, 1 + steps // 10), math.nan
    for step in range(steps):
        batch = rows[order[step * config.batch_size : (step + 1) * config.batch_size]]
        here = network.questions.loss_and_gradient(parameters, np.ascontiguousarray(batch), gradient) / len(
            batch
        )
        loss = here if step == 0 else loss + max(0.002, 1 / (step + 1)) * (here - loss)
        gradient /= len(batch)
        gradient *= min(1.0, 1.0 / max(float(np.linalg.norm(gradient)), 1e-9))
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        rate = config.learning_rate * min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2
        far = np.sqrt(square / (1 - 0.999 ** (step + 1))) + np.float32(1e-8)
        parameters -= (rate / (1 - 0.9 ** (step + 1))) * mean / far
        budget.word(f"learning: {step:,} of {format_count(steps, 'step')}, loss {loss:.3f}")
    return network


def rank_by_network(
    network: PathNetwork,
    data: DataHandler,
    split: str = "test",
    *,
    kge: EntityScorer | None = None,
    seed: int = 0,
    budget: TimeLimit | None = None,
) -> RuleRankingResult:
    """Rank every query of a split by a network: filtered by all splits, among all entities, heads and tails.

    With an embedding, its weight for each relation and side is chosen on the validation queries.
    """
    ranker = SplitRanker(data, network.index, budget)
    if kge is None:
        (ranks,) = ranker.ranks_by_tables(split, network.scores)
        return ranker.result(split, NETWORK, ranks, {}, 0, seed)
    if not data.valid_queries:
        raise ValueError(f"{data.dataset} has no validation queries to choose by; add a valid.txt")
    found = ranker.ranks_by_tables("valid", network.scores, kge, KGE_WEIGHTS)
    chosen = weighed(found, ranker.list_relations("valid"), KGE_WEIGHTS, 2 * network.index.num_predicates)
    used = np.unique(chosen.weights).tolist()
    each = ranker.ranks_by_tables(split, network.scores, kge, used)
    ranks = chosen_ranks(each, np.searchsorted(used, chosen.weights)[ranker.list_relations(split)])
    told = {"valid_mrr": chosen.mrr, "kge_weight": float(np.median(chosen.weights))}
    return ranker.result(split, NETWORK, ranks, told, 0, seed)
