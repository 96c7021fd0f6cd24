"""Questions with one unknown, answered by rules: ranked, with how likely each answer is and its best proofs.

Ranking a whole split is in `rank`; exact proofs of any depth are in `phalanx.proofs`.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float64

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.proof_tree import Proof, free_arguments
from phalanx.kg.proving import ProofQuery, Prover, parse_query
from phalanx.kg.rules.config import MiningConfig
from phalanx.kg.rules.mining import mine_rules
from phalanx.kg.rules.predictor import RulePredictor
from phalanx.kg.rules.ruleset import RuleSet

_PROOFS = 3
"""Rules whose proof of an answer is shown."""
_CALIBRATION_QUERIES = 300


@dataclasses.dataclass(frozen=True)
class QueryAnswer:
    """An atom that a question can become."""

    atom: Atom
    probability: float
    """How often an answer with such rules is true: 1 for a fact, else the confidence, calibrated."""
    confidence: float
    """Of the most certain rule that says so; 0 where none does."""
    fact: bool
    rules: tuple[Rule, ...]
    """The rules that say so, the most certain first."""
    proofs: tuple[Proof, ...] = ()
    """By the most certain rules, where an explanation is wanted."""


class QueryAnswerer:
    """Answers questions about a knowledge base by rules; without any, by its own, or by mined ones.

    Rules are applied to facts once, all at a time, which knows predicates of two arguments. Where a knowledge
    base has others, its own rules answer by exact proofs of up to six steps, and an answer is as certain as
    the product of the weights of the rules in its shortest proof.
    """

    def __init__(
        self, data: DataHandler, rules: RuleSet | None = None, config: MiningConfig | None = None
    ) -> None:
        self.left_out: tuple[Rule, ...] = ()
        """Rules of the knowledge base that have another shape than those that are applied here."""
        self._whole = data
        self._mixed = set(data.arities.values()) > {2} or 2 not in data.arities.values()
        self._given, self._config = rules, config
        if rules is None and data.rules and not self._mixed:
            from phalanx.kg.vocabulary import IndexManager

            self._given, self.left_out = RuleSet.of_rules(data.rules, IndexManager(data))

    @functools.cached_property
    def data(self) -> DataHandler:
        """The knowledge base as far as rules are applied to it."""
        return self._whole.binary()

    @functools.cached_property
    def rules(self) -> RuleSet:
        """What is applied; mined when first needed, if none were given."""
        return mine_rules(self.data, self._config) if self._given is None else self._given

    @functools.cached_property
    def _ranker(self) -> RulePredictor:
        return RulePredictor(self.rules, self.data)

    @functools.cached_property
    def _prover(self) -> Prover:
        return Prover(self._whole.facts, self._whole.rules)

    def ask(
        self, query: Atom | str, top: int = 10, *, explain: bool = False, new: bool = False
    ) -> list[QueryAnswer]:
        """The best answers; facts come first, unless only `new` ones are wanted."""
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        asked = parse_query(self._whole, query)
        if (unknown := len(set(asked.free) - {""})) > 1:
            count = "two" if unknown == 2 else "three"
            raise ValueError(
                f"{asked.atom} has {count} unknowns; ask for one of them, as in {_example(asked.atom)}"
            )
        if self._mixed and self._given is None and (self._whole.rules or len(asked.free) != 2):
            return self._proved(asked, top, explain=explain, new=new)
        found = self._predictions(asked)
        atoms = dict.fromkeys(atom for atom in self._facts(asked) if not new)
        atoms |= dict.fromkeys(atom for atom in found if not new or atom not in self._fact_set)
        answers = [self._answer(asked, atom, found.get(atom, []), explain=False) for atom in atoms]
        order = sorted(
            range(len(answers)), key=lambda i: (not answers[i].fact, found.get(answers[i].atom, []))
        )
        best = [answers[i] for i in order[:top]]
        if not explain:
            return best
        return [self._answer(asked, answer.atom, found.get(answer.atom, []), explain=True) for answer in best]

    def _proved(self, asked: ProofQuery, top: int, *, explain: bool, new: bool) -> list[QueryAnswer]:
        """The answers that exact proofs have, the most certain first."""
        facts = frozenset(self._whole.facts)
        if asked.ground:
            found = [proof for proof in (next(self._prover.proofs(asked), None),) if proof is not None]
            if not found and asked.atom in facts:
                found = [Proof(asked.atom)]
        else:
            found = list(self._prover.answers(asked))
        answers = []
        for proof in found:
            used = tuple(dict.fromkeys(node.rule for node in proof.nodes() if node.rule is not None))
            weights = [node.rule.weight for node in proof.nodes() if node.rule is not None]
            fact, confidence = proof.goal in facts, float(np.prod(weights)) if used else 0.0
            if not (fact and new):
                shown = (proof,) if explain and used else ()
                answers.append(
                    QueryAnswer(proof.goal, 1.0 if fact else confidence, confidence, fact, used, shown)
                )
        answers.sort(key=lambda answer: (not answer.fact, -answer.confidence))
        return answers[:top]

    def _predictions(self, asked: ProofQuery) -> dict[Atom, list[int]]:
        """The answers, and the rules for each in order; where rules are equally certain, more win."""
        index = self._ranker.index
        predicate, first, second = index.predicate_str2idx[asked.atom.predicate] - 1, *asked.atom[1:]
        back = bool(asked.free[0])
        entity = index.constant_str2idx[second if back else first] - 1
        answers, begins, rules = self._ranker.applier.predict(entity, 2 * predicate + back)
        found = {}
        for place, answer in enumerate(answers.tolist()):
            name = index.constants[answer]
            atom = Atom(asked.atom.predicate, *((name, second) if back else (first, name)))
            if not asked.ground or atom == asked.atom:
                found[atom] = rules[begins[place] : begins[place + 1]].tolist()
        return found

    def _answer(self, asked: ProofQuery, atom: Atom, rules: list[int], *, explain: bool) -> QueryAnswer:
        fact = atom in self._fact_set
        confidence = float(self.rules.confidence[rules[0]]) if rules else 0.0
        named = tuple(self.rules[place] for place in (rules if explain else rules[:_PROOFS]))
        proofs = (next(self._proofs(asked, atom, rule), None) for rule in named[:_PROOFS] if explain)
        return QueryAnswer(
            atom,
            1.0 if fact else float(self.calibration(np.array([confidence]))[0]),
            confidence,
            fact,
            named,
            tuple(proof for proof in proofs if proof is not None),
        )

    @functools.cached_property
    def _fact_set(self) -> frozenset[Atom]:
        return frozenset(self.data.facts)

    def _facts(self, asked: ProofQuery) -> list[Atom]:
        predicate, *terms = asked.atom
        return [
            fact
            for fact in self.data.facts
            if fact.predicate == predicate
            and all(free or term == own for free, term, own in zip(asked.free, terms, fact[1:], strict=True))
        ]

    @functools.cached_property
    def _by_argument(self) -> dict[tuple[str, int, str], list[Atom]]:
        found: dict[tuple[str, int, str], list[Atom]] = collections.defaultdict(list)
        for fact in self.data.facts:
            found[fact.predicate, 0, fact.first].append(fact)
            found[fact.predicate, 1, fact.second].append(fact)
        return found

    def _proofs(self, asked: ProofQuery, atom: Atom, rule: Rule) -> Iterator[Proof]:
        """The proofs of an atom by one rule whose body are facts, different variables being different."""
        values = dict(zip(rule.head[1:], atom[1:], strict=True)) | {name: name for name in rule.constants}
        for whole in self._bodies(rule, 0, values):
            children = tuple(
                Proof(Atom(body.predicate, whole[body.first], whole[body.second]), free)
                for body, free in zip(rule.body, free_arguments(rule, asked.free), strict=True)
            )
            substitution = tuple((name, whole[name]) for name in rule.variables)
            yield Proof(atom, asked.free, rule, substitution, children)

    def _bodies(self, rule: Rule, place: int, values: dict[str, str]) -> Iterator[dict[str, str]]:
        if place == len(rule.body):
            yield values
            return
        body = rule.body[place]
        # A path's atoms follow one another, so one end is always known.
        side = 0 if body.first in values else 1
        for fact in self._by_argument.get((body.predicate, side, values[body[1 + side]]), ()):
            name, value = body[2 - side], fact[2 - side]
            if values.get(name, value) != value or (name not in values and value in values.values()):
                continue
            yield from self._bodies(rule, place + 1, {**values, name: value})

    @functools.cached_property
    def _curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Confidences and how often answers with them are true, on validation queries; None without any."""
        queries, data = self.data.valid_queries[:_CALIBRATION_QUERIES], self.data
        true = self._fact_set | frozenset(data.valid_queries)
        confidence, right = [], []
        for query in queries:
            for free in (("X", ""), ("", "X")):
                for atom, rules in self._predictions(ProofQuery(query, free)).items():
                    confidence.append(float(self.rules.confidence[rules[0]]))
                    right.append(atom in true)
        return isotonic(np.array(confidence), np.array(right)) if confidence else None

    def calibration(self, confidence: Float64[np.ndarray, " answers"]) -> Float64[np.ndarray, " answers"]:
        """The share of answers of such confidence that are facts or validation queries, facts by other facts.

        The confidence itself where there are no validation queries.
        """
        return confidence if self._curve is None else np.interp(confidence, *self._curve)


def isotonic(
    score: Float64[np.ndarray, " answers"], right: Bool[np.ndarray, " answers"]
) -> tuple[np.ndarray, np.ndarray]:
    """The rising curve nearest to what was right, by the scores (pool adjacent violators).

    >>> [points.tolist() for points in isotonic(np.array([0.1, 0.2, 0.3]), np.array([True, False, True]))]
    [[0.1, 0.2, 0.3], [0.5, 0.5, 1.0]]
    """
    points, place = np.unique(score, return_inverse=True)
    weight = np.bincount(place).astype(np.float64)
    blocks: list[list[float]] = []
    for total, count in zip(np.bincount(place, weights=right), weight, strict=True):
        blocks.append([float(total), float(count), 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] > blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return points, np.concatenate([np.full(int(size), total / count) for total, count, size in blocks])


def _example(atom: Atom) -> str:
    return f"{atom.predicate}({','.join([atom.first, *['name'] * (len(atom) - 2)])})"
