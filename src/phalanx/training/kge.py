"""Training of knowledge-graph embeddings.

An update is one epoch over the training triples. Each triple (relation, head, tail) yields two queries, one
for its tail and one for its head. The loss of a query compares its true answer with candidates. The
candidates are either all entities, or sampled negatives that all queries of the minibatch share. Candidates
that are also true answers in the training data are not used as negatives.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Array, Bool, Float, Int32
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import DictEvaluationResult, EvaluationConfig, EvaluationResult
from phalanx.kg.evaluation import count_ranks, expected_sampled_mrr, mean_reciprocal_rank, select_evenly
from phalanx.kg.kge.embedding import KGE, RUN_FOLDER, calibrate, load_kge_metadata, save_kge
from phalanx.kg.kge.models import EmbeddingModel, KGEModelConfig
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase
from phalanx.kg.triple_index import TripleIndex, directed_queries
from phalanx.logging.config import LoggingConfig
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.link_prediction import LinkPredictionConfig, evaluate_with_config
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.ragged import expand_ranges
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, UpdateResult, jit_method
from phalanx.training.checkpoints import CheckpointRef, open_checkpoint
from phalanx.training.config import OPTIMIZER_ALIASES, CheckpointConfig, RunConfig
from phalanx.training.optimizer import OptimizerConfig, make_optimizer
from phalanx.training.run import count_parameters
from phalanx.training.warm_start import load_params

Ints = Array | np.ndarray
_NUM_SAMPLED = 100
"""Number of candidates in the `mrr_100` metric."""
_MASKED = -1e9
"""Logit of a masked candidate."""


class KGEEvaluationConfig(EvaluationConfig):
    """Settings for evaluations on validation queries during training."""

    every: int = Field(default=10, ge=1)
    """Number of epochs between two evaluations. The best epoch is chosen among the evaluated epochs."""
    max_queries: int = Field(default=1000, ge=1)
    """Maximum number of validation triples to evaluate, each with a query for its tail and one for its head.
    If there are more triples, evenly spaced ones are selected."""


class KGEConfig(RunConfig):
    """Settings for training a knowledge-graph embedding.

    Common combinations: `loss=cross_entropy num_negatives_per_batch=0` (1-vs-all, as in ComplEx-N3),
    `loss=bce num_negatives_per_batch=0` (1-N, as in ConvE and TuckER), and `loss=bce
    num_negatives_per_batch=256 adversarial_temperature=1` (self-adversarial negative sampling, as in RotatE).
    """

    preset_group = "kge"
    aliases: ClassVar[Mapping[str, str]] = OPTIMIZER_ALIASES
    num_updates_setting = "num_epochs"

    dataset: str = GENERATED
    """Knowledge base: a folder, a file of triples, the name of a downloaded dataset, or `generated` for the
    built-in knowledge base."""
    seed: int = Field(default=0, ge=0)
    """Seed for the initial embeddings, the order of triples, the negatives and dropout."""
    num_updates: ClassVar[None] = None  # type: ignore[misc]  # removes the field of `RunConfig`
    num_epochs: int = Field(default=100, ge=1)
    """Number of passes over the training triples. Each epoch is an update of the run, with one optimizer step
    per minibatch."""
    batch_size: int = Field(default=512, ge=1)
    """Maximum number of triples in a minibatch. Each triple has two queries, one for its tail and one for its
    head."""
    loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    """Loss function: softmax cross-entropy over the candidates (`cross_entropy`), or binary cross-entropy of
    each candidate (`bce`)."""
    num_negatives_per_batch: int = Field(default=0, ge=0)
    """Number of entities that are sampled per minibatch as negatives for all of its queries. If 0, all
    entities are candidates."""
    adversarial_temperature: float = Field(default=0.0, ge=0)
    """Temperature of self-adversarial negative sampling. Scores are multiplied by this value, and the softmax
    of the products gives the weights of the negatives. If 0, all negatives are weighted equally. Values above
    0 require `loss=bce` and `num_negatives_per_batch` above 0."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the target probability that is distributed evenly over all candidates. With `loss=bce`, a
    value above 0 requires `num_negatives_per_batch=0`."""
    regularizer: Literal["n3", "l2"] = "n3"
    """Penalty on the embeddings of a minibatch: the sum of the cubed absolute values (`n3`) or of the squares
    (`l2`) of their coordinates."""
    regularization_weight: float = Field(default=0.0, ge=0)
    """Weight of the `regularizer` penalty in the loss. 0 disables the penalty."""
    model: KGEModelConfig = KGEModelConfig()
    """Settings for the embedding model."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=0.01, end_learning_rate=0.0, lr_schedule="linear", max_grad_norm=None
    )
    """Settings for the optimizer and the learning rate. The optimizer must be `adamw` or `adagrad`. The
    learning-rate schedule advances with every optimizer step."""
    evaluation: KGEEvaluationConfig = KGEEvaluationConfig()
    """Settings for evaluations on validation queries."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=20, keep=1, best_metric="mrr_100")
    """Settings for checkpoints, with intervals in epochs. The best checkpoint is exported."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1, sample_frequency=0)
    """Settings for logging metrics."""

    @model_validator(mode="after")
    def _check_settings(self) -> "KGEConfig":
        self.optimizer.check_supported("adamw", "adagrad")
        if self.adversarial_temperature and (self.loss != "bce" or not self.num_negatives_per_batch):
            raise ValueError(
                "adversarial_temperature weights sampled negatives of the bce loss: set loss=bce and "
                "num_negatives_per_batch, or set it to 0"
            )
        if self.label_smoothing and self.loss == "bce" and self.num_negatives_per_batch:
            raise ValueError(
                "label_smoothing with loss=bce needs all entities as candidates: set "
                "num_negatives_per_batch=0, or set label_smoothing=0"
            )
        return self


