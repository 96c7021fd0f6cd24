"""Query answering with rules: ranked answers with calibrated probabilities and proofs."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float64

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_tree import Proof, free_arguments
from phalanx.kg.proving import ProofQuery, Prover, parse_query
from phalanx.kg.rules.mining import mine_rules
from phalanx.kg.rules.predictor import RuleApplier, RulePredictor, rule_weights
from phalanx.kg.rules.ruleset import RuleSet
from phalanx.kg.tabling import FactIndex, GoalPattern

_MAX_PROOFS = 3
"""Maximum number of proofs per answer, one for each of the most confident rules. Answers without proofs list
at most this number of rules."""
_CALIBRATION_QUERIES = 300


@dataclasses.dataclass(frozen=True)
class QueryAnswer:
    """An answer to a query, with its probability and the rules that predict it."""

    atom: Atom
    """The query with its variable replaced by the answer."""
    probability: float
    """Estimated probability that the atom is true: 1 for a fact, otherwise the calibrated confidence. For
    answers found by exact proving, the confidence is not calibrated; see `QueryAnswerer`."""
    confidence: float
    """Confidence of the most confident rule that predicts the atom; 0 if no rule predicts it. For answers
    found by exact proving, it is the product of the weights of all rules in the proof."""
    is_fact: bool
    rules: tuple[Rule, ...]
    """Rules that predict the atom, most confident first. Without explanations, at most three rules are
    included. For answers found by exact proving, all rules of the proof are included."""
    proofs: tuple[Proof, ...] = ()
    """Proofs of the atom by the most confident rules. Empty unless explanations were requested."""


class QueryAnswerer:
    """Answers queries about a knowledge base with rules.

    Rules are applied to the facts once, not recursively, and predicates that do not have two arguments are
    ignored. There is one exception: if the knowledge base has predicates with one or three arguments and its
    own rules are used, answers are found by exact proving with up to six steps. The confidence of an answer
    is then the product of the weights of the rules in its shortest proof.

    Args:
        knowledge_base: The facts, and the rules if `rules` is None.
        rules: The rules. If None, the rules of the knowledge base are used, or mined rules if it has none.
    """

    def __init__(self, knowledge_base: KnowledgeBase, rules: RuleSet | None = None) -> None:
        self.unsupported_rules: tuple[Rule, ...] = ()
        """Rules of the knowledge base that are ignored because a `RuleSet` cannot represent them."""
        self._full, self._given_rules = knowledge_base, rules
        self._is_binary = set(knowledge_base.arities.values()) == {2}
        if rules is None and knowledge_base.rules and self._is_binary:
            self._given_rules, self.unsupported_rules = RuleSet.from_rules(
                knowledge_base.rules, knowledge_base.vocabulary
            )

    @functools.cached_property
    def knowledge_base(self) -> KnowledgeBase:
        """The knowledge base to which rules are applied. It only contains predicates with two arguments."""
        return self._full.binary()

    @functools.cached_property
    def rules(self) -> RuleSet:
        """The rules. If they have to be mined, this happens when the property is first accessed."""
        return mine_rules(self.knowledge_base) if self._given_rules is None else self._given_rules

    @functools.cached_property
    def _predictor(self) -> RulePredictor:
        applier = RuleApplier(self.rules, self.knowledge_base)
        return RulePredictor(applier, "maxplus", rule_weights(applier, "maxplus"))

    @functools.cached_property
    def _index(self) -> FactIndex:
        return FactIndex(self._full.facts, ())

    @functools.cached_property
    def _prover(self) -> Prover:
        return Prover(self._full.facts, self._full.rules)

    def query(
        self, query: Atom | str, top: int = 10, *, explain: bool = False, exclude_facts: bool = False
    ) -> list[QueryAnswer]:
        """Return the most likely answers to a query. Facts come first.

        Args:
            query: An atom with one variable, as in `nephew(X,bob)`, or without variables. A query without
                variables has at most one answer, the atom itself.
            top: Maximum number of answers.
            explain: Include proofs in the answers.
            exclude_facts: Leave out answers that are facts.
        """
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        parsed = parse_query(self._full, query)
        if (num_variables := len(set(parsed.free) - {""})) > 1:
            count = "two" if num_variables == 2 else "three"
            example = Atom(*parsed.atom[:2], *["name"] * (len(parsed.free) - 1))
            raise ValueError(f"{parsed.atom} has {count} variables; use one, as in {example}")
        can_prove = self._given_rules is None and not self._is_binary
        if can_prove and (self._full.rules or len(parsed.free) != 2):
            return self._answer_by_proving(parsed, top, explain=explain, exclude_facts=exclude_facts)
        if all(parsed.free):
            raise ValueError(f"{parsed.atom} has a variable twice; rules answer queries with one constant")
        predictions, facts = self._predictions(parsed), self._index.facts
        matching = (Atom(parsed.atom.predicate, *terms) for terms in self._index.matches(parsed.pattern))
        atoms = dict.fromkeys((*matching, *predictions))
        if exclude_facts:
            atoms = dict.fromkeys(atom for atom in atoms if atom not in facts)
        best = sorted(atoms, key=lambda atom: (atom not in facts, predictions.get(atom, [])))[:top]
        return [self._answer(parsed, atom, predictions.get(atom, []), explain=explain) for atom in best]

    def _answer_by_proving(
        self, query: ProofQuery, top: int, *, explain: bool, exclude_facts: bool
    ) -> list[QueryAnswer]:
        if query.is_ground:
            found = list(itertools.islice(self._prover.proofs(query), 1))
            if not found and query.atom in self._index.facts:
                found = [Proof(query.atom)]
        else:
            found = list(self._prover.answers(query))
        answers = []
        for proof in found:
            applied = [node.rule for node in proof.nodes() if node.rule is not None]
            confidence = math.prod(rule.weight for rule in applied) if applied else 0.0
            is_fact, proofs = proof.goal in self._index.facts, (proof,) if explain and applied else ()
            if not (is_fact and exclude_facts):
                probability, rules = 1.0 if is_fact else confidence, tuple(dict.fromkeys(applied))
                answers.append(QueryAnswer(proof.goal, probability, confidence, is_fact, rules, proofs))
        answers.sort(key=lambda answer: (not answer.is_fact, -answer.confidence))
        return answers[:top]

    def _predictions(self, query: ProofQuery) -> dict[Atom, list[int]]:
        """Return the atoms that rules predict as answers to a query.

        The result maps each atom to the indices of the rules that predict it, most confident first.
        """
        vocabulary = self.rules.vocabulary
        relation, first, second = vocabulary.predicate_ids[query.atom.predicate], *query.atom[1:]
        asks_head = bool(query.free[0])
        entity = vocabulary.entity_ids[second if asks_head else first]
        found = {}
        for answer, rules in self._predictor.predict(entity, 2 * relation + asks_head).items():
            name = vocabulary.entities[answer]
            atom = Atom(query.atom.predicate, *((name, second) if asks_head else (first, name)))
            if not query.is_ground or atom == query.atom:
                found[atom] = rules
        return found

    def _answer(self, query: ProofQuery, atom: Atom, rules: list[int], *, explain: bool) -> QueryAnswer:
        is_fact = atom in self._index.facts
        confidence = float(self.rules.confidence[rules[0]]) if rules else 0.0
        probability = 1.0 if is_fact else float(self.calibrate(np.array([confidence]))[0])
        decoded = tuple(self.rules[index] for index in (rules if explain else rules[:_MAX_PROOFS]))
        proofs = (self._prove(query, atom, rule) for rule in decoded[:_MAX_PROOFS] if explain)
        found = tuple(proof for proof in proofs if proof is not None)
        return QueryAnswer(atom, probability, confidence, is_fact, decoded, found)

    def _prove(self, query: ProofQuery, atom: Atom, rule: Rule) -> Proof | None:
        """Return a proof that applies the given rule once and proves the atoms of its body with facts.

        Different variables of the rule must have different values. Returns None if there is no such proof.
        """
        values = dict(zip(rule.head[1:], atom[1:], strict=True)) | {name: name for name in rule.constants}
        bound = next(self._match_body(rule, values), None)
        if bound is None:
            return None
        children = tuple(
            Proof(Atom(body.predicate, bound[body.first], bound[body.second]), free)
            for body, free in zip(rule.body, free_arguments(rule, query.free), strict=True)
        )
        return Proof(atom, query.free, rule, tuple((name, bound[name]) for name in rule.variables), children)

    def _match_body(self, rule: Rule, values: dict[str, str], position: int = 0) -> Iterator[dict[str, str]]:
        if position == len(rule.body):
            yield values
            return
        predicate, *names = rule.body[position]
        goal = GoalPattern(predicate, (False, False), (0, 1), tuple(map(values.get, names)))
        for terms in self._index.matches(goal):
            # The atoms of a path are connected, so at most one argument is new.
            new = {name: term for name, term in zip(names, terms, strict=True) if name not in values}
            if set(new.values()).isdisjoint(values.values()):
                yield from self._match_body(rule, values | new, position + 1)

    @functools.cached_property
    def _calibration_curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Calibration curve: confidences in ascending order, and the probability for each confidence.

        The curve is fitted to the answers that rules predict for validation queries. None if there are no
        such answers.
        """
        valid = self.knowledge_base.valid
        true = frozenset((*self.knowledge_base.facts, *valid))
        confidence, is_true = [], []
        for query in valid[:_CALIBRATION_QUERIES]:
            for free in (("X", ""), ("", "X")):
                for atom, rules in self._predictions(ProofQuery(query, free)).items():
                    confidence.append(float(self.rules.confidence[rules[0]]))
                    is_true.append(atom in true)
        return isotonic_regression(np.array(confidence), np.array(is_true)) if confidence else None

    def calibrate(self, confidence: Float64[np.ndarray, " answers"]) -> Float64[np.ndarray, " answers"]:
        """Convert rule confidences to probabilities.

        The calibration is fitted to the answers that rules predict for validation queries. An answer counts
        as correct if it is a fact or a validation query, and the probability is the fraction of correct
        answers among answers with a similar confidence. Without validation queries, the confidence itself is
        returned.
        """
        curve = self._calibration_curve
        return confidence if curve is None else np.interp(confidence, *curve)


