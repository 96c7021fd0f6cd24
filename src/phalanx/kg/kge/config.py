"""The settings of knowledge-graph embeddings: which model, which loss, how long.

What they do is in `models` and `training`.
"""

from typing import Literal

from pydantic import Field, model_validator

from phalanx.config import Config

Model = Literal["transe", "distmult", "complex", "rotate", "tucker"]

DISTANCES = ("transe", "rotate")
"""Models that score by a distance; the others are products."""
COMPLEX_NUMBERS = ("complex", "rotate")
"""Models whose entities are vectors of complex numbers."""


class KGEConfig(Config):
    """A knowledge-graph embedding and its training.

    1-N training (ConvE, TuckER) is `loss: binary` with `negatives: 0`, 1-against-all (ComplEx-N3) `loss:
    softmax` with `negatives: 0`, and self-adversarial sampling (RotatE) `loss: binary` with some negatives
    and an `adversarial_temperature`.
    """

    model: Model = "complex"
    """TransE, DistMult, ComplEx, RotatE or TuckER."""
    dim: int = Field(default=128, ge=2)
    """Real numbers of an entity; ComplEx and RotatE read them as half as many complex ones."""
    relation_dim: int = Field(default=32, ge=1)
    """Real numbers of a relation in TuckER; the others' follow from `dim`."""
    reciprocal: bool = True
    """A second row for every relation, read backwards: heads are asked for by it, and a triple's score is the
    mean of both ways."""
    norm: Literal[1, 2] = 2
    """TransE and RotatE: the sum of all coordinates' distances, or the Euclidean distance of the whole, which
    is a matrix product and several times as fast."""
    margin: float = Field(default=6.0, gt=0)
    """TransE and RotatE: the distance at which a triple's score is 0."""
    init_scale: float = Field(default=1.0, gt=0)
    """How large entities begin. Smaller ones are placed by their neighbors sooner than by chance."""
    identity_share: float = Field(default=0.0, ge=0, le=1)
    """DistMult, ComplEx and RotatE: share of coordinates that every relation leaves nearly as they are at the
    start. On those, entities are placed near their neighbors, whatever relates them: in a large sparse graph
    that tells related entities from unrelated ones, while the other coordinates tell relations apart."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """DistMult, ComplEx and TuckER: share of coordinates of entities and queries left out in training."""
    loss: Literal["softmax", "binary"] = "softmax"
    """The right answer against all candidates at once, or each candidate as a yes or no of its own."""
    negatives: int = Field(default=0, ge=0)
    """Entities that a whole minibatch shares as wrong answers; 0 takes all entities."""
    adversarial_temperature: float = Field(default=0.0, ge=0)
    """`binary` with `negatives`: how much more a wrong answer weighs that scores high; 0 weighs all alike."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target that is spread over all candidates."""
    regularizer: Literal["n3", "l2"] = "n3"
    """The cube (of moduli, where numbers are complex) or the square of the coordinates in a minibatch."""
    regularization: float = Field(default=0.0, ge=0)
    """Weight of the regularizer; 0 for none."""
    optimizer: Literal["adam", "adagrad"] = "adam"
    """Who turns gradients into steps."""
    learning_rate: float = Field(default=0.01, gt=0)
    """The optimizer's step at the start."""
    learning_rate_end: float = Field(default=0.0, ge=0)
    """The optimizer's step at the end."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How it goes from one to the other; `constant` keeps the first."""
    epochs: int = Field(default=100, ge=1)
    """How many times the training triples are gone through."""
    batch_size: int = Field(default=512, ge=1)
    """Training triples in a minibatch, at most; each asks for its tail and for its head."""
    seed: int = Field(default=0, ge=0)
    """Of the tables, the order, the negatives and the dropout."""

    @model_validator(mode="after")
    def _fits(self) -> "KGEConfig":
        if self.model in COMPLEX_NUMBERS and self.dim % 2:
            raise ValueError(
                f"dim must be even for {self.model}, which pairs real numbers to complex ones, got {self.dim}"
            )
        if self.dropout and self.model in DISTANCES:
            raise ValueError(
                f"dropout must be 0 for {self.model}, whose distances it would only lengthen, "
                f"got {self.dropout}"
            )
        if self.identity_share and self.model in ("transe", "tucker"):
            raise ValueError(
                f"identity_share is for distmult, complex and rotate: leave it at 0 for {self.model}, "
                f"got {self.identity_share}"
            )
        if self.adversarial_temperature and (self.loss != "binary" or not self.negatives):
            raise ValueError(
                "adversarial_temperature weighs sampled negatives of the binary loss: set loss=binary and "
                "negatives to more than 0, or leave it at 0"
            )
        if self.label_smoothing and self.loss == "binary" and self.negatives:
            raise ValueError(
                "label_smoothing with the binary loss needs all entities as candidates: set negatives=0, "
                "or leave it at 0"
            )
        return self
