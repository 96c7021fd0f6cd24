"""Trained knowledge-graph embeddings: scoring, calibrated probabilities, saving and loading."""

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32
from pydantic import ValidationError

from phalanx import __version__
from phalanx.io.atomic import atomic_write, remove_stale_temporaries
from phalanx.io.checksum import open_verified, read_verified_json, write_json
from phalanx.kg.joins import encode_tuples
from phalanx.kg.kge.models import EmbeddingModel, KGEModelConfig, create_model
from phalanx.kg.vocabulary import Vocabulary

FILE_FORMAT = 3
CONFIG_FILE = "config.json"
RUN_FOLDER = "kge"
"""Name of the subfolder of a `phalanx train kge` run that contains the best embedding."""
_RETRAIN = "train the embedding again"

Ids = Int32[Array, " n"] | Int32[np.ndarray, " n"]
Triples = Int32[Array, "n 3"] | Int32[np.ndarray, "n 3"]
_QueryFunction = Callable[[Array, Array], Array]


class KGE(eqx.Module):
    """A knowledge-graph embedding that scores triples and estimates the probability that they are true.

    Triples are (relation, head, tail) with the ids of a `Vocabulary`. A higher score means that a triple is
    more likely to be true. With reciprocal relations, the score of a triple (r, h, t) is the mean of the
    scores that `model` computes for (r, h, t) and for (inverse of r, t, h).
    """

    model: EmbeddingModel
    slope: Float[Array, ""]
    offset: Float[Array, ""]
    """Offset in `sigmoid(slope * score + offset)`, the probability that a triple is true; see `calibrate`."""
    num_relations: int = eqx.field(static=True)
    """Number of relations, not counting inverse relations."""
    reciprocal: bool = eqx.field(static=True)
    """True if each relation has a second embedding for its inverse."""

    @classmethod
    def create(
        cls, config: KGEModelConfig, num_relations: int, num_entities: int, generator: np.random.Generator
    ) -> "KGE":
        """Create an embedding with random parameters. Its probabilities are not calibrated."""
        num_rows = num_relations * 2 if config.reciprocal else num_relations
        model = create_model(config, num_entities, num_rows, generator)
        return cls(model, jnp.float32(1.0), jnp.float32(0.0), num_relations, config.reciprocal)

    @property
    def num_entities(self) -> int:
        """Number of entities."""
        return self.model.entities.shape[0]

    @jax.jit
    def score(self, triples: Triples) -> Float[Array, " n"]:
        """Return the score of each triple."""
        relations, heads, tails = jnp.asarray(triples).T
        model = self.model
        forward = model.compare_rows(model.tail_queries(relations, heads), model.entities[tails])
        if not self.reciprocal:
            return forward
        inverse = relations + self.num_relations
        backward = model.compare_rows(model.tail_queries(inverse, tails), model.entities[heads])
        return (forward + backward) / 2

    @jax.jit
    def score_tails(self, relations: Ids, heads: Ids) -> Float[Array, "n entities"]:
        """Score every entity as the tail of each query (relation, head, ?)."""
        return self._score_answers(self.model.tail_queries, self.model.head_queries, relations, heads)

    @jax.jit
    def score_heads(self, relations: Ids, tails: Ids) -> Float[Array, "n entities"]:
        """Score every entity as the head of each query (relation, ?, tail)."""
        return self._score_answers(self.model.head_queries, self.model.tail_queries, relations, tails)

    def _score_answers(
        self, queries: _QueryFunction, inverse_queries: _QueryFunction, relations: Ids, entities: Ids
    ) -> Float[Array, "n entities"]:
        relations, entities, answers = jnp.asarray(relations), jnp.asarray(entities), self.model.entities
        forward = self.model.compare(queries(relations, entities), answers)
        if not self.reciprocal:
            return forward
        inverse = inverse_queries(relations + self.num_relations, entities)
        return (forward + self.model.compare(inverse, answers)) / 2

    def probability(self, triples: Triples) -> Float[Array, " n"]:
        """Return the probability that each triple is true."""
        return jnp.exp(self.log_prob(triples))

    def log_prob(self, triples: Triples) -> Float[Array, " n"]:
        """Return the log-probability that each triple is true.

        Unlike `probability`, it distinguishes triples whose probabilities are so close to 1 that they are
        rounded to 1.
        """
        return jax.nn.log_sigmoid(self.slope * self.score(triples) + self.offset)


