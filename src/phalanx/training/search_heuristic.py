"""Training of a heuristic for best-first proof search.

An update searches for proofs of training queries with the current heuristic, adds the proofs found to the
examples, and fits the network to all examples. A state is the list of goals that remain to be proved. The
network learns two things: which successor of an expanded state continues a proof, and whether a state leads
to a proof at all.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Array, Bool, Float, Int32
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import DictEvaluationResult, EvaluationConfig
from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.formats import load_rules
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.vocabulary import check_name
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import load_knowledge_base
from phalanx.proofs.program import Program
from phalanx.proofs.search.beam import SearchResults
from phalanx.proofs.search.best_first import (
    BestFirstConfig,
    Heuristic,
    SuccessorBatch,
    best_first_search,
    compute_successors,
    expansion_config,
)
from phalanx.proofs.search.goal_features import GoalFeatureExtractor, GoalFeatures
from phalanx.proofs.search.heuristics import (
    ROWS_PER_BATCH,
    ConfidenceHeuristic,
    HeuristicNetwork,
    HeuristicNetworkConfig,
    LearnedHeuristic,
    UniformPolicyHeuristic,
    pad_features,
)
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, UpdateResult
from phalanx.training.checkpoints import CheckpointRef
from phalanx.training.config import OPTIMIZER_ALIASES, CheckpointConfig, RunConfig
from phalanx.training.optimizer import OptimizerConfig, adam, lr_schedule
from phalanx.training.run_dir import load_run_config
from phalanx.training.trained_policy import restore_state

_EXAMPLES_FILE = "examples-{update}.npz"
_MAX_DEAD_ENDS = 32
"""Maximum number of dead ends per query that are used as examples. A dead end is an expanded state that is
not on the path to the proof. If there are more, those that were expanded last are used."""


class HeuristicEvaluationConfig(EvaluationConfig):
    """Settings for evaluations on validation queries during training."""

    every: int = Field(default=1, ge=0)
    """Number of updates between two evaluations. If 0, only the initial and the final heuristic are
    evaluated."""
    num_queries: int = Field(default=64, ge=1)
    """Maximum number of validation queries. If there are more, the first ones are used."""
    max_expansions: int = Field(default=100, ge=1)
    """Maximum number of nodes that a search expands per query."""


class SearchHeuristicConfig(RunConfig):
    """Settings for training a search heuristic."""

    aliases: ClassVar[Mapping[str, str]] = OPTIMIZER_ALIASES

    env: ProofConfig = ProofConfig(max_actions=256)
    """Knowledge base, and settings for expanding goals."""
    rules: str | None = None
    """File of rules, as written by `phalanx kg mine --out`. If None, the rules of the knowledge base are
    used."""
    predicates: tuple[str, ...] = ()
    """Predicates of the training and validation queries. If empty, all predicates that occur in the head of a
    rule are used."""
    seed: int = Field(default=0, ge=0)
    """Seed for the initial parameters, the queries and the order of examples."""
    num_updates: int = Field(default=2, ge=1)
    """Number of updates. Each update searches for proofs and then fits the network. The first update searches
    with a fixed heuristic, because the network is not trained yet."""
    queries_per_update: int = Field(default=400, ge=1)
    """Number of training queries per update."""
    update_epochs: int = Field(default=12, ge=1)
    """Number of epochs over all examples in each update."""
    heuristic_weight: float = Field(default=1.0, ge=0)
    """Weight of the estimated cost from a node to a proof, relative to the cost of the path to the node."""
    max_expansions: int = Field(default=100, ge=1)
    """Maximum number of nodes that a search expands per training query."""
    max_depth: int = Field(default=20, ge=1)
    """Maximum number of steps in a proof."""
    num_parallel_queries: int = Field(default=128, ge=1)
    """Number of searches that run in parallel, one per query."""
    network: HeuristicNetworkConfig = HeuristicNetworkConfig()
    """Settings for the network."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=0.005, lr_schedule="constant", max_grad_norm=None
    )
    """Settings for Adam and the learning-rate schedule. The schedule advances once per update, which has
    several gradient steps. The optimizer state is reset at the start of each update."""
    evaluation: HeuristicEvaluationConfig = HeuristicEvaluationConfig()
    """Settings for evaluations on validation queries."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=1, keep=1)
    """Settings for checkpoints."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> "SearchHeuristicConfig":
        self.optimizer.check_supported("adamw")
        return self

    @property
    def search(self) -> BestFirstConfig:
        """Settings for searching for proofs of training queries."""
        return BestFirstConfig(
            max_expansions=self.max_expansions,
            max_depth=self.max_depth,
            num_parallel_queries=self.num_parallel_queries,
        )