class KGEBatch(eqx.Module):
    """A minibatch of B triples, or several minibatches stacked along the first axis.

    A minibatch has 2 B queries. The first B queries ask for the tails of the triples, and the last B for
    their heads.
    """

    triples: Int32[Ints, "*steps batch 3"]
    """Rows of (relation, head, tail)."""
    candidates: Int32[Ints, "*steps negatives"]
    """Distinct ids of the candidate entities that all queries of a minibatch share. Empty if all entities are
    candidates."""
    known: Int32[Ints, "*steps capacity 2"]
    """Pairs `(query index, candidate index)`, one for each candidate that is a true answer to a query. The
    candidate index is a position in `candidates` or, if that is empty, an entity id. Padding pairs have a
    candidate index that is out of range."""


class TrainingTriples:
    """Training triples and, for each of their queries, all answers in the training data.

    Args:
        triples: Rows of (relation, head, tail) with the ids of a `Vocabulary`, in any order.
        num_relations: Number of relations.
        num_entities: Number of entities.
    """

    def __init__(
        self, triples: Int32[np.ndarray, "triples 3"], num_relations: int, num_entities: int
    ) -> None:
        if len(triples) == 0:
            raise ValueError("an embedding needs at least one training triple, got none")
        self.triples = np.unique(triples, axis=0).astype(np.int32)
        self.num_relations, self.num_entities = num_relations, num_entities
        self._index = TripleIndex(self.triples, num_entities)
        self._starts, self._counts = self._index.ranges(directed_queries(self.triples)[0])
        self._capacity = 0

    def __len__(self) -> int:
        return len(self.triples)

    def sample_epoch(self, config: KGEConfig, epoch: int) -> KGEBatch:
        """Sample the minibatches of an epoch and stack them along the first axis.

        The minibatches depend only on the settings, including the seed, and on the epoch number.
        """
        generator = np.random.default_rng((config.seed, epoch))
        num_steps = -(-len(self) // config.batch_size)
        # All minibatches have the same size; a few triples may occur twice in an epoch.
        size = -(-len(self) // num_steps)
        order = np.resize(generator.permutation(len(self)), (num_steps, size))
        negatives = [
            generator.choice(self.num_entities, config.num_negatives_per_batch, replace=False, shuffle=False)
            for _ in range(num_steps)
        ]
        candidates = np.array(negatives, np.int32).reshape(num_steps, config.num_negatives_per_batch)
        known = [self.known_answers(rows, columns) for rows, columns in zip(order, candidates, strict=True)]
        return KGEBatch(self.triples[order], candidates, self._pad(known, config.num_negatives_per_batch))

    def known_answers(
        self, rows: Int32[np.ndarray, " batch"] | np.ndarray, candidates: Int32[np.ndarray, " negatives"]
    ) -> Int32[np.ndarray, "found 2"]:
        """Find the candidates that are true answers to the queries of a minibatch.

        Args:
            rows: Triples of the minibatch, as indices into `triples`.
            candidates: Ids of the candidate entities, which are the same for all queries. If empty, all
                entities are candidates.

        Returns:
            Pairs `(query index, candidate index)`, one for each candidate that is a true answer to a query.
            The candidate index is a position in `candidates` or, if that is empty, an entity id.
        """
        columns = np.arange(self.num_entities)
        if len(candidates):
            columns = np.full(self.num_entities, -1)
            columns[candidates] = np.arange(len(candidates))
        queries = np.concatenate([rows, rows + len(self)])
        query, positions = expand_ranges(self._starts[queries], self._counts[queries])
        column = columns[self._index.answers[positions]]
        return np.stack([query, column], axis=1)[column >= 0].astype(np.int32)

    def _pad(
        self, known: list[np.ndarray], num_negatives_per_batch: int
    ) -> Int32[np.ndarray, "steps capacity 2"]:
        """Stack the known answers of all minibatches, padded to the same size.

        The size is a power of two that never decreases, so that few shapes are compiled.
        """
        largest = max(len(pairs) for pairs in known)
        if largest > self._capacity:
            self._capacity = 1 << (largest + largest // 4).bit_length()
        out_of_range = np.array([0, num_negatives_per_batch or self.num_entities], np.int32)
        padded = np.tile(out_of_range, (len(known), self._capacity, 1))
        for row, pairs in zip(padded, known, strict=True):
            row[: len(pairs)] = pairs
        return padded


def kge_loss(
    model: EmbeddingModel, config: KGEConfig, batch: KGEBatch, num_relations: int, key: Key | None
) -> Float[Array, ""]:
    """Compute the mean loss over the queries of a minibatch, plus the regularization penalty.

    Args:
        model: Embedding model.
        config: Settings for the run.
        batch: A single minibatch.
        num_relations: Number of relations, not counting inverse relations.
        key: Key for dropout. None disables dropout.
    """
    relations, heads, tails = batch.triples.T
    keys = (None, None) if key is None else jax.random.split(key)
    inverse = relations + num_relations if config.model.reciprocal else relations
    head_queries = model.tail_queries if config.model.reciprocal else model.head_queries
    queries = jnp.concatenate(
        [model.tail_queries(relations, heads, keys[0]), head_queries(inverse, tails, keys[1])]
    )
    positive = model.compare_rows(queries, model.entities[jnp.concatenate([tails, heads])])
    answers = model.entities[batch.candidates] if config.num_negatives_per_batch else model.entities
    candidates = model.compare(queries, answers)
    query, column = batch.known.T
    known = jnp.zeros(candidates.shape, bool).at[query, column].set(True, mode="drop")
    if config.loss == "cross_entropy":
        loss = cross_entropy_loss(positive, candidates, known, config.label_smoothing)
    elif config.num_negatives_per_batch:
        loss = negative_sampling_loss(positive, candidates, known, config.adversarial_temperature)
    else:
        loss = bce_loss(candidates, known, config.label_smoothing)
    if not config.regularization_weight:
        return jnp.mean(loss)
    magnitudes = [*model.magnitudes(relations, heads, tails), *model.magnitudes(inverse, tails, heads)]
    power = 3 if config.regularizer == "n3" else 2
    penalty = sum(jnp.sum(jnp.abs(values) ** power) for values in magnitudes) / len(queries)
    return jnp.mean(loss) + config.regularization_weight * penalty


def cross_entropy_loss(
    positive: Float[Array, " queries"],
    candidates: Float[Array, "queries candidates"],
    known: Bool[Array, "queries candidates"],
    label_smoothing: float = 0.0,
) -> Float[Array, " queries"]:
    """Compute the softmax cross-entropy of the true answer to each query.

    The softmax is over the true answer and all candidates that are not known answers.

    Args:
        positive: Scores of the true answers.
        candidates: Scores of the candidates.
        known: Whether each candidate is a known answer, which is masked.
        label_smoothing: Fraction of the target probability that is distributed over the true answer and all
            candidates that are not masked.
    """
    negatives = jnp.where(known, _MASKED, candidates)
    log_total = jnp.logaddexp(positive, jax.nn.logsumexp(negatives, axis=1))
    loss = log_total - positive
    if not label_smoothing:
        return loss
    count = 1 + jnp.sum(~known, axis=1)
    mean = (positive + jnp.sum(candidates, axis=1, where=~known)) / count
    return (1 - label_smoothing) * loss + label_smoothing * (log_total - mean)


def negative_sampling_loss(
    positive: Float[Array, " queries"],
    candidates: Float[Array, "queries candidates"],
    known: Bool[Array, "queries candidates"],
    adversarial_temperature: float = 0.0,
) -> Float[Array, " queries"]:
    """Compute the RotatE loss (Sun et al., 2019, arXiv:1902.10197) for each query.

    The loss is the mean of two terms: the binary cross-entropy of the true answer, and a weighted mean of the
    binary cross-entropies of the sampled negatives. If `adversarial_temperature` is positive, negatives with
    higher scores have larger weights. Known answers among the candidates are ignored.
    """
    weights = jax.nn.softmax(jnp.where(known, _MASKED, adversarial_temperature * candidates), axis=1)
    log_rejected = jnp.where(known, 0, jax.nn.log_sigmoid(-candidates))
    negative = jnp.sum(jax.lax.stop_gradient(weights) * log_rejected, axis=1)
    return -(jax.nn.log_sigmoid(positive) + negative) / 2


def bce_loss(
    candidates: Float[Array, "queries candidates"],
    known: Bool[Array, "queries candidates"],
    label_smoothing: float = 0.0,
) -> Float[Array, " queries"]:
    """Compute the binary cross-entropy over all entities for each query.

    All known answers are positives, and all other entities are negatives (1-N scoring; Dettmers et al.,
    2018).
    """
    labels = (1 - label_smoothing) * known + label_smoothing / candidates.shape[1]
    return jnp.mean(jax.nn.softplus(candidates) - labels * candidates, axis=1)


def _describe(metrics: Mapping[str, Any]) -> str:
    return (
        f"Validation MRR, filtered: {metrics['mrr_100']:.4f} against {_NUM_SAMPLED} candidates, "
        f"{metrics['mrr']:.4f} against all entities"
    )


class KGETrainer(Algorithm[TrainState]):
    """Trains a knowledge-graph embedding.

    An update is one epoch. The parameters in the `TrainState` are a `KGE`.

    At the end of a run, the embedding of the best epoch is calibrated and exported to the run's `kge` folder.
    The order of triples, the negatives and dropout depend only on the seed and the epoch number, so a resumed
    run has the same result as an uninterrupted one.

    Args:
        config: Settings for the run.
        knowledge_base: Knowledge base to train on. If None, `config.dataset` is loaded. Only predicates with
            two arguments are used. If there are no validation queries, some facts are held out.
    """

    name = "kge"
    config_type = KGEConfig
    unit = "triples"
    headline = ("loss",)

    def __init__(self, config: KGEConfig, knowledge_base: KnowledgeBase | None = None) -> None:
        super().__init__(config)
        if knowledge_base is None:
            knowledge_base = KnowledgeBase.load(config.dataset, on_leak="drop")
        self.knowledge_base = knowledge_base.binary().with_validation()
        vocabulary = self.knowledge_base.vocabulary
        if config.num_negatives_per_batch > vocabulary.num_entities:
            raise ValueError(
                f"num_negatives_per_batch must be at most the number of entities, {vocabulary.num_entities}, "
                f"got {config.num_negatives_per_batch}; 0 uses all entities"
            )
        self.train = TrainingTriples(
            self.knowledge_base.triples("train"), vocabulary.num_predicates, vocabulary.num_entities
        )
        self.steps_per_epoch = -(-len(self.train) // config.batch_size)

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config]:
        return LinkPredictionConfig

    def init(self, key: Key, params: KGE | None = None) -> TrainState:
        """Create the initial state. The config's seed is used instead of the key."""
        generator = np.random.default_rng(self.config.seed)
        if params is None:
            params = KGE.create(
                self.config.model, self.train.num_relations, self.train.num_entities, generator
            )
        return TrainState(params, self._optimizer().init(params.model), jnp.int32(0))

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        """Train for one epoch."""
        epoch = int(state.step)
        # In a loop, this generator compiles faster than the default one.
        key = jax.random.fold_in(jax.random.key(self.config.seed, impl="rbg"), epoch)
        state, loss = self.run_epoch(state, self.train.sample_epoch(self.config, epoch), key)
        return state, UpdateResult({"loss": loss}, counts={"triples": len(self.train)})

    @jit_method(donate=("state",))
    def run_epoch(
        self, state: TrainState, batches: KGEBatch, key: Key
    ) -> tuple[TrainState, Float[Array, ""]]:
        """Take one optimizer step per minibatch. Returns the new state and the mean loss."""
        config, num_relations, optimizer = self.config, state.params.num_relations, self._optimizer()

        def step(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[tuple[Any, Any], Array]:
            model, opt_state = carry
            number, batch = inputs
            dropout_key = jax.random.fold_in(key, number) if config.model.dropout else None
            loss, gradients = jax.value_and_grad(kge_loss)(model, config, batch, num_relations, dropout_key)
            updates, opt_state = optimizer.update(gradients, opt_state, model)
            return (optax.apply_updates(model, updates), opt_state), loss

        numbers = jnp.arange(self.steps_per_epoch)
        carry = state.params.model, state.opt_state
        (model, opt_state), losses = jax.lax.scan(step, carry, (numbers, batches))
        params = eqx.tree_at(lambda kge: kge.model, state.params, model)
        return TrainState(params, opt_state, state.step + 1), jnp.mean(losses)

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config.optimizer, self.num_updates * self.steps_per_epoch)

    def policy(self, state: TrainState) -> KGE:
        """Return the embedding, without calibration."""
        return state.params

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the embedding.

        If `settings` is a `LinkPredictionConfig`, as in `phalanx eval`, the embedding is evaluated on link
        prediction with these settings. Otherwise, as during training, the result is the MRR on validation
        queries.
        """
        if isinstance(settings, LinkPredictionConfig):
            environment = ProofConfig(dataset=self.config.dataset)
            vocabulary = ProofVocabulary(self.knowledge_base, environment.max_goals)
            kge = self._calibrate(state.params)
            return [evaluate_with_config(settings, environment, self.knowledge_base, vocabulary, kge=kge)]
        metrics = self.validate(state.params)
        return [DictEvaluationResult({"split": "valid", "mode": "kge", **metrics}, (_describe(metrics),))]

    def validate(self, kge: KGE) -> dict[str, float]:
        """Compute the filtered mean reciprocal rank (MRR) on validation queries.

        Ranks are filtered: other known answers to the query are ignored. Ties are resolved by the realistic
        rank, which is the mean of the best and the worst possible rank.

        Returns:
            A dictionary with two metrics. For `mrr`, each correct entity is ranked among all entities.
            `mrr_100` is the expected MRR if it is ranked among only 100 randomly sampled candidates.
        """
        base = self.knowledge_base
        queries = select_evenly(base.triples("valid"), self.config.evaluation.max_queries)
        counts = count_ranks(kge, queries, base.known_answers)
        return {
            "mrr": mean_reciprocal_rank(counts, "realistic"),
            "mrr_100": expected_sampled_mrr(counts, _NUM_SAMPLED),
        }

    def metadata(self, state: TrainState) -> dict[str, Any]:
        return {"num_parameters": count_parameters(state.params.model), "num_triples": len(self.train)}

    def fingerprint(self) -> str:
        base = self.knowledge_base
        names = "\n".join((*base.vocabulary.predicates, "", *base.vocabulary.entities))
        triples = base.triples("train").tobytes() + base.triples("valid").tobytes()
        return hashlib.sha256(names.encode() + triples).hexdigest()[:16]

    def export(self, state: TrainState, folder: Path) -> None:
        """Calibrate the embedding of the best epoch on the validation queries and write it to `kge/`."""
        epoch, kge, metrics = self._best(state, folder)
        metadata = {"dataset": self.config.dataset, "epoch": epoch, **metrics}
        kge = self._calibrate(kge)
        save_kge(folder / RUN_FOLDER, kge, self.config.model, self.knowledge_base.vocabulary, metadata)

    def _best(self, state: TrainState, folder: Path) -> tuple[int, KGE, dict[str, float]]:
        if self.config.checkpoint.best_metric is not None:
            with open_checkpoint(folder, "best") as (_, epoch, metadata):
                metrics = metadata["metrics"]
            # If the run is stopped early, epoch 0, in which the embedding is untrained, may be the only
            # evaluated one.
            if epoch > 0:
                kge, _ = load_params(CheckpointRef(folder, epoch), state.params)
                return epoch, kge, metrics
        return int(state.step), state.params, self.validate(state.params)

    def _calibrate(self, kge: KGE) -> KGE:
        return calibrate(
            kge, self.knowledge_base.triples("valid"), self.knowledge_base.known_triples, self.config.seed
        )

    def summarize(self, result: TrainResult) -> list[str]:
        lines = []
        for run in result.seeds or [result]:
            folder = run.run_dir / RUN_FOLDER
            metadata = load_kge_metadata(folder)
            epoch = f"epoch {metadata['epoch']}, the best"
            lines.append(f"{_describe(metadata)} ({epoch}); embedding {folder}")
        return lines