def calibrate(
    kge: KGE,
    triples: Int32[np.ndarray, "triples 3"],
    known: Int32[np.ndarray, "known 3"],
    seed: int = 0,
) -> KGE:
    """Calibrate the probabilities of an embedding with Platt scaling (Platt, 1999).

    A logistic regression on the score is fitted to true triples and about as many random corruptions. The
    probabilities therefore assume that half of all triples are true.

    Args:
        kge: The embedding.
        triples: True triples, usually the validation queries.
        known: Known triples, which are not used as corruptions.
        seed: Seed for sampling corruptions.

    Returns:
        The embedding with new `slope` and `offset`.
    """
    generator, size = np.random.default_rng(seed), kge.num_entities
    corrupted = triples.copy()
    columns = generator.integers(1, 3, len(corrupted))
    corrupted[np.arange(len(corrupted)), columns] = generator.integers(0, size, len(corrupted))
    is_known = np.isin(encode_tuples(corrupted.T, size), encode_tuples(known.T, size))
    scores = np.asarray(kge.score(np.concatenate([triples, corrupted[~is_known]])), np.float64)
    is_true = np.arange(len(scores)) < len(triples)
    slope, offset = _fit_logistic(scores, is_true)
    return eqx.tree_at(lambda k: (k.slope, k.offset), kge, (jnp.float32(slope), jnp.float32(offset)))


def _fit_logistic(scores: Float[np.ndarray, " n"], is_true: Bool[np.ndarray, " n"]) -> tuple[float, float]:
    """Fit a logistic regression with Newton's method, and return its slope and offset.

    The slope is always positive, so that probabilities have the same order as scores.
    """
    mean, deviation = float(scores.mean()), float(scores.std()) or 1.0
    values = np.stack([(scores - mean) / deviation, np.ones_like(scores)], axis=1)
    # Platt's targets keep the slope finite if the scores separate the classes perfectly.
    targets = np.where(is_true, 1 - 1 / (is_true.sum() + 2), 1 / ((~is_true).sum() + 2))
    weights = np.array([1.0, 0.0])
    for _ in range(50):
        probability = 1 / (1 + np.exp(-values @ weights))
        gradient = values.T @ (probability - targets)
        hessian = (values * (probability * (1 - probability))[:, None]).T @ values + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    slope = max(float(weights[0]), 1e-3) / deviation
    return slope, float(weights[1]) - slope * mean


def save_kge(
    folder: str | os.PathLike[str],
    kge: KGE,
    config: KGEModelConfig,
    vocabulary: Vocabulary,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Save an embedding to a folder, and return the path of the folder.

    An existing embedding in the folder is replaced atomically: the arrays are written to a new file, and
    `config.json`, which refers to this file, is written last. Readers see either the old or the new
    embedding.

    Args:
        folder: A new or empty folder, or a folder that contains an embedding.
        kge: The embedding.
        config: Settings of the embedding, which are saved with it.
        vocabulary: Names of the entities and relations.
        metadata: JSON values to save with the embedding, such as its validation MRR.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG_FILE).is_file())):
        raise ValueError(f"{path} is not an embedding, so it is not overwritten: choose another folder")
    own = kge.num_relations, kge.num_entities
    expected = vocabulary.num_predicates, vocabulary.num_entities
    if own != expected:
        raise ValueError(
            f"the embedding has {own[0]} predicates and {own[1]} constants, but the vocabulary has "
            f"{expected[0]} and {expected[1]}"
        )
    path.mkdir(parents=True, exist_ok=True)
    remove_stale_temporaries(path)
    arrays = {f"parameter_{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(kge))}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        entities=np.array(vocabulary.entities),
        relations=np.array(vocabulary.predicates),
        **arrays,  # type: ignore[arg-type]
    )
    data = buffer.getvalue()
    name = f"arrays-{hashlib.sha256(data).hexdigest()[:12]}.npz"
    with atomic_write(path / name, checksum=True) as file:
        file.write(data)
    with atomic_write(path / CONFIG_FILE, "w", checksum=True) as text:
        header = {"format": FILE_FORMAT, "phalanx": __version__, "arrays": name, "metadata": metadata or {}}
        write_json(text, {**header, "config": config.model_dump(mode="json")}, indent=2)
    for old in path.glob("arrays-*.npz"):
        if old.name != name:
            old.unlink()
    return path


