"""The miner and the applier in plain Python: slow and obvious, for machines without the compiled extension.

The names, the arguments and the results are those of `phalanx._native`, which is checked against this.
"""

import collections
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32, Int64

from phalanx.kg.rules.config import LONGEST
from phalanx.kg.rules.ruleset import BODY, COLUMNS

_WORD = (1 << 64) - 1
Body = tuple[int, ...]
Row = tuple[int, ...]


def mixed(value: int) -> int:
    """A number that looks drawn (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def turned(body: Body) -> Body:
    """The same path from its other end."""
    return tuple(relation ^ 1 for relation in reversed(body))


class TripleGraph:
    """Triples (relation, head, tail), numbered from 0, both ways: 2r is the relation forth, 2r + 1 back."""

    def __init__(self, triples: Int32[np.ndarray, "triples 3"], entities: int, relations: int) -> None:
        self.entities, self.directed = entities, 2 * relations
        self.loops = {(head, relation) for relation, head, tail in triples.tolist() if head == tail}
        self.to: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        for relation, head, tail in triples.tolist():
            if head != tail:
                self.to[head, 2 * relation].add(tail)
                self.to[tail, 2 * relation + 1].add(head)

    @functools.cached_property
    def edges(self) -> list[list[tuple[int, int]]]:
        """Of each entity: (target, relation), sorted."""
        edges: list[list[tuple[int, int]]] = [[] for _ in range(self.entities)]
        for (entity, relation), targets in self.to.items():
            edges[entity] += [(target, relation) for target in targets]
        return [sorted(some) for some in edges]

    def targets(self, entity: int, relation: int) -> list[int]:
        """In order."""
        return sorted(self.to.get((entity, relation), ()))

    def subjects(self, relation: int) -> list[int]:
        """Who has such an edge."""
        return sorted(entity for entity, other in self.to if other == relation)

    def ends(self, body: Body, start: int, limit: int) -> list[int]:
        """Where paths of this body lead, by the first `limit` paths at each step, no entity twice on one."""
        paths: list[tuple[int, ...]] = [(start,)]
        for relation in body:
            longer = (
                (*path, to) for path in paths for to in self.targets(path[-1], relation) if to not in path
            )
            paths = [path for path, _ in zip(longer, range(limit), strict=False)]
        return list(dict.fromkeys(path[-1] for path in paths))


class PathRuleMiner:
    """Path rules: those that lead from the head to the tail of a triple, measured over all entities."""

    def __init__(
        self, graph: TripleGraph, length: int, fan: int, enough: int, limit: int, seed: int, threads: int
    ) -> None:
        self.graph, self.length, self.fan = graph, length, fan
        self.enough, self.limit, self.seed = enough, limit, seed
        by_relation: dict[int, list[tuple[int, int, int]]] = collections.defaultdict(list)
        for (head, relation), tails in sorted(graph.to.items()):
            if relation % 2 == 0:
                by_relation[relation] += [
                    (mixed(mixed(mixed(seed ^ head) ^ tail) ^ relation), head, tail) for tail in tails
                ]
        turns = [
            (turn, relation, head, tail)
            for relation, some in by_relation.items()
            for turn, (_, head, tail) in enumerate(sorted(some))
        ]
        self.triples = [(head, relation, tail) for _, relation, head, tail in sorted(turns)]
        self.order = sorted(range(graph.entities), key=lambda entity: (mixed(seed ^ entity), entity))
        self.found: collections.Counter[tuple[Body, int]] = collections.Counter()
        self.heads: dict[Body, list[int]] = {}

    def find_bodies(self, triples: int) -> bool:
        """Looks at the next so many triples; False when none is left."""
        for head, relation, tail in self.triples[:triples]:
            for body in self._closings((head,), (), tail):
                if body != (relation,):
                    self.found[_canonical(body, relation)] += 1
        self.triples = self.triples[triples:]
        return bool(self.triples)

    def _closings(self, path: tuple[int, ...], body: Body, tail: int) -> Iterator[Body]:
        edges = self.graph.edges[path[-1]]
        yield from ((*body, relation) for to, relation in edges if to == tail)
        if len(body) + 1 == self.length:
            return
        degree, taken, first = len(edges), min(len(edges), self.fan), 0
        if degree > taken:
            draw = mixed(self.seed ^ mixed(path[0]) ^ mixed(tail * 3 + len(body)))
            first = draw % degree
        for k in range(taken):
            to, relation = edges[(first + k * degree // taken) % degree]
            if to != tail and to not in path:
                yield from self._closings((*path, to), (*body, relation), tail)

    def select_rules(self, least: int, most: int) -> int:
        """Takes what was found at least so often, the most frequent first, for rules to measure."""
        often = [
            (-times, _padded(body), head) for (body, head), times in self.found.items() if times >= least
        ]
        self.heads = collections.defaultdict(list)
        for _, body, head in sorted(often)[:most]:
            self.heads[tuple(relation for relation in body if relation >= 0)].append(head)
        self.found.clear()
        self.open = dict.fromkeys(sorted(self.heads, key=_padded), True)
        self.pairs: collections.Counter[Body] = collections.Counter()
        self.support: collections.Counter[tuple[Body, int]] = collections.Counter()
        self.known: collections.Counter[tuple[Body, int]] = collections.Counter()
        return sum(map(len, self.heads.values()))

    def count_predictions(self, entities: int) -> bool:
        """Measures from the next so many entities; False when nothing is left to measure."""
        graph = self.graph
        for x in self.order[:entities]:
            for body in [body for body, wanted in self.open.items() if wanted or self._passed(body)]:
                for y in graph.ends(body, x, self.limit):
                    self.pairs[body] += 1
                    for head in self.heads[body]:
                        self.support[body, head] += y in graph.to.get((x, head), ())
                        subject = x if head % 2 == 0 else y
                        self.known[body, head] += bool(graph.to.get((subject, head & ~1)))
        self.order = self.order[entities:]
        self.open = {body: self.pairs[body] < self.enough for body in self.open}
        return bool(self.order) and any(self.open.values())

    def _passed(self, body: Body) -> bool:
        """Whether a body that needs no more is on the way to one that does, and is measured in passing."""
        return any(wanted and other[: len(body)] == body for other, wanted in self.open.items())

    def rules(self, least_support: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and counts."""
        found = []
        for body in sorted(self.heads, key=_padded):
            for head in sorted(self.heads[body]):
                support = self.support[body, head]
                if support >= least_support:
                    row = (head & ~1, *_padded(turned(body) if head % 2 else body), -1, -1)
                    found.append((row, (support, self.pairs[body], self.known[body, head])))
        return _arrays(found)