# Data


class HeuristicTrainingData(NamedTuple):
    """Data for training a heuristic: facts and rules, the feature extractor for goals, and queries."""

    program: Program
    features: GoalFeatureExtractor
    train: Int32[np.ndarray, "queries atom"]
    """Training queries. Each row is an encoded atom: the ids of its predicate and its arguments."""
    valid: Int32[np.ndarray, "queries atom"]
    """Validation queries, encoded like `train`. An evaluation uses the first `num_queries` of them."""
    first_heuristic: Heuristic
    """Fixed heuristic for the searches in the first update, before the network is trained."""
    knowledge_base: KnowledgeBase | None = None
    """Knowledge base from which this data was created. None if the data has another source."""
    vocabulary: ProofVocabulary | None = None
    """Names of the encoded predicates and constants. None if they are not known."""

    @classmethod
    def from_config(cls, config: SearchHeuristicConfig) -> "HeuristicTrainingData":
        """Load the knowledge base and select queries.

        Only queries with a predicate in `config.predicates` are selected. If `config.predicates` is empty,
        all predicates that occur in the head of a rule are used.

        The training queries are facts. A fact is not used in its own proof. If there are no validation
        queries, a tenth of the training queries is held out for validation.
        """
        base = load_knowledge_base(config.env)
        rules: Sequence[Rule] = base.rules if config.rules is None else load_rules(Path(config.rules))
        if not rules:
            raise ValueError(
                f"{base.name} has no rules to prove with: mine some with `phalanx kg mine "
                f"{config.env.dataset} --out rules.txt`, and set rules=rules.txt"
            )
        vocabulary = ProofVocabulary(base, config.env.max_goals)
        weights = np.array([rule.weight for rule in rules], np.float32)
        if weights.min() < 0 or weights.max() > 1:
            raise ValueError(
                f"rule weights must be between 0 and 1, got {weights.min():g} to {weights.max():g}"
            )
        program = Program.create(
            vocabulary.encode(base.facts),
            vocabulary.encode_rules(rules),
            vocabulary.num_predicates,
            vocabulary.num_constants,
        )
        features = GoalFeatureExtractor(program, weights)
        train, valid = _select_queries(config, base, vocabulary, program)
        first: Heuristic = ConfidenceHeuristic(features.confidence)
        if weights.min() == 1:
            first = UniformPolicyHeuristic(config.seed)
        return cls(program, features, train, valid, first, base, vocabulary)


