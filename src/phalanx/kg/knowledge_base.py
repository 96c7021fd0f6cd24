"""Knowledge bases: facts, rules, and queries in train, validation and test splits."""

import collections
import dataclasses
import difflib
import functools
import itertools
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int32

from phalanx.kg.atoms import Atom, Rule, name_sort_key
from phalanx.kg.formats import SPLITS, load_folder, write_folder
from phalanx.kg.triple_index import TripleIndex
from phalanx.kg.vocabulary import EncodedRule, Vocabulary, check_name

if TYPE_CHECKING:
    from phalanx.kg.query_answering import QueryAnswerer

GENERATED = "generated"
"""Name of the built-in knowledge base about families, which is generated and needs no files."""

OnLeak = Literal["warn", "error", "drop", "allow"]


@dataclasses.dataclass(frozen=True)
class KnowledgeBase:
    """Facts, rules, and queries in the `train`, `valid` and `test` splits.

    The training atoms serve both as facts and as training queries. A training query is not used as a fact in
    its own proof. Use the constructor to create a knowledge base from atoms, `KnowledgeBase.load` to load it
    from files, or `KnowledgeBase.generate` to generate the built-in knowledge base.
    """

    train: tuple[Atom, ...]
    """Training atoms, in the order of the training file."""
    rules: tuple[Rule, ...] = ()
    valid: tuple[Atom, ...] = ()
    """Validation queries, for selecting hyperparameters."""
    test: tuple[Atom, ...] = ()
    """Test queries, for reporting results."""
    extra_known: tuple[Atom, ...] = ()
    """Atoms that are known to be true but are not in any split. They are neither facts nor queries, and are
    never sampled as negatives."""
    split_depths: Mapping[str, Mapping[Atom, int]] = dataclasses.field(default_factory=dict)
    """Proof depths of the queries, by split. The proof depth is the number of steps in the shortest proof, or
    -1 if there is no proof. Splits without known depths are left out."""
    domains: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Constants of each domain (entity type), by domain name. Empty if there are no domains."""
    name: str = dataclasses.field(default="knowledge base", compare=False)
    on_leak: OnLeak = dataclasses.field(default="allow", compare=False)
    """What to do if validation or test queries are also facts: `warn` issues a warning, `error` raises
    `ValueError`, `drop` removes these facts, and `allow` keeps them."""

    def __post_init__(self) -> None:
        if self.on_leak not in ("warn", "error", "drop", "allow"):
            raise ValueError(f"on_leak must be warn, error, drop or allow, got {self.on_leak!r}")
        if self.on_leak in ("warn", "error"):
            self._report_leaks()
        if self.rules:
            self._check_rules(frozenset(self.entities))
        self.arities  # noqa: B018 - raises if a predicate has several arities

    @staticmethod
    def load(path: str | Path, *, on_leak: OnLeak = "warn") -> "KnowledgeBase":
        """Load a knowledge base from files.

        Args:
            path: A folder with `train.txt` and optional other files, a file of triples, the name of a dataset
                that `phalanx kg download` has saved in the `data` folder, or `generated` for the built-in
                knowledge base about families.
            on_leak: What to do if validation or test queries are also facts; see the `on_leak` field.
        """
        if path == GENERATED:
            return KnowledgeBase.generate(on_leak=on_leak)
        folder = Path(path)
        if not folder.exists():
            from phalanx.kg.datasets import DATASETS, dataset_folder

            if str(path) in DATASETS:
                folder = dataset_folder(str(path), Path("data"))
                if not folder.exists():
                    raise FileNotFoundError(
                        f"{folder} does not exist; download it with `phalanx kg download {path}`"
                    )
        name = folder.stem if folder.is_file() else folder.name
        return KnowledgeBase(**load_folder(folder), name=name, on_leak=on_leak)

    @staticmethod
    def generate(
        num_families: int = 8,
        generations: int = 4,
        *,
        seed: int = 0,
        queries_per_depth: int = 8,
        on_leak: OnLeak = "allow",
    ) -> "KnowledgeBase":
        """Generate the built-in knowledge base about families; see `generate_family` for the arguments."""
        from phalanx.kg.family_generator import generate_family

        generated = generate_family(num_families, generations, seed=seed, queries_per_depth=queries_per_depth)
        return generated.replace(on_leak=on_leak)

    def save(self, folder: str | Path) -> None:
        """Write the knowledge base to a folder, from which `load` can read it. Unrelated files are kept."""
        write_folder(Path(folder), self)

    def replace(self, **changes: Any) -> "KnowledgeBase":
        """Return a copy with some fields changed."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(KnowledgeBase)}
        return KnowledgeBase(**{**fields, **changes})

    @functools.cached_property
    def facts(self) -> tuple[Atom, ...]:
        """The atoms that proofs can use as facts.

        These are the training atoms. If `on_leak` is `drop`, training atoms that are also validation or test
        queries are left out.
        """
        if self.on_leak != "drop":
            return self.train
        leaked = frozenset((*self.valid, *self.test))
        return tuple(atom for atom in self.train if atom not in leaked)

    def queries(self, split: str) -> tuple[Atom, ...]:
        """Return the queries of a split. For `train`, these are the facts."""
        _check_split(split)
        atoms: tuple[Atom, ...] = self.facts if split == "train" else getattr(self, split)
        return atoms

    def depths(self, split: str) -> Mapping[Atom, int] | None:
        """Return the proof depths of a split's queries; None if they are not known.

        The depth of a query without a proof is -1.
        """
        _check_split(split)
        return self.split_depths.get(split)

    @functools.cached_property
    def entities(self) -> tuple[str, ...]:
        """All constants that occur in known atoms or domains. Numerals come first, ordered by value."""
        names = {name for atom in self.known for name in atom[1:]}
        names.update(name for constants in self.domains.values() for name in constants)
        return tuple(sorted(names, key=name_sort_key))

    @functools.cached_property
    def predicates(self) -> tuple[str, ...]:
        """All predicates that occur in known atoms or rules, sorted by name."""
        return tuple(sorted(self.arities))

    @functools.cached_property
    def arities(self) -> Mapping[str, int]:
        """Number of arguments of each predicate.

        Raises `ValueError` if two atoms have the same predicate but different numbers of arguments.
        """
        found: dict[str, int] = {}
        for atom in itertools.chain(self.known, *(rule.atoms for rule in self.rules)):
            if found.setdefault(atom[0], len(atom) - 1) != len(atom) - 1:
                raise ValueError(
                    f"{self.name} has {atom.predicate} with {found[atom.predicate]} arguments and with "
                    f"{len(atom) - 1}, as in {atom}: rename one of the two predicates"
                )
        return found

    @functools.cached_property
    def known(self) -> frozenset[Atom]:
        """All atoms that are known to be true: those of all splits and `extra_known`.

        They are never sampled as negatives.
        """
        return frozenset((*self.train, *self.valid, *self.test, *self.extra_known))

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """Integer ids of the entities and predicates."""
        return Vocabulary(self)

    @functools.cached_property
    def encoded_rules(self) -> tuple[EncodedRule, ...]:
        """The rules, encoded with the ids of `vocabulary`."""
        return self.vocabulary.encode_rules(self.rules)

    def triples(self, split: str) -> Int32[np.ndarray, "queries atom"]:
        """Return the encoded queries of a split (cached, read-only). For `train`, these are the facts."""
        if split not in self._encoded:
            self._encoded[split] = _make_read_only(self.vocabulary.encode(self.queries(split)))
        return self._encoded[split]

    @functools.cached_property
    def known_triples(self) -> Int32[np.ndarray, "known atom"]:
        """The encoded known atoms, sorted by the names of their predicates and arguments."""
        return _make_read_only(self.vocabulary.encode(sorted(self.known)))

    @functools.cached_property
    def known_answers(self) -> TripleIndex:
        """Index for looking up the known answers to a query. It contains all triples of `known_triples`.

        All predicates must have two arguments; see `binary`.
        """
        return TripleIndex(self.known_triples, self.vocabulary.num_entities)

    @functools.cached_property
    def _encoded(self) -> dict[str, np.ndarray]:
        return {}

    @functools.cached_property
    def query_answerer(self) -> "QueryAnswerer":
        """A `QueryAnswerer` with the rules of this knowledge base or, if it has none, with mined rules."""
        from phalanx.kg.query_answering import QueryAnswerer

        return QueryAnswerer(self)

    def binary(self) -> "KnowledgeBase":
        """Return this knowledge base restricted to predicates with two arguments.

        Atoms with other predicates, and rules that contain such atoms, are left out with a warning. If all
        predicates have two arguments, this object itself is returned.
        """
        return self._binary

    @functools.cached_property
    def _binary(self) -> "KnowledgeBase":
        others = sorted(name for name, arity in self.arities.items() if arity != 2)
        if not others:
            return self

        def keep(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
            return tuple(atom for atom in atoms if len(atom) == 3)

        train = keep(self.facts)
        rules = tuple(rule for rule in self.rules if all(len(atom) == 3 for atom in rule.atoms))
        _warn(
            f"{self.name}: only predicates with two arguments are used here; "
            f"{len(self.facts) - len(train)} facts and {len(self.rules) - len(rules)} rules with "
            f"{', '.join(others[:3])}{', ...' if len(others) > 3 else ''} are left out"
        )
        return self.replace(
            train=train,
            valid=keep(self.valid),
            test=keep(self.test),
            extra_known=keep(self.extra_known),
            rules=rules,
            split_depths={},
            on_leak="allow",
        )

    def with_validation(self, fraction: float = 0.1, seed: int = 0) -> "KnowledgeBase":
        """Return a knowledge base with validation queries.

        If the knowledge base already has validation queries, it is returned unchanged. Otherwise, some facts
        become validation queries. They are selected at random such that every predicate and constant still
        occurs in the remaining facts. A warning reports the number of held-out facts.

        Args:
            fraction: Fraction of the facts to hold out.
            seed: Seed for the random selection.
        """
        if self.valid:
            return self
        facts = self.facts
        predicates = collections.Counter(atom.predicate for atom in facts)
        constants = collections.Counter(name for atom in facts for name in atom[1:])
        held_out: dict[Atom, None] = {}
        wanted = max(1, round(fraction * len(facts)))
        for index in np.random.default_rng(seed).permutation(len(facts)).tolist():
            predicate, *terms = facts[index]
            remain = all(constants[name] > terms.count(name) for name in terms)
            if remain and predicates[predicate] > 1:
                held_out[facts[index]] = None
                predicates[predicate] -= 1
                constants.subtract(terms)
            if len(held_out) == wanted:
                break
        if not held_out:
            raise ValueError(
                f"{self.name} has no validation queries, and no fact can be held out, because each is the "
                "only one of a constant or a predicate: add a valid.txt"
            )
        _warn(
            f"{self.name} has no validation queries: {len(held_out)} of {len(facts)} training triples are "
            "held out for validation"
        )
        train = tuple(atom for atom in facts if atom not in held_out)
        return self.replace(train=train, valid=tuple(held_out), split_depths={}, on_leak="allow")

    def leaks(self) -> dict[str, tuple[Atom, ...]]:
        """Return the validation and test queries that are also training atoms, by split.

        Splits without such queries are left out.
        """
        facts = frozenset(self.train)
        found = {"valid": self.valid, "test": self.test}
        leaked = {split: tuple(filter(facts.__contains__, atoms)) for split, atoms in found.items()}
        return {split: atoms for split, atoms in leaked.items() if atoms}

    def _check_rules(self, constants: frozenset[str]) -> None:
        """Raise `ValueError` if a rule contains a name that is probably a mistake.

        Such a name is a constant that is not in `constants`, a variable with the name of a constant, or a
        variable that occurs only once in the rule and whose name is similar to that of a constant.
        """
        for rule in self.rules:
            for atom in rule.atoms:
                for name in rule.constants.intersection(atom[1:]):
                    hint = f"In rule {rule.name!r}, a variable starts with a capital letter, _ or ?"
                    check_name(name, constants, "constant", atom, hint)
            if both := constants.intersection(rule.variables):
                raise ValueError(
                    f"rule {rule.name!r} has a variable {min(both)!r}, which is also a constant of "
                    f"{self.name}: quote it to use the constant, or rename the variable"
                )
            for name in rule.variables:
                # A long name that occurs once and is similar to a constant is probably a typo.
                is_rare = sum(atom[1:].count(name) for atom in rule.atoms) == 1
                is_suspicious = is_rare and len(name) > 1 and name[0] != "_"
                others = constants if is_suspicious else ()
                if near := difflib.get_close_matches(name, others, n=1, cutoff=0.75):
                    raise ValueError(
                        f"rule {rule.name!r} contains {name!r} once, which is parsed as a variable: quote it "
                        f"to use the constant {near[0]!r}, or write _{name} for a variable"
                    )

    def _report_leaks(self) -> None:
        counts = [
            f"{len(atoms)} of {len(getattr(self, split))} {split} queries ({atoms[0]}, ...)"
            for split, atoms in self.leaks().items()
        ]
        if not counts:
            return
        text = (
            f"{self.name}: the training file contains {' and '.join(counts)}; pass on_leak='drop' to prove "
            "without these facts, or 'allow' to keep them"
        )
        if self.on_leak == "error":
            raise ValueError(text)
        _warn(text)

    def sizes(self) -> dict[str, Any]:
        """Return the number of items of each kind in the knowledge base, together with its name.

        The keys are `name`, `entities`, `predicates`, `rules`, `facts`, `valid` and `test`.
        """
        return {
            "name": self.name,
            "entities": len(self.entities),
            "predicates": len(self.predicates),
            "rules": len(self.rules),
            "facts": len(self.facts),
            "valid": len(self.valid),
            "test": len(self.test),
        }

    def format_sizes(self) -> str:
        """Format the number of facts, rules and queries as text.

        For example, the result can be `5 facts, 2 rules, 1 valid and 1 test queries`.
        """
        return (
            f"{len(self.facts):,} facts, {len(self.rules)} rules, {len(self.valid):,} valid and "
            f"{len(self.test):,} test queries"
        )

    def __repr__(self) -> str:
        return f"KnowledgeBase({self.name!r}: {self.format_sizes()})"


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def _warn(text: str) -> None:
    """Issue a warning that refers to the line of code that called Phalanx."""
    # Python 3.12 has `skip_file_prefixes` for this.
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("phalanx", "functools"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def _make_read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