def _canonical(body: Body, head: int) -> tuple[Body, int]:
    """A body and its reverse say the same, with the head turned round: the lesser stands for both."""
    other = turned(body)
    return (body, head) if body < other else (other, head ^ 1) if other < body else (body, head & ~1)


def _padded(body: Body) -> Body:
    return (*body, *(-1,) * (LONGEST - len(body)))


def _arrays(found: Iterable[tuple[Row, Row]]) -> tuple[np.ndarray, np.ndarray]:
    rows, counts = zip(*found, strict=True) if (found := list(found)) else ((), ())
    return np.array(rows, np.int32).reshape(-1, COLUMNS), np.array(counts, np.int64).reshape(-1, 3)


def mine_constant_rules(
    graph: TripleGraph,
    begin: int,
    end: int,
    least_support: int,
    least_confidence: float,
    pessimism: float,
    widest: int,
    dangling: bool,
    pca: bool,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Rules with constants whose heads are `head(X,c)` for the entities c from `begin` to `end`."""
    found = []
    for c in range(begin, min(end, graph.entities)):
        for head in sorted(relation ^ 1 for entity, relation in graph.to if entity == c):
            true = [x for x in graph.targets(c, head ^ 1) if len(graph.edges[x]) <= widest]
            bodies = {(relation, d) for x in true for d, relation in graph.edges[x]} - {(head, c)}
            if dangling:
                bodies |= {(relation, -1) for relation, _ in bodies} | {(head, -1)}
            for relation, d in sorted(bodies):
                support = sum(_holds(graph, relation, d, x, c) for x in true)
                tried = [x for x in graph.subjects(relation) if x != c and _holds(graph, relation, d, x, c)]
                if support >= least_support and support >= least_confidence * (len(tried) + pessimism):
                    known = sum(bool(graph.to.get((x, head))) for x in tried) if pca else -1
                    found.append(((head, *_padded((relation,)), c, d), (support, len(tried), known)))
    return _arrays(found)


def _holds(graph: TripleGraph, relation: int, d: int, x: int, c: int) -> bool:
    """Whether X has what a body asks for: d, or anything but the head's constant where d is -1."""
    targets = graph.to.get((x, relation), set())
    return d in targets if d >= 0 else bool(targets - {c})


class RulePredictor:
    """Rules, applied to questions (entity, directed relation)."""

    def __init__(
        self,
        graph: TripleGraph,
        rules: Int32[np.ndarray, "rules columns"],
        levels: Int32[np.ndarray, " rules"],
        limit: int,
        threads: int,
    ) -> None:
        self.graph, self.levels, self.limit = graph, levels.tolist(), limit
        self.rules = rules.tolist()

    def _predictions(self, entity: int, relation: int) -> dict[int, list[int]]:
        """The rules that predict each answer, in order."""
        found: dict[int, list[int]] = collections.defaultdict(list)
        graph = self.graph
        for number, row in enumerate(self.rules):
            head, c, d = row[0], row[-2], row[-1]
            body = tuple(step for step in row[BODY] if step >= 0)
            answers: set[int] = set()
            if c < 0:
                if head // 2 == relation // 2:
                    answers |= set(graph.ends(turned(body) if relation % 2 else body, entity, self.limit))
            else:
                if head == relation and entity != c and _holds(graph, body[0], d, entity, c):
                    answers.add(c)
                if head == relation ^ 1 and entity == c:
                    others = (x for x in graph.subjects(body[0]) if x != c)
                    answers |= {x for x in others if _holds(graph, body[0], d, x, c)}
            for answer in answers:
                found[answer].append(number)
        return dict(sorted(found.items()))

    def predict(self, entity: int, relation: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The answers, where the rules of each begin, and the rules."""
        found = self._predictions(entity, relation)
        begins = np.cumsum([0, *map(len, found.values())])
        rules = [rule for some in found.values() for rule in some]
        return np.array(list(found), np.int32), begins.astype(np.int64), np.array(rules, np.int32)

    def count_ranks(
        self,
        known: TripleGraph,
        rows: Int32[np.ndarray, "questions 2"],
        begins: Int64[np.ndarray, " begins"],
        targets: Int32[np.ndarray, " targets"],
        how: str,
        weights: Float64[np.ndarray, " weights"],
        above: Int64[np.ndarray, " targets"],
        level: Int64[np.ndarray, " targets"],
    ) -> None:
        """Writes how many entities rank above each target and level with it, without the known ones."""
        for place, (entity, relation) in enumerate(rows.tolist()):
            found = self._predictions(entity, relation)
            scores = {answer: self._score(rules, relation, how, weights) for answer, rules in found.items()}
            true = known.to.get((entity, relation), set())
            if (entity, relation // 2) in known.loops:
                true = true | {entity}
            nothing = self._score([], relation, how, weights)
            for t in range(begins[place], begins[place + 1]):
                own = scores.get(int(targets[t]), nothing)
                others = [
                    scores.get(e, nothing) for e in range(known.entities) if e not in true | {int(targets[t])}
                ]
                above[t], level[t] = sum(s > own for s in others), sum(s == own for s in others)

    def _score(self, rules: list[int], relation: int, how: str, weights: np.ndarray) -> tuple[float, ...]:
        if how == "maximum":
            return tuple(-self.levels[rule] for rule in rules)
        total = 0.0
        for rule in rules:
            total += float(weights[2 * rule + relation % 2])
        return (total,)

    def score(
        self,
        rows: Int32[np.ndarray, "questions 2"],
        how: str,
        weights: Float64[np.ndarray, " weights"],
        table: Float32[np.ndarray, "questions entities"],
    ) -> None:
        """Writes the score of every entity for each question."""
        table[:] = 0
        shrink = 1e-2 if how == "maximum" else 1.0
        for place, (entity, relation) in enumerate(rows.tolist()):
            for answer, rules in self._predictions(entity, relation).items():
                total, share = 0.0, 1.0
                for rule in rules:
                    total += share * float(weights[2 * rule + relation % 2])
                    share *= shrink
                table[place, answer] = total

    def fit_weights(
        self,
        weights: Float64[np.ndarray, " weights"],
        relations: Int32[np.ndarray, " relations"],
        most: int,
        negatives: int,
        epochs: int,
        rate: float,
        decay: float,
        seed: int,
    ) -> None:
        """Changes the weights so that facts rank first: Adagrad on the softmax loss, a question at a time."""
        for relation in relations.tolist():
            sources = sorted((mixed(seed ^ mixed(x)), x) for x in self.graph.subjects(relation))[:most]
            examples = [self._example(x, relation, negatives, weights) for _, x in sources]
            at = 2 * np.arange(len(self.rules)) + relation % 2
            now, squares = weights[at], np.full(len(at), 1e-2)
            origin = now.copy()
            for _ in range(epochs):
                for positive, lists in examples:
                    if positive:
                        _descend(now, origin, squares, positive, lists, rate, decay)
            weights[at] = now

    def _example(
        self, source: int, relation: int, negatives: int, weights: np.ndarray
    ) -> tuple[int, list[list[int]]]:
        """How many of the predicted answers are true, and the rules of those and of the best others."""
        true, order = self.graph.to[source, relation], []
        for answer, rules in self._predictions(source, relation).items():
            total = self._score(rules, relation, "sum", weights)[0]
            order.append((-math.inf if answer in true else -total, answer, rules))
        positive = sum(answer in true for _, answer, _ in order)
        return positive, [rules for _, _, rules in sorted(order)][: positive + negatives]


def _descend(
    now: Float64[np.ndarray, " rules"],
    origin: Float64[np.ndarray, " rules"],
    squares: Float64[np.ndarray, " rules"],
    positive: int,
    lists: list[list[int]],
    rate: float,
    decay: float,
) -> None:
    total = np.array([sum(now[rule] for rule in rules) for rules in lists])
    # An answer that no rule predicts has the score 0, and stands for all of those.
    top = max(0.0, float(total.max()))
    power: Float[np.ndarray, " answers"] = np.exp(total - top)
    wrong = math.exp(-top) + float(power[positive:].sum())
    share = np.zeros(len(lists))
    for p in range(positive):
        share[p] += power[p] / (wrong + power[p]) - 1
        share[positive:] += power[positive:] / (wrong + power[p])
    slope = np.zeros(len(now))
    for value, rules in zip(share, lists, strict=True):
        slope[rules] += value / positive
    used = np.flatnonzero(slope)
    step = slope[used] + decay * (now[used] - origin[used])
    squares[used] += step**2
    now[used] -= rate * step / np.sqrt(squares[used])