def _select_queries(
    config: SearchHeuristicConfig, base: KnowledgeBase, vocabulary: ProofVocabulary, program: Program
) -> tuple[np.ndarray, np.ndarray]:
    heads = np.unique(program.heads[:, 0])
    if config.predicates:
        for name in config.predicates:
            check_name(name, vocabulary.predicates, "predicate", Atom(name))
        heads = np.array([vocabulary.predicate_indices[name] for name in config.predicates])

    def select(atoms: Sequence[Atom]) -> np.ndarray:
        rows = vocabulary.encode(atoms)
        return rows[np.isin(rows[:, 0], heads)]

    train, valid = select(base.facts), select(base.valid)
    generator = np.random.default_rng(config.seed)
    if not len(valid):
        train = train[generator.permutation(len(train))]
        num_held_out = max(1, len(train) // 10)
        train, valid = train[num_held_out:], train[:num_held_out]
    if not len(train):
        raise ValueError(f"{base.name} has no fact whose predicate is the head of a rule")
    return train, valid[generator.permutation(len(valid))]


class FoundProof(NamedTuple):
    """A proof found by a search, with the expanded states on its path and the other expanded states."""

    query: Int32[np.ndarray, " atom"]
    """The proved query as an encoded atom."""
    path: Int32[np.ndarray, "steps goals atom"]
    """Expanded states on the path from the query to the end of the proof. Each state is a padded list of
    encoded goals."""
    dead_ends: Int32[np.ndarray, "states goals atom"]
    """Expanded states that are not in `path`, in the order in which they were expanded."""


class LabeledSuccessors(NamedTuple):
    """Training example: the successors of an expanded state, and which of them continues a proof."""

    features: GoalFeatures
    """Features of the successors, with one row per successor."""
    chosen: int
    """Index of the successor that continues the proof."""


class HeuristicBatch(NamedTuple):
    """A minibatch of states, padded to `ROWS_PER_BATCH` rows."""

    features: GoalFeatures
    group: Int32[np.ndarray, " rows"]
    """Index of each state's group of siblings, which are the successors of one state. -1 for dead ends and
    padding."""
    is_chosen: Bool[np.ndarray, " rows"]
    """True for the state of each group that continues the proof. Each group has exactly one such state."""
    value: Int32[np.ndarray, " rows"]
    """1 if the state leads to a proof, 0 if it is a dead end, and -1 if this is unknown."""


def sample_minibatches(
    choices: Sequence[LabeledSuccessors], dead_ends: Sequence[GoalFeatures], generator: np.random.Generator
) -> Iterator[HeuristicBatch]:
    """Yield minibatches with the examples in random order.

    Examples from `choices` take up at most three quarters of the rows of a minibatch, and examples from
    `dead_ends` are added while they fit. An example is never split, so an example from `choices` with too
    many successors is left out. Iteration ends when all of `choices` have been used.
    """
    choice_order = generator.permutation(len(choices)).tolist()
    dead_end_order = generator.permutation(len(dead_ends)).tolist()
    while choice_order:
        parts: list[GoalFeatures] = []
        labels: list[np.ndarray] = []  # columns: group, is_chosen, value
        used = 0
        while choice_order:
            features, chosen = choices[choice_order[-1]]
            size = len(features.predicates)
            if used + size > ROWS_PER_BATCH * 3 // 4:
                break
            choice_order.pop()
            rows = np.tile((len(parts), 0, -1), (size, 1))
            rows[chosen, 1:] = 1
            parts.append(features)
            labels.append(rows)
            used += size
        if not parts:
            choice_order.pop()
            continue
        while (
            dead_end_order
            and used + (size := len(dead_ends[dead_end_order[-1]].predicates)) <= ROWS_PER_BATCH
        ):
            parts.append(dead_ends[dead_end_order.pop()])
            labels.append(np.tile((-1, 0, 0), (size, 1)))
            used += size
        labels.append(np.tile((-1, 0, -1), (ROWS_PER_BATCH - used, 1)))
        group, is_chosen, value = np.concatenate(labels).astype(np.int32).T
        features = GoalFeatures(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))
        yield HeuristicBatch(pad_features(features), group, is_chosen.astype(bool), value)


# Loss and optimizer step


def heuristic_loss(network: HeuristicNetwork, batch: HeuristicBatch) -> Float[Array, ""]:
    """Compute the loss of a minibatch.

    The loss is the sum of two terms. The first is the cross-entropy of choosing, among siblings, the state
    that continues the proof, averaged over the groups of siblings. The second is the binary cross-entropy of
    the predicted values, averaged over the states whose value is known.
    """
    logits, values = network(batch.features)
    num_rows = len(batch.group)
    # Rows without siblings are in one additional segment, which does not contribute to the loss.
    group = jnp.where(batch.group >= 0, batch.group, num_rows)
    largest = jax.ops.segment_max(logits, group, num_rows + 1)
    total = jax.ops.segment_sum(jnp.exp(logits - largest[group]), group, num_rows + 1)
    choice = jnp.where(batch.is_chosen, jnp.log(total)[group] + largest[group] - logits, 0.0)
    is_known = batch.value >= 0
    value = jnp.where(batch.value == 1, jax.nn.softplus(-values), jax.nn.softplus(values))
    choice_loss = jnp.sum(choice) / jnp.maximum(jnp.sum(batch.is_chosen), 1)
    return choice_loss + jnp.sum(jnp.where(is_known, value, 0.0)) / jnp.maximum(jnp.sum(is_known), 1)


@eqx.filter_jit
def _optimizer_step(
    network: HeuristicNetwork,
    opt_state: Any,
    batch: HeuristicBatch,
    optimizer: optax.GradientTransformation,
    learning_rate: Float[Array, ""],
) -> tuple[HeuristicNetwork, Any, Float[Array, ""]]:
    batch = jax.tree.map(jnp.asarray, batch)
    loss, gradients = eqx.filter_value_and_grad(heuristic_loss)(network, batch)
    updates, opt_state = optimizer.update(gradients, opt_state, network)
    updates = jax.tree.map(lambda leaf: -learning_rate * leaf, updates)
    return eqx.apply_updates(network, updates), opt_state, loss


def _describe(record: Mapping[str, Any]) -> str:
    baselines = ", ".join(f"{name} {value:.3f}" for name, value in record["baselines"].items())
    return (
        f"Validation: {record['num_proved']} of {record['num_queries']} queries proved, "
        f"{record['proofs_per_expansion']:.3f} proofs per expanded node ({baselines})"
    )


# The algorithm