def answer_query(
    knowledge_base: KnowledgeBase,
    query: Atom | str,
    top: int = 10,
    *,
    rules: RuleSet | None = None,
    explain: bool = False,
    exclude_facts: bool = False,
) -> list[QueryAnswer]:
    """Return the most likely answers to a query. Facts come first.

    Args:
        knowledge_base: The facts, and the rules if `rules` is None.
        query: An atom with one variable, as in `nephew(X,bob)`, or without variables. A query without
            variables has at most one answer, the atom itself.
        top: Maximum number of answers.
        rules: The rules. If None, the rules of the knowledge base are used, or mined rules if it has none.
            Mining takes some time; its result is cached in the knowledge base.
        explain: Include proofs in the answers.
        exclude_facts: Leave out answers that are facts.
    """
    answerer = knowledge_base.query_answerer if rules is None else QueryAnswerer(knowledge_base, rules)
    return answerer.query(query, top, explain=explain, exclude_facts=exclude_facts)


def isotonic_regression(
    score: Float64[np.ndarray, " answers"], is_true: Bool[np.ndarray, " answers"]
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a non-decreasing curve to labels as a function of scores (pool adjacent violators algorithm).

    Returns the distinct scores in ascending order, and the fitted value at each score. SciPy has the same
    function, but is not a required dependency.

    >>> fitted = isotonic_regression(np.array([0.1, 0.2, 0.3]), np.array([True, False, True]))
    >>> [points.tolist() for points in fitted]
    [[0.1, 0.2, 0.3], [0.5, 0.5, 1.0]]
    """
    points, inverse = np.unique(score, return_inverse=True)
    weight = np.bincount(inverse).astype(np.float64)
    blocks: list[list[float]] = []
    for total, count in zip(np.bincount(inverse, weights=is_true), weight, strict=True):
        blocks.append([float(total), float(count), 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] > blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return points, np.concatenate([np.full(int(size), total / count) for total, count, size in blocks])
