"""Embeddings on the disk: a folder with `config.json` and one file of arrays, names included.

A folder is read for a knowledge base with the same names, in whatever order; another one is refused.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from pydantic import ValidationError

from phalanx import __version__
from phalanx.io.atomic import atomic_write, remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError, read_verified, read_verified_json, write_json
from phalanx.kg.kge.config import KGEConfig
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.vocabulary import IndexManager

FORMAT = 2
CONFIG = "config.json"
_REMEDY = "train the embedding again"


def save_kge(
    folder: str | os.PathLike[str],
    kge: KGE,
    config: KGEConfig,
    index_manager: IndexManager,
    facts: dict[str, Any] | None = None,
) -> Path:
    """Write an embedding; one that is in the folder already is replaced, anything else is left alone.

    The arrays have a name of their own and `config.json`, written last, tells it: a reader finds the old
    embedding or the new one, whole. `facts` (numbers and text) are kept with it.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).is_file())):
        raise ValueError(f"{path} holds something that is no embedding, and nothing in it is overwritten")
    _check_sizes(kge, index_manager)
    path.mkdir(parents=True, exist_ok=True)
    remove_stale_temporaries(path)
    arrays = {f"parameter_{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(kge))}
    packed = io.BytesIO()
    np.savez(
        packed,
        entities=np.array(index_manager.constants),
        relations=np.array(index_manager.predicates),
        **arrays,  # type: ignore[arg-type]
    )
    data = packed.getvalue()
    name = f"arrays-{hashlib.sha256(data).hexdigest()[:12]}.npz"
    with atomic_write(path / name, checksum=True) as file:
        file.write(data)
    with atomic_write(path / CONFIG, "w", checksum=True) as text:
        about = {"format": FORMAT, "phalanx": __version__, "arrays": name, "facts": facts or {}}
        write_json(text, {**about, "config": config.model_dump(mode="json")}, indent=2)
    for old in path.glob("arrays-*.npz"):
        if old.name != name:
            old.unlink()
    return path


def load_kge(folder: str | os.PathLike[str], index_manager: IndexManager) -> KGE:
    """The embedding in a folder, numbered as the index manager numbers names.

    The names must be the same; where they come in another order, the tables are put into it.
    """
    path = Path(folder)
    about = _read_about(path)
    config = read_kge_config(path)
    with _open_arrays(path / about["arrays"]) as arrays:
        entities, relations = arrays["entities"].tolist(), arrays["relations"].tolist()
        by_entity = _places(entities, index_manager.constants, "constant", path)
        by_relation = _places(relations, index_manager.predicates, "predicate", path)
        like = KGE.create(config, len(relations), len(entities), np.random.default_rng(0))
        shapes, structure = jax.tree.flatten(like)
        leaves = [_array(arrays, number, shape, path) for number, shape in enumerate(shapes)]
    kge: KGE = jax.tree.unflatten(structure, leaves)
    return _reordered(kge, by_entity, by_relation)


def check_kge(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Read all of an embedding for its own sake. Returns how many entities and relations it has."""
    path = Path(folder)
    read_kge_config(path)
    with _open_arrays(path / _read_about(path)["arrays"]) as arrays:
        return len(arrays["entities"]), len(arrays["relations"])


def read_kge_config(folder: str | os.PathLike[str]) -> KGEConfig:
    """The config that an embedding was trained with."""
    path = Path(folder)
    try:
        return KGEConfig.model_validate(_read_about(path)["config"])
    except ValidationError as error:
        raise ValueError(f"{path / CONFIG} holds no config of an embedding: {error}") from error


def read_kge_facts(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What was saved beside the embedding: how good it was, and where it comes from."""
    return _read_about(Path(folder))["facts"]


def _read_about(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"{path} holds no embedding: it has no {CONFIG}")
    about = read_verified_json(file, _REMEDY)
    if missing := [name for name in ("arrays", "config", "facts") if name not in about]:
        raise ValueError(f"{file} does not describe an embedding: it lacks {', '.join(missing)}")
    if about.get("format") != FORMAT:
        raise ValueError(f"{file} has format {about.get('format')}, this version of Phalanx reads {FORMAT}")
    return about


def _open_arrays(file: Path) -> np.lib.npyio.NpzFile:
    try:
        # From memory: of a damaged file NumPy leaves the handle open.
        return np.load(io.BytesIO(read_verified(file, _REMEDY)), allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{file} is gone, which {CONFIG} beside it names") from None
    except CorruptFileError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _array(arrays: np.lib.npyio.NpzFile, number: int, like: jax.Array, path: Path) -> jax.Array:
    name = f"parameter_{number}"
    if name not in arrays or arrays[name].shape != like.shape:
        found = arrays[name].shape if name in arrays else "nothing"
        raise ValueError(f"{path}: {name} should have the shape {like.shape}, found {found}")
    return jnp.asarray(arrays[name], like.dtype)


def _places(saved: Sequence[str], wanted: Sequence[str], kind: str, path: Path) -> Int[np.ndarray, " rows"]:
    """Where each wanted name is in the saved table."""
    place = {name: number for number, name in enumerate(saved)}
    missing = [name for name in wanted if name not in place]
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
    return np.array([place[name] for name in wanted], np.int64)


def _reordered(kge: KGE, by_entity: np.ndarray, by_relation: np.ndarray) -> KGE:
    """Tables with rows in the order wanted; those of relations read backwards follow the others."""
    if np.array_equal(by_entity, np.arange(len(by_entity))) and np.array_equal(
        by_relation, np.arange(len(by_relation))
    ):
        return kge
    rows = np.concatenate([by_relation, by_relation + kge.num_relations]) if kge.reciprocal else by_relation
    return eqx.tree_at(lambda k: k.model, kge, kge.model.reordered(by_entity, rows))


def _check_sizes(kge: KGE, index_manager: IndexManager) -> None:
    ours = kge.num_relations, kge.num_entities
    theirs = index_manager.num_predicates, index_manager.num_constants
    if ours != theirs:
        raise ValueError(
            f"the embedding has {ours[0]} predicates and {ours[1]} constants, the index manager "
            f"{theirs[0]} and {theirs[1]}"
        )