class SearchHeuristicTrainer(Algorithm[TrainState]):
    """Trains a heuristic for best-first proof search.

    Each update trains the network on all proofs found so far, including those found in earlier updates. The
    parameters in the `TrainState` are a `HeuristicNetwork`. The proofs found so far are saved in the run
    folder, next to the checkpoints. The queries of an update and the order of its minibatches depend only on
    the seed and the update number, so a resumed run has the same result as an uninterrupted one.

    Args:
        config: Settings for the run.
        data: Training data. If None, it is loaded as described by `env`, `rules` and `predicates` in the
            config.
    """

    name = "heuristic"
    config_type = SearchHeuristicConfig
    unit = "queries"
    headline = ("proved_rate", "proofs_per_expansion")

    def __init__(self, config: SearchHeuristicConfig, data: HeuristicTrainingData | None = None) -> None:
        super().__init__(config)
        self.data = HeuristicTrainingData.from_config(config) if data is None else data
        self._order = np.random.default_rng(config.seed).permutation(len(self.data.train))
        self._optimizer = adam(config.optimizer)
        self._proofs: list[FoundProof] = []
        self._choices: list[LabeledSuccessors] = []
        self._dead_ends: list[GoalFeatures] = []
        self._baselines: dict[HeuristicEvaluationConfig, dict[str, float]] = {}

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config]:
        return HeuristicEvaluationConfig

    def init(self, key: Key, params: HeuristicNetwork | None = None) -> TrainState:
        """Create the initial state. The config's seed is used instead of the key."""
        if params is None:
            params = HeuristicNetwork(
                self.data.program.num_predicates,
                self.config.network.hidden_dim,
                key=jax.random.PRNGKey(self.config.seed),
            )
        return TrainState(params, (), jnp.int32(0))

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        """Search for proofs of training queries, and fit the network to all proofs found so far."""
        config, update, network = self.config, int(state.step), state.params
        heuristic = self.heuristic(network) if update else self.data.first_heuristic
        count = config.queries_per_update
        rows = np.take(self._order, range(update * count, (update + 1) * count), mode="wrap")
        queries = self.data.train[rows]
        result = self.search(heuristic, queries)
        assert result.trace is not None
        for number, states in result.trace.paths.items():
            path, dead_ends = np.stack(states), result.trace.dead_ends[number][-_MAX_DEAD_ENDS:]
            self._add_proof(FoundProof(queries[number], path, np.stack(dead_ends) if dead_ends else path[:0]))
        metrics: dict[str, Any] = {}
        if self._choices:
            network, metrics["loss"] = self._fit(network, update)
        metrics |= {
            "proved_rate": float(result.proved.mean()),
            "proofs_per_expansion": result.proofs_per_expansion(),
            "num_proofs": float(len(self._proofs)),
        }
        counts = {"queries": len(result.proved), "expansions": int(result.expansions.sum())}
        return TrainState(network, (), state.step + 1), UpdateResult(metrics, counts=counts)

    def _fit(self, network: HeuristicNetwork, update: int) -> tuple[HeuristicNetwork, float]:
        """Fit the network to all examples. Returns the network and the mean loss of the last epoch."""
        config, generator = self.config, np.random.default_rng((self.config.seed, update))
        learning_rate = lr_schedule(config.optimizer, self.num_updates)(update)
        opt_state = self._optimizer.init(eqx.filter(network, eqx.is_array))
        for _ in range(config.update_epochs):
            losses = []
            for batch in sample_minibatches(self._choices, self._dead_ends, generator):
                network, opt_state, loss = _optimizer_step(
                    network, opt_state, batch, self._optimizer, learning_rate
                )
                losses.append(loss)
        return network, float(np.mean(jax.device_get(losses)))

    def _add_proof(self, proof: FoundProof) -> None:
        """Store a proof, and create examples from its dead ends and the successors of states on its path."""
        self._proofs.append(proof)
        program, features = self.data.program, self.data.features
        path, query = proof.path, np.repeat(proof.query[None], len(proof.path), axis=0)
        successors, num_successors, _ = compute_successors(
            expansion_config(self.config.env), program, path, query, self.config.num_parallel_queries
        )
        for step in range(len(path) - 1):
            rows = successors[step, : num_successors[step]]
            rows = rows[rows[:, 0, 0] <= program.num_predicates]
            chosen = np.flatnonzero((rows == path[step + 1]).all(axis=(1, 2)))
            owner, depth = np.zeros(len(rows), np.int64), np.array([step])
            batch = SuccessorBatch(rows, owner, path[step : step + 1], query[:1], depth)
            self._choices.append(LabeledSuccessors(features(batch), int(chosen[0])))
        if count := len(proof.dead_ends):
            # The parents of dead ends are not stored; the dead ends themselves take their place.
            goals, queries = proof.dead_ends, np.repeat(query[:1], count, axis=0)
            batch = SuccessorBatch(goals, np.arange(count), goals, queries, np.zeros(count, np.int64))
            self._dead_ends.append(features(batch))

    def policy(self, state: TrainState) -> HeuristicNetwork:
        """Return the trained network."""
        return state.params

    def heuristic(self, network: HeuristicNetwork) -> LearnedHeuristic:
        """Return a search heuristic that uses a network."""
        return LearnedHeuristic(network, self.data.features, self.config.heuristic_weight)

    def search(
        self, heuristic: Heuristic, queries: Int32[np.ndarray, "queries atom"], **settings: int
    ) -> SearchResults:
        """Search for proofs of encoded queries.

        Args:
            heuristic: Heuristic that guides the search.
            queries: Encoded queries.
            settings: Fields of `BestFirstConfig`, such as `max_depth`, that override the run's settings.
        """
        search = self.config.search.model_copy(update=settings)
        return best_first_search(self.config.env, self.data.program, heuristic, queries, search)

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> list[DictEvaluationResult]:
        """Search for proofs of validation queries with the trained heuristic and with baselines.

        The baselines are heuristics without learned parameters. The result contains the number of proofs per
        expanded node for the trained heuristic and for each baseline.
        """
        assert isinstance(settings, HeuristicEvaluationConfig)
        queries = self.data.valid[: settings.num_queries]
        max_expansions = settings.max_expansions
        result = self.search(self.heuristic(state.params), queries, max_expansions=max_expansions)
        if settings not in self._baselines:
            others: dict[str, Heuristic] = {
                "uniform": UniformPolicyHeuristic(self.config.seed),
                "confidence": ConfidenceHeuristic(self.data.features.confidence),
            }
            self._baselines[settings] = {
                name: self.search(other, queries, max_expansions=max_expansions).proofs_per_expansion()
                for name, other in others.items()
            }
        record = {
            "split": "valid",
            "mode": "heuristic",
            "num_queries": len(queries),
            "num_proved": int(result.proved.sum()),
            "num_expansions": int(result.expansions.sum()),
            "proofs_per_expansion": result.proofs_per_expansion(),
            "baselines": self._baselines[settings],
        }
        return [DictEvaluationResult(record, (_describe(record),))]

    def metadata(self, state: TrainState) -> dict[str, Any]:
        program = self.data.program
        return {"num_facts": len(program.facts), "num_rules": len(program.heads)}

    def fingerprint(self) -> str:
        vocabulary = self.data.vocabulary
        names = [] if vocabulary is None else [*vocabulary.predicates, "", *vocabulary.constants]
        digest = hashlib.sha256("\n".join(names).encode() + self.data.program.fingerprint.encode())
        return digest.hexdigest()[:16]

    def state_dict(self) -> dict[str, Any]:
        """Return the proofs found so far as arrays."""
        proofs = self._proofs
        goals = [part for proof in proofs for part in (proof.path, proof.dead_ends)]
        return {
            "queries": np.array([proof.query for proof in proofs], np.int32),
            "path_lengths": np.array([len(proof.path) for proof in proofs], np.int64),
            "num_dead_ends": np.array([len(proof.dead_ends) for proof in proofs], np.int64),
            "goals": np.concatenate(goals or [np.zeros(0, np.int32)]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        lengths = np.stack([state["path_lengths"], state["num_dead_ends"]], axis=1)
        parts = np.split(state["goals"], np.cumsum(lengths))
        for query, path, dead_ends in zip(state["queries"], parts[0::2], parts[1::2], strict=False):
            self._add_proof(FoundProof(query, path, dead_ends))

    def summarize(self, result: TrainResult) -> list[str]:
        if not result.evaluations:
            return []
        first, last = result.evaluations[0], result.evaluations[-1]
        baselines = {"untrained": first["proofs_per_expansion"], **last["baselines"]}
        return [_describe({**last, "baselines": baselines})]


def load_heuristic(run: str | Path) -> tuple[SearchHeuristicTrainer, LearnedHeuristic]:
    """Load a heuristic that was trained with `phalanx train heuristic`.

    Returns:
        The algorithm, with the config and the training data of the run, and the learned heuristic.
    """
    trainer = SearchHeuristicTrainer(load_run_config(Path(run), SearchHeuristicConfig))
    return trainer, trainer.heuristic(trainer.policy(restore_state(trainer, CheckpointRef(Path(run)))))
