"""`DataHandler`: a `KnowledgeBase` with DeepProofLog's constructor and attribute names."""

from collections.abc import Collection, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

from phalanx.compat.renamed import alias
from phalanx.kg.atoms import Atom
from phalanx.kg.formats import find_atoms, list_knowledge_bases
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase, OnLeak


class DataHandler(KnowledgeBase):
    """A `KnowledgeBase` whose queries can be restricted to given proof depths.

    `DataHandler()` is the generated family knowledge base. `DataHandler("family", path="data/kg")` and
    `DataHandler(path="data/kg/family")` both read the `data/kg/family` folder.

    Args:
        dataset: Name of the knowledge base in `path`.
        path: Folder with one or several knowledge bases, or a file of triples.
        on_leak: What to do if validation or test queries are also facts: `drop` removes these facts, `warn`
            issues a warning, `error` raises an error, and `allow` keeps them.
        train_depth: Keep only training queries with these proof depths. Facts are not affected. If None, all
            queries are kept.
        valid_depth: Keep only validation queries with these proof depths. If None, all are kept.
        test_depth: Keep only test queries with these proof depths. If None, all are kept.
        generated: Additional arguments to `KnowledgeBase.generate`, such as `seed`. Not allowed if `path` is
            given.
    """

    def __init__(
        self,
        dataset: str = GENERATED,
        path: str | Path | None = None,
        *,
        on_leak: OnLeak = "warn",
        train_depth: Collection[int] | None = None,
        valid_depth: Collection[int] | None = None,
        test_depth: Collection[int] | None = None,
        **generated: Any,
    ) -> None:
        if dataset == GENERATED and path is None:
            base = KnowledgeBase.generate(on_leak=on_leak, **generated)
        elif generated:
            raise ValueError(
                f"{' and '.join(generated)} apply to the generated knowledge base only, but {path} is read "
                "from files: remove them, or remove the path"
            )
        else:
            base = KnowledgeBase.load(_find_folder(dataset, path), on_leak=on_leak)
        depths = {"train": train_depth, "valid": valid_depth, "test": test_depth}
        given = {split: wanted for split, wanted in depths.items() if wanted is not None}
        selected = {split: _select_by_depth(base, split, wanted) for split, wanted in given.items()}
        # Knowledge bases are frozen, so attributes cannot be assigned.
        self.__dict__.update(vars(base), _selected=selected)

    def queries(self, split: str) -> tuple[Atom, ...]:
        """Return the queries of a split, restricted to the proof depths given to the constructor, if any."""
        selected: Mapping[str, tuple[Atom, ...]] = self.__dict__["_selected"]
        return selected[split] if split in selected else super().queries(split)

    dataset = alias("name")
    # Each training query is also a fact, and must be proved without it.
    train_queries = property(methodcaller("queries", "train"))
    valid_queries = property(methodcaller("queries", "valid"))
    test_queries = property(methodcaller("queries", "test"))
    # Proof depths by query, or None if they are not given.
    train_depths = property(methodcaller("depths", "train"))
    valid_depths = property(methodcaller("depths", "valid"))
    test_depths = property(methodcaller("depths", "test"))

    def facts_for(self, query: Atom) -> tuple[Atom, ...]:
        """Return the facts that a proof of the query may use: all facts except the query itself."""
        return tuple(atom for atom in self.facts if atom != query)


def _select_by_depth(base: KnowledgeBase, split: str, wanted: Collection[int]) -> tuple[Atom, ...]:
    depths = base.depths(split)
    if depths is None:
        raise ValueError(
            f"{base.name} has no {split}_depths.txt to select {split} queries by depth; create it with "
            "`phalanx kg depths`"
        )
    return tuple(atom for atom in base.queries(split) if depths.get(atom) in wanted)


def _find_folder(dataset: str, path: str | Path | None) -> Path:
    if path is None:
        raise ValueError(
            f"there is no built-in knowledge base {dataset!r}: pass the path of its folder (only "
            f"{GENERATED!r} needs none)"
        )
    folder = Path(path)
    if dataset == GENERATED or (folder.name == dataset and find_atoms(folder, "train")):
        return folder
    if not (folder / dataset).is_dir():
        if not folder.is_dir():
            raise FileNotFoundError(f"no knowledge base {dataset!r}: {folder} is not a folder")
        available = ", ".join(child.name for child in list_knowledge_bases(folder)) or "none"
        raise FileNotFoundError(f"no knowledge base {dataset!r} in {folder}; available: {available}")
    return folder / dataset
