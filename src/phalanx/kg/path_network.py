"""Path network: a graph neural network for link prediction.

Each layer passes messages along the edges of the graph, starting from the query entity. After the last layer,
the hidden state of each entity summarizes all paths from the query entity to it, and its score is computed
from this state (NBFNet, Zhu et al., 2021; RED-GNN, Zhang and Yao, 2022). The network has no parameters per
entity, so it can be applied to other graphs with the same relations. The forward and backward passes are
implemented in C++. The Adam optimizer is implemented in NumPy, so that this module does not need JAX and the
result is bitwise independent of the number of threads.
"""

import json
import math
import os
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.formatting import format_count
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import open_verified
from phalanx.kg.evaluation import DirectedRelationPredictor
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.rules.mining import build_graph
from phalanx.kg.time_limit import Report, ignore
from phalanx.kg.triple_index import directed_queries
from phalanx.native import require_native

HIDDEN_DIM = 32
"""Size of an entity's hidden state. The C++ kernel only supports this size."""
FILE_FORMAT = 2
_FEW_RELATIONS = 32


class PathNetworkConfig(Config):
    """Settings for `fit_path_network`."""

    num_layers: int = Field(default=5, ge=1, le=8)
    """Number of layers, which is also the maximum length of a path from the query entity. All entities that
    are farther away have the same score."""
    query_dependent_relations: bool | None = None
    """Learn separate message parameters for each query relation. If None, this is enabled for graphs with at
    most 32 relations."""
    num_epochs: float = Field(default=1.5, gt=0)
    """Number of passes over the training facts. In a pass, each fact is used as a tail query and as a head
    query."""
    batch_size: int = Field(default=32, ge=1)
    """Number of queries per gradient step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak learning rate of Adam, with a warmup of up to 200 steps and a cosine decay to 0."""
    seed: int = Field(default=0, ge=0)
    """Seed for the initial parameters and for the order of the queries."""


class PathNetwork(DirectedRelationPredictor):
    """Link predictor that passes messages along the facts of a knowledge base.

    Args:
        knowledge_base: Knowledge base whose facts are the edges of the graph.
        config: The settings.
        parameters: Parameters as one flat array. If None, they are initialized at random.
        num_threads: Number of threads.
    """

    description = "path network"

    def __init__(
        self,
        knowledge_base: KnowledgeBase,
        config: PathNetworkConfig,
        parameters: Float32[np.ndarray, " parameters"] | None = None,
        num_threads: int = 2,
    ) -> None:
        knowledge_base = knowledge_base.binary()
        self.config, self.vocabulary = config, knowledge_base.vocabulary
        few, setting = self.vocabulary.num_predicates <= _FEW_RELATIONS, config.query_dependent_relations
        self._query_dependent = few if setting is None else setting
        self.triples = knowledge_base.triples("train")
        graph = build_graph(self.triples, self.vocabulary)
        self.native = require_native("path networks").PathNetwork(
            graph, config.num_layers, self._query_dependent, num_threads
        )
        self.parameters = self._initial_parameters() if parameters is None else parameters

    def _initial_parameters(self) -> np.ndarray:
        """Return random initial parameters.

        The query-dependent part of the message parameters is zero. Before training, the message parameters
        are therefore the same for all query relations.
        """
        directed, draw = 2 * self.vocabulary.num_predicates, np.random.default_rng(self.config.seed)
        dim, parts = HIDDEN_DIM, []
        for _ in range(self.config.num_layers):
            parts.append(draw.normal(0, 1, directed * dim))
            if self._query_dependent:
                parts.append(np.zeros(directed * directed * dim))
            parts += [draw.normal(0, dim**-0.5, dim * dim) for _ in range(2)]
            parts += [np.zeros(dim), np.ones(dim), np.zeros(dim)]
        parts += [draw.normal(0, 1, directed * dim), np.tile(draw.normal(0, dim**-0.5, dim), directed)]
        return np.concatenate([*parts, np.zeros(directed)]).astype(np.float32)

    def score_pairs(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Score every entity as the answer to each (entity, directed relation) query."""
        table = np.zeros((len(pairs), self.vocabulary.num_entities), np.float32)
        self.native.score(self.parameters, np.ascontiguousarray(pairs, np.int32), table)
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters, the settings and the names of the relations to a file."""
        with atomic_write(path, checksum=True) as file:
            np.savez(
                file,
                format=np.array(FILE_FORMAT),
                parameters=self.parameters,
                relations=np.array(self.vocabulary.predicates),
                config=np.array(json.dumps(self.config.model_dump())),
            )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], knowledge_base: KnowledgeBase, num_threads: int = 2
    ) -> "PathNetwork":
        """Load a network from a file.

        Args:
            path: The file.
            knowledge_base: Knowledge base whose facts are the edges of the graph. It must have the same
                relations as the knowledge base that the network was trained on, but its entities may differ.
            num_threads: Number of threads.
        """
        try:
            # The file is opened here, because NumPy does not close a file that it cannot read.
            with open_verified(path, "fit it again") as file, np.load(file, allow_pickle=False) as arrays:
                file_format = int(arrays["format"]) if "format" in arrays else 1
                relations, config = arrays["relations"].tolist(), str(arrays["config"])
                parameters = arrays["parameters"]
        except KeyError as error:
            raise ValueError(f"{path} is not a path network: {error}") from error
        if file_format != FILE_FORMAT:
            raise ValueError(
                f"{path} has format {file_format}, but this version of Phalanx reads format {FILE_FORMAT}: "
                "fit the network again"
            )
        network = cls(knowledge_base, PathNetworkConfig(**json.loads(config)), num_threads=num_threads)
        if relations != list(network.vocabulary.predicates):
            raise ValueError(
                f"{path} was fitted to a knowledge base with other relations, such as {relations[0]}"
            )
        if parameters.shape != network.parameters.shape or parameters.dtype != np.float32:
            raise ValueError(
                f"{path} has {parameters.size} parameters, but {network.parameters.size} are expected"
            )
        network.parameters = parameters
        return network