def load_kge(run_or_folder: str | os.PathLike[str], vocabulary: Vocabulary | None = None) -> KGE:
    """Load an embedding from a `phalanx train kge` run, or from a folder written by `save_kge`.

    Args:
        run_or_folder: Folder of the run or of the embedding.
        vocabulary: Vocabulary whose ids the loaded embedding will use. It must contain the same names as the
            saved embedding, but their order may differ. If None, the ids of the knowledge base that the
            embedding was trained on are kept.
    """
    path, config = _embedding_folder(run_or_folder), load_kge_config(run_or_folder)
    with _open_arrays(path) as arrays:
        entities, relations = arrays["entities"].tolist(), arrays["relations"].tolist()
        template = KGE.create(config, len(relations), len(entities), np.random.default_rng(0))
        leaves, structure = jax.tree.flatten(template)
        for number, leaf in enumerate(leaves):
            name = f"parameter_{number}"
            if name not in arrays or arrays[name].shape != leaf.shape:
                found = arrays[name].shape if name in arrays else "nothing"
                raise ValueError(f"{path}: {name} should have shape {leaf.shape}, found {found}")
            leaves[number] = jnp.asarray(arrays[name], leaf.dtype)
    kge: KGE = jax.tree.unflatten(structure, leaves)
    if vocabulary is None:
        return kge
    entity_rows = _find_rows(entities, vocabulary.entities, "constant", path)
    rows = _find_rows(relations, vocabulary.predicates, "predicate", path)
    # The rows of inverse relations follow the others.
    relation_rows = np.concatenate([rows, rows + kge.num_relations]) if kge.reciprocal else rows
    tables = kge.model.entities[entity_rows], kge.model.relations[relation_rows]
    return eqx.tree_at(lambda k: (k.model.entities, k.model.relations), kge, tables)


def check_kge(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Verify the files of a saved embedding, and return how many entities and relations it has."""
    load_kge_config(folder)
    with _open_arrays(_embedding_folder(folder)) as arrays:
        return len(arrays["entities"]), len(arrays["relations"])


def load_kge_config(folder: str | os.PathLike[str]) -> KGEModelConfig:
    """Return the settings of a saved embedding."""
    path = _embedding_folder(folder)
    try:
        return KGEModelConfig.model_validate(_load_header(path)["config"])
    except ValidationError as error:
        raise ValueError(f"{path / CONFIG_FILE} has invalid settings: {error}") from error


def load_kge_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a saved embedding, for example its validation MRR."""
    return _load_header(_embedding_folder(folder))["metadata"]


def _embedding_folder(run_or_folder: str | os.PathLike[str]) -> Path:
    path = Path(run_or_folder)
    return path / RUN_FOLDER if (path / RUN_FOLDER).is_dir() else path


def _load_header(path: Path) -> dict[str, Any]:
    file = path / CONFIG_FILE
    if not file.is_file():
        raise ValueError(f"{path} is not an embedding: it has no {CONFIG_FILE}")
    header = read_verified_json(file, _RETRAIN)
    if header.get("format") != FILE_FORMAT:
        raise ValueError(
            f"{file} has format {header.get('format')}, but this version of Phalanx reads format "
            f"{FILE_FORMAT}: {_RETRAIN}"
        )
    if missing := [name for name in ("arrays", "config", "metadata") if name not in header]:
        raise ValueError(f"{file} does not describe an embedding: it lacks {', '.join(missing)}")
    return header


@contextlib.contextmanager
def _open_arrays(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    file = path / _load_header(path)["arrays"]
    if not file.is_file():
        raise ValueError(f"{file} does not exist, although {CONFIG_FILE} refers to it")
    with open_verified(file, _RETRAIN) as opened, np.load(opened, allow_pickle=False) as arrays:
        yield arrays


def _find_rows(
    saved: Sequence[str], wanted: Sequence[str], kind: str, path: Path
) -> Int[np.ndarray, " rows"]:
    """Return the index in `saved` of each name in `wanted`.

    Raises `ValueError` if the two lists do not contain the same names.

    Args:
        saved: Names in the order of the saved table.
        wanted: Names in the desired order.
        kind: `constant` or `predicate`, for the error message.
        path: Folder of the embedding, for the error message.
    """
    ids = {name: number for number, name in enumerate(saved)}
    missing = [name for name in wanted if name not in ids]
    extra = sorted(set(saved) - set(wanted))
    if missing or extra:
        differences = [
            f"{len(names)} {kind}{'s' if len(names) > 1 else ''} only {where} ({names[0]!r}, ...)"
            for names, where in ((missing, "in this knowledge base"), (extra, "in the embedding"))
            if names
        ]
        raise ValueError(
            f"{path} was trained on another knowledge base: {' and '.join(differences)}. "
            "Train one on this knowledge base with `phalanx train kge dataset=PATH`"
        )
    return np.array([ids[name] for name in wanted], np.int64)
