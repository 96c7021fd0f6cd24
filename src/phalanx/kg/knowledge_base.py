"""Knowledge bases as environments use them: facts, queries by split, and what counts as true.

The files are read in `files`, the built-in knowledge base is made in `generated`, and numbers are given to
names in `vocabulary`.
"""

import collections
import dataclasses
import difflib
import functools
import itertools
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from phalanx.kg.atoms import Atom, Rule, name_order
from phalanx.kg.family_generator import generate_family
from phalanx.kg.formats import SPLITS, KnowledgeBase, find_atoms, read_knowledge
from phalanx.kg.vocabulary import check_name

if TYPE_CHECKING:
    from phalanx.kg.query_answering import QueryAnswer, QueryAnswerer
    from phalanx.kg.rules.ruleset import RuleSet

GENERATED = "generated"

OnLeak = Literal["warn", "error", "drop", "allow"]


class DataHandler:
    """A knowledge base with its queries.

    `DataHandler()` is the generated family knowledge base. `DataHandler("family", path="data/kg")` reads the
    folder `data/kg/family`, and `DataHandler(path="data/kg/family")` the same.

    The facts are the atoms of `train.txt`, or of the one file that a path may name; the queries are the atoms
    of a split. A training query is a fact too, and may not serve in its own proof: `facts_for` leaves it out.
    Where queries of the other splits are facts, `on_leak` says what to do: `warn`, `error`, `drop` those
    facts, or `allow` them.

    `train_depth`, `valid_depth` and `test_depth` keep only the queries whose depth (by the depth files, or
    the generator) is among these; facts and `known` stay whole. `num_families` (8), `generations` (4) and
    `seed` (0) shape the generated knowledge base, and are refused for one that is read.
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
        num_families: int | None = None,
        generations: int | None = None,
        seed: int | None = None,
    ) -> None:
        folder = None if dataset == GENERATED and path is None else _folder(dataset, path)
        settings = {"num_families": num_families, "generations": generations, "seed": seed}
        given = {name: value for name, value in settings.items() if value is not None}
        if folder is None:
            base = generate_family(**given)
        elif given:
            raise ValueError(
                f"{' and '.join(given)} shape the generated knowledge base, and {folder} is read from files: "
                "leave them out, or leave the path out"
            )
        else:
            base = read_knowledge(folder)
        self._open(
            base,
            GENERATED if folder is None else folder.stem if folder.is_file() else folder.name,
            on_leak,
            {"train": train_depth, "valid": valid_depth, "test": test_depth},
        )

    @classmethod
    def from_knowledge(
        cls, base: KnowledgeBase, name: str = "given", *, on_leak: OnLeak = "warn"
    ) -> "DataHandler":
        """A handler of a knowledge base that is in memory."""
        handler = cls.__new__(cls)
        handler._open(base, name, on_leak, {})
        return handler

    def _open(
        self,
        base: KnowledgeBase,
        name: str,
        on_leak: OnLeak,
        depth_filters: Mapping[str, Collection[int] | None],
    ) -> None:
        if on_leak not in ("warn", "error", "drop", "allow"):
            raise ValueError(f"on_leak must be warn, error, drop or allow, got {on_leak!r}")
        self.base, self.dataset = base, name
        leaked = frozenset(atom for atoms in self.leaks().values() for atom in atoms)
        if leaked and on_leak in ("warn", "error"):
            self._report_leaks(on_leak)
        self._dropped = leaked if on_leak == "drop" else frozenset()
        self._queries = {split: self._choose(split, depth_filters.get(split)) for split in SPLITS}
        if self.rules:
            self._check_rules(frozenset(self.entities))
        self.arities  # noqa: B018 - raises where a predicate has several

    @functools.cached_property
    def facts(self) -> tuple[Atom, ...]:
        """What a proof may start from, in the order of the training file."""
        if not self._dropped:
            return self.base.train
        return tuple(atom for atom in self.base.train if atom not in self._dropped)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in the order of their file."""
        return self.base.rules

    @property
    def train_queries(self) -> tuple[Atom, ...]:
        """The facts as queries; each is to be proved without itself."""
        return self._queries["train"]

    @property
    def valid_queries(self) -> tuple[Atom, ...]:
        """Queries to choose settings by."""
        return self._queries["valid"]

    @property
    def test_queries(self) -> tuple[Atom, ...]:
        """Queries to report on."""
        return self._queries["test"]

    @property
    def train_depths(self) -> Mapping[Atom, int] | None:
        """Depths of training queries, where given."""
        return self.depths("train")

    @property
    def valid_depths(self) -> Mapping[Atom, int] | None:
        """Depths of validation queries, where given."""
        return self.depths("valid")

    @property
    def test_depths(self) -> Mapping[Atom, int] | None:
        """Depths of test queries, where given."""
        return self.depths("test")

    def queries(self, split: str) -> tuple[Atom, ...]:
        """The queries of `train`, `valid` or `test`."""
        self.base.split(split)
        return self._queries[split]

    def depths(self, split: str) -> Mapping[Atom, int] | None:
        """The shortest proof's length by query as the files give it (-1: no proof), None without a file."""
        self.base.split(split)
        return self.base.depths.get(split)

    @property
    def domains(self) -> Mapping[str, tuple[str, ...]]:
        """Constants by domain; empty where no file gives any."""
        return self.base.domains

    @functools.cached_property
    def entities(self) -> tuple[str, ...]:
        """Every constant of any split or domain, numerals as numbers and before other names."""
        names = {name for atom in self.known for name in atom[1:]}
        names.update(name for constants in self.base.domains.values() for name in constants)
        return tuple(sorted(names, key=name_order))

    @functools.cached_property
    def predicates(self) -> tuple[str, ...]:
        """Every predicate of any split or rule, sorted."""
        names = {atom.predicate for atom in self.known}
        names.update(atom.predicate for rule in self.rules for atom in (*rule.body, rule.head))
        return tuple(sorted(names))

    @functools.cached_property
    def arities(self) -> Mapping[str, int]:
        """How many arguments each predicate has, in all atoms and rules alike; anything else is an error."""
        found: dict[str, int] = {}
        in_rules = (atom for rule in self.rules for atom in (*rule.body, rule.head))
        for atom in itertools.chain(self.known, in_rules):
            if found.setdefault(atom[0], len(atom) - 1) != len(atom) - 1:
                raise ValueError(
                    f"{self.dataset} has {atom.predicate} with {found[atom.predicate]} arguments and with "
                    f"{len(atom) - 1}, as in {atom}: give one of the two predicates another name"
                )
        return found

    @functools.cached_property
    def known(self) -> frozenset[Atom]:
        """Every atom that is true by any split, provable or not: none of them is a negative."""
        base = self.base
        return frozenset((*base.train, *base.valid, *base.test, *base.also_true))

    def binary(self) -> "DataHandler":
        """This handler if all its predicates have two arguments; else one of those that do, with a warning.

        What the facts say of one entity or of three is left out, and so are rules that need it.
        """
        others = sorted(name for name, count in self.arities.items() if count != 2)
        if not others:
            return self
        base, left_out = self.base, frozenset(others)

        def kept(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
            return tuple(atom for atom in atoms if atom[0] not in left_out)

        train = kept(self.facts)
        rules = tuple(
            rule for rule in base.rules if left_out.isdisjoint(a[0] for a in (rule.head, *rule.body))
        )
        warnings.warn(
            f"{self.dataset}: only predicates of two arguments are used here; "
            f"{len(self.facts) - len(train)} facts and {len(base.rules) - len(rules)} rules with "
            f"{', '.join(others[:3])}{', ...' if len(others) > 3 else ''} are left out",
            UserWarning,
            stacklevel=3,
        )
        base = dataclasses.replace(
            base,
            train=train,
            valid=kept(base.valid),
            test=kept(base.test),
            also_true=kept(base.also_true),
            rules=rules,
            depths={},
        )
        return DataHandler.from_knowledge(base, self.dataset, on_leak="allow")

    def facts_for(self, query: Atom) -> tuple[Atom, ...]:
        """What a proof of this query may start from: every fact but the query."""
        return tuple(atom for atom in self.facts if atom != query)

    def with_validation(self, share: float = 0.1, seed: int = 0) -> "DataHandler":
        """This handler if it has validation queries; else one that holds out a share of the facts for them.

        What is held out is drawn by the seed, so that every predicate and constant stays among the facts, and
        is said in a warning.
        """
        if self.valid_queries:
            return self
        facts = self.facts
        predicates = collections.Counter(atom.predicate for atom in facts)
        constants = collections.Counter(name for atom in facts for name in atom[1:])
        held: dict[Atom, None] = {}
        wanted = max(1, round(share * len(facts)))
        for place in np.random.default_rng(seed).permutation(len(facts)).tolist():
            predicate, *terms = facts[place]
            stays = all(constants[name] > terms.count(name) for name in terms)
            if stays and predicates[predicate] > 1:
                held[facts[place]] = None
                predicates[predicate] -= 1
                constants.subtract(terms)
            if len(held) == wanted:
                break
        if not held:
            raise ValueError(
                f"{self.dataset} has no validation queries, and no fact can be held out for them, as each is "
                "the only one of a constant or a predicate: add a valid.txt"
            )
        warnings.warn(
            f"{self.dataset} has no validation queries: {len(held)} of {len(facts)} training triples are "
            "held out for them",
            UserWarning,
            stacklevel=2,
        )
        train = tuple(atom for atom in facts if atom not in held)
        base = dataclasses.replace(self.base, train=train, valid=tuple(held), depths={})
        return DataHandler.from_knowledge(base, self.dataset, on_leak="allow")

    def ask(
        self,
        query: Atom | str,
        top: int = 10,
        *,
        explain: bool = False,
        new: bool = False,
        rules: "RuleSet | None" = None,
    ) -> "list[QueryAnswer]":
        """The most likely answers to a query with one variable, or whether a ground one holds.

        By these rules, or by those of the knowledge base, or, where it has none, by mined ones, which takes
        time once. With `explain` each answer has its best proofs; with `new` facts are left out.
        """
        if rules is None:
            return self._asker.ask(query, top, explain=explain, new=new)
        from phalanx.kg.query_answering import QueryAnswerer

        return QueryAnswerer(self, rules).ask(query, top, explain=explain, new=new)

    @functools.cached_property
    def _asker(self) -> "QueryAnswerer":
        from phalanx.kg.query_answering import QueryAnswerer

        return QueryAnswerer(self)

    def leaks(self) -> dict[str, tuple[Atom, ...]]:
        """The queries of other splits that the training file holds, for those splits that have any."""
        facts = frozenset(self.base.train)
        found = {
            split: tuple(filter(facts.__contains__, self.base.split(split))) for split in ("valid", "test")
        }
        return {split: atoms for split, atoms in found.items() if atoms}

    def _check_rules(self, constants: frozenset[str]) -> None:
        """Raises where a rule's constant is unknown, or a variable of it may be meant as a constant."""
        for rule in self.rules:
            atoms = (rule.head, *rule.body)
            for atom in atoms:
                for name in rule.constants.intersection(atom[1:]):
                    hint = f" (rule {rule.name!r}); a variable begins with a capital letter, _ or ?"
                    check_name(name, constants, "constant", atom, hint)
            if both := constants.intersection(rule.variables):
                raise ValueError(
                    f"rule {rule.name!r} has a variable {min(both)!r}, which is a constant of {self.dataset} "
                    "too: put it in quotes if the constant is meant, or give the variable another name"
                )
            for name in rule.variables:
                # A long name that is there once, and nearly a constant's, is more likely mistyped.
                once = sum(atom[1:].count(name) for atom in atoms) == 1 and len(name) > 1 and name[0] != "_"
                if near := difflib.get_close_matches(name, constants if once else (), n=1, cutoff=0.75):
                    raise ValueError(
                        f"rule {rule.name!r} has {name!r} once, which reads as a variable: quote it if the "
                        f"constant {near[0]!r} is meant, or write _{name} for a variable"
                    )

    def _report_leaks(self, how: str) -> None:
        counts = " and ".join(
            f"{len(atoms)} of {len(self.base.split(split))} {split} queries ({atoms[0]}, ...)"
            for split, atoms in self.leaks().items()
        )
        text = (
            f"{self.dataset}: the training file holds {counts}; give on_leak='drop' to prove without these "
            "facts, or 'allow' to keep them"
        )
        if how == "error":
            raise ValueError(text)
        warnings.warn(text, UserWarning, stacklevel=4)

    def _choose(self, split: str, wanted: Collection[int] | None) -> tuple[Atom, ...]:
        atoms = self.facts if split == "train" else self.base.split(split)
        if wanted is None:
            return atoms
        depths = self.depths(split)
        if depths is None:
            raise ValueError(
                f"{self.dataset} has no {split}_depths.txt to choose {split} queries by; "
                "`phalanx data kg depths` writes one"
            )
        return tuple(atom for atom in atoms if depths.get(atom) in wanted)

    def __repr__(self) -> str:
        base = self.base
        return (
            f"DataHandler({self.dataset!r}: {len(self.facts)} facts, {len(self.rules)} rules, "
            f"{len(base.valid)} valid and {len(base.test)} test queries)"
        )


def available_knowledge(path: str | Path) -> list[Path]:
    """The folders directly in `path` that hold a knowledge base, or `path` itself if it holds one."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    if find_atoms(folder, "train"):
        return [folder]
    return sorted(child for child in folder.iterdir() if child.is_dir() and find_atoms(child, "train"))


def _folder(dataset: str, path: str | Path | None) -> Path:
    if path is None:
        raise ValueError(
            f"no built-in knowledge base {dataset!r}: give the path of the folder that holds it "
            f"(only {GENERATED!r} needs none)"
        )
    folder = Path(path)
    if dataset == GENERATED or (folder.name == dataset and find_atoms(folder, "train")):
        return folder
    if not (folder / dataset).is_dir():
        if not folder.is_dir():
            raise FileNotFoundError(f"no knowledge base {dataset!r}: {folder} is not a folder")
        there = ", ".join(child.name for child in available_knowledge(folder)) or "none"
        raise FileNotFoundError(f"no knowledge base {dataset!r} in {folder}; there: {there}")
    return folder / dataset