def fit_path_network(
    knowledge_base: KnowledgeBase,
    config: PathNetworkConfig | None = None,
    *,
    num_threads: int = 2,
    report: Report = ignore,
    **settings: Any,
) -> PathNetwork:
    """Train a path network to predict the facts of a knowledge base.

    While a fact is predicted, its edge is removed from the graph. The loss is the softmax cross-entropy over
    all entities, except for other known answers to the query. Validation and test queries are not used.

    Args:
        knowledge_base: Knowledge base with the facts.
        config: The settings. If None, the defaults are used.
        num_threads: Number of threads. It does not change the result.
        report: Function that is called with progress messages.
        settings: Fields of `PathNetworkConfig` that override `config`.
    """
    config = PathNetworkConfig(**{**(config or PathNetworkConfig()).model_dump(), **settings})
    network = PathNetwork(knowledge_base, config, num_threads=num_threads)
    _, head, tail = network.triples.T
    queries = np.column_stack(directed_queries(network.triples[head != tail]))
    if not len(queries):
        raise ValueError(f"{knowledge_base.name} has no facts about two different entities to learn from")
    num_steps = max(1, round(config.num_epochs * len(queries) / config.batch_size))
    draw = np.random.default_rng(config.seed + 1)
    order = np.concatenate([draw.permutation(len(queries)) for _ in range(math.ceil(config.num_epochs) + 1)])
    parameters, gradient = network.parameters, np.empty_like(network.parameters)
    mean, square = np.zeros_like(parameters), np.zeros_like(parameters)
    warmup, loss = min(200, 1 + num_steps // 10), math.nan
    for step in range(num_steps):
        batch = queries[order[step * config.batch_size : (step + 1) * config.batch_size]]
        batch_loss = network.native.loss_and_gradient(parameters, batch, gradient) / len(batch)
        loss = batch_loss if step == 0 else loss + max(0.002, 1 / (step + 1)) * (batch_loss - loss)
        gradient /= len(batch)
        gradient *= min(1.0, 1.0 / max(float(np.linalg.norm(gradient)), 1e-9))
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        decay = (1 + math.cos(math.pi * step / num_steps)) / 2
        rate = config.learning_rate * min(1.0, (step + 1) / warmup) * decay
        denominator = np.sqrt(square / (1 - 0.999 ** (step + 1))) + np.float32(1e-8)
        parameters -= (rate / (1 - 0.9 ** (step + 1))) * mean / denominator
        report(f"training: step {step:,} of {format_count(num_steps, 'step')}, loss {loss:.3f}")
    return network
