"""Computes exact proof depths (lengths of shortest proofs) for many queries at once.

Unlike `prove`, this module does not return proof trees. It uses joins over sorted arrays to compute the costs
of all goals that can occur in proofs. The cost of a goal is the number of steps in its shortest proof.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.kg.chaining import bind_head, check_rules, constant_columns, encoding_base
from phalanx.kg.joins import (
    Bindings,
    SortedTuples,
    decode_tuples,
    encode_tuples,
    find_sorted,
    merge_codes,
)
from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded
from phalanx.kg.vocabulary import EncodedRule

DEFAULT_MAX_DEPTH = 6
"""Default maximum number of steps in a proof."""
NO_PROOF = -1
"""Depth of a query that has no proof within the maximum number of steps."""
UNDECIDED = -2
"""Depth of a query for which the search did not finish within the time limit."""

_QUERIES_PER_BATCH = 1024
"""Number of queries that `_costs_without_query` processes at a time. Larger batches need more memory."""
_INFINITE_COST = np.iinfo(np.int32).max // 64

Mode = str
"""Binding pattern of a goal, with one letter per argument.

`b` is a bound argument, `f` is a free variable, and `s` (shared) is a free variable that occurs at several
positions. Since a goal has at most three arguments, all positions marked `s` contain the same variable.
"""
Call = tuple[int, Mode]
"""A predicate and the binding pattern of a goal with this predicate."""


def compute_proof_depths(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_depth: int = DEFAULT_MAX_DEPTH,
    time_limit: TimeLimit | None = None,
) -> Int32[np.ndarray, " queries"]:
    """Return the proof depth of each query: the number of steps in its shortest proof.

    Steps are counted as in the proof environment. A step replaces the first goal by the body of a rule, or
    unifies it with a fact. Ground goals that are facts are removed immediately and cost nothing. For example,
    a proof of `husband(a,b)` from the fact `wife(b,a)` by the rule `wife(b,a) -> husband(a,b)` has depth 1.
    A proof of "grandparent(a,b)" from two facts by the rule `parent(X,Z), parent(Z,Y) -> grandparent(X,Y)`
    has depth 2, because the goal `parent(a,Z)` is unified with a fact. A query that is a fact is not used in
    its own proof. The environment's limits on the number of goals and successors do not apply.

    Args:
        queries: Ground atoms, encoded by `Vocabulary.encode`.
        facts: Facts, encoded by `Vocabulary.encode`.
        rules: Rules, encoded by `Vocabulary.encode_rules`. All variables of a head must occur in the body.
        max_depth: Maximum number of steps in a proof.
        time_limit: Time limit for the search. If it is set, short proofs are searched for first. None means
            no limit.

    Returns:
        The depth of each query. It is `NO_PROOF` if there is no proof with at most `max_depth` steps, and
        `UNDECIDED` if the time limit was reached before the search for a proof was complete.
    """
    if max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")
    check_rules(rules)
    limit = TimeLimit() if time_limit is None else time_limit
    depths = np.full(len(queries), NO_PROOF, np.int32)
    for depth in [max_depth] if limit.seconds is None else range(1, max_depth + 1):
        open_queries = np.flatnonzero(depths < 0)
        try:
            depths[open_queries] = _depths_up_to(depth, queries[open_queries], facts, rules, limit)
        except TimeLimitExceeded:
            limit.log(
                f"out of time after {limit.elapsed:.0f} s: the search for proofs of {depth} and more steps "
                f"is incomplete for {len(open_queries)} of {len(queries)} queries"
            )
            return np.where(depths >= 0, depths, UNDECIDED).astype(np.int32)
    return depths


def _depths_up_to(
    max_depth: int, queries: np.ndarray, facts: np.ndarray, rules: Sequence[EncodedRule], limit: TimeLimit
) -> np.ndarray:
    predicates = np.unique(queries[:, 0]).tolist()
    base = encoding_base(rules, queries, facts)
    tables = _CostTables(facts, rules, predicates, base, max_depth - 1, limit)
    codes = encode_tuples(queries.T[1:], base)
    depths = np.full(len(queries), NO_PROOF, np.int32)
    is_fact = np.zeros(len(queries), bool)
    for predicate in predicates:
        rows = np.flatnonzero(queries[:, 0] == predicate)
        call = predicate, tables.ground
        depths[rows], is_fact[rows] = tables.tables[call].look_up(codes[rows])
        # The tables end one step early: in the last step, only the queries themselves matter.
        rest = rows[(depths[rows] < 0) & ~is_fact[rows]]
        depths[rest] = tables.cheapest_rules(call, codes[rest], max_depth, f"queries of {max_depth} steps")
    depths[is_fact] = _costs_without_query(tables, queries[is_fact, 0], codes[is_fact], max_depth)
    return depths


# Costs of goals, bottom up


class _AdornedRule(NamedTuple):
    """A rule, specialized for goals with a given binding pattern.

    The binding pattern of each body atom follows from that of the head, because body atoms are proved from
    left to right.
    """

    head: Call
    """Predicate and binding pattern of the goals that the rule proves."""
    head_terms: tuple[int, ...]
    """Terms of the head, without the predicate."""
    body: tuple[Call, ...]
    """Predicate and binding pattern of each body atom."""
    body_terms: tuple[tuple[int, ...], ...]
    """Terms of each body atom, without the predicate."""


def _adorn_rule(rule: EncodedRule, call: Call) -> _AdornedRule | None:
    """Specialize a rule for goals with the predicate and binding pattern of a call.

    Returns None if the head of the rule cannot match such a goal.
    """
    head, body = rule
    mode, terms = call[1], head[1:]
    # One variable of the call is at all positions marked `s`, so the head's terms there must be equal.
    shared = {term for term, letter in zip(terms, mode, strict=True) if letter == "s"}
    if len(constants := {term for term in shared if term >= 0}) > 1:
        return None
    renamed = dict.fromkeys(shared, max(constants or shared, default=0))
    terms = tuple(renamed.get(term, term) for term in terms)
    body = tuple((atom[0], *(renamed.get(term, term) for term in atom[1:])) for atom in body)
    bound = {term for term, letter in zip(terms, mode, strict=True) if letter == "b"}
    bound.update(term for atom in (head, *body) for term in atom[1:] if term >= 0)
    calls: list[Call] = []
    for predicate, *arguments in body:
        letters = ("b" if term in bound else "s" if arguments.count(term) > 1 else "f" for term in arguments)
        calls.append((predicate, "".join(letters)))
        bound.update(arguments)
    return _AdornedRule(call, terms, tuple(calls), tuple(atom[1:] for atom in body))


class _CostTable:
    """The provable ground atoms that match a call, each with its least cost.

    Atoms are represented by their encoded arguments; see `encode_tuples`.

    Args:
        facts: Encoded facts that match the call, in ascending order.
        fact_cost: Cost of using a fact to prove a goal that matches the call: 0 for a ground goal, else 1.
        base: Base of the encoding.
        arity: Number of arguments of each atom.
    """

    def __init__(self, facts: np.ndarray, fact_cost: int, base: int, arity: int) -> None:
        self.codes = self._facts = facts
        self._base, self._arity = base, arity
        self.by_cost = {fact_cost: SortedTuples(facts, base, arity)} if len(facts) else {}
        """The atoms, grouped by cost."""

    def add(self, cost: int, codes: np.ndarray) -> bool:
        """Add atoms with the given cost unless they are already in the table.

        Returns whether any of the atoms is new.
        """
        codes = codes[find_sorted(self.codes, codes) < 0]
        if len(codes):
            self.codes = merge_codes([self.codes, codes])
            same = [self.by_cost[cost].codes] if cost in self.by_cost else []
            self.by_cost[cost] = SortedTuples(merge_codes([*same, codes]), self._base, self._arity)
        return len(codes) > 0

    # The following properties are used when the table is complete.

    @functools.cached_property
    def atoms(self) -> SortedTuples:
        return SortedTuples(self.codes, self._base, self._arity)

    @functools.cached_property
    def costs(self) -> np.ndarray:
        costs = np.zeros(len(self.codes), np.int64)
        for cost, atoms in self.by_cost.items():
            costs[find_sorted(self.codes, atoms.codes)] = cost
        return costs

    @functools.cached_property
    def is_fact(self) -> np.ndarray:
        return find_sorted(self._facts, self.codes) >= 0

    def look_up(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cost of proving each ground atom, and whether the atom is a fact.

        The returned cost is -1 for atoms that are not in the table. It is also -1 for facts, because the
        table does not contain the cost of proving a fact by a rule.
        """
        is_fact = find_sorted(self._facts, codes) >= 0
        # The index of an atom that is not in the table is -1, and its cost is the appended -1.
        costs = np.append(self.costs, -1)[find_sorted(self.codes, codes)]
        return np.where(is_fact, -1, costs), is_fact


class _BodyProofs(NamedTuple):
    """Ground instances of a rule's body. Each instance proves one of the goals passed to `prove_bodies`."""

    goal: np.ndarray
    """[instances]: index of the goal that each instance proves. It is an index into the `codes` argument of
    `prove_bodies`."""
    atoms: np.ndarray
    """[instances, body atoms]: index of each ground body atom in the cost table for the `Call` it matches."""
    costs: np.ndarray
    """[instances, body atoms]: least cost of each ground body atom."""


class _CostTables:
    """Cost tables for every `Call` that can occur in proofs of ground goals with the given predicates.

    The tables contain all atoms with a cost of at most `max_cost`. Applying a rule adds one step, so the
    atoms with a given cost follow from atoms with lower costs. Therefore, costs are computed in ascending
    order. For each cost and rule, there is one join for each way to distribute the cost over the body atoms.
    """

    def __init__(
        self,
        facts: np.ndarray,
        rules: Sequence[EncodedRule],
        predicates: Sequence[int],
        base: int,
        max_cost: int,
        limit: TimeLimit,
    ) -> None:
        self.base, self.arity, self.limit = base, facts.shape[1] - 1, limit
        self.ground: Mode = "b" * self.arity
        self.rules = self._adorn(rules, predicates)
        self.tables = {
            call: _CostTable(_fact_codes(facts, call, base), int(call[1] != self.ground), base, self.arity)
            for call in self.rules
        }
        adorned = list(itertools.chain.from_iterable(self.rules.values()))
        longest_body = max((len(rule.body) for rule in adorned), default=0)
        last_new_cost = 1
        for cost in range(1, max_cost + 1):
            if cost > 1 + longest_body * last_new_cost:  # no combination of known costs reaches this cost
                break
            found: dict[Call, list[np.ndarray]] = {}
            for number, rule in enumerate(adorned, 1):
                activity = f"goals of {cost} steps: rule {number} of {len(adorned)}"
                for bindings, _ in self._body_bindings(rule, len(rule.body) - 1, cost - 1, activity):
                    codes = encode_tuples([bindings[term] for term in rule.head_terms], base)
                    found.setdefault(rule.head, []).append(merge_codes([codes]))
            for call, parts in found.items():
                limit.check(f"goals of {cost} steps: merging the results of {len(found)} calls")
                if self.tables[call].add(cost, merge_codes(parts)):
                    last_new_cost = cost

    def _adorn(
        self, rules: Sequence[EncodedRule], predicates: Sequence[int]
    ) -> dict[Call, list[_AdornedRule]]:
        """Find all calls that can occur in proofs of ground goals with the given predicates.

        Returns:
            For each call, the rules whose head matches it, specialized for the call.
        """
        by_head = collections.defaultdict(list)
        for rule in rules:
            by_head[rule[0][0]].append(rule)
        found: dict[Call, list[_AdornedRule]] = {}
        pending: list[Call] = [(predicate, self.ground) for predicate in predicates]
        while pending:
            call = pending.pop()
            if call not in found:
                adorned = (_adorn_rule(rule, call) for rule in by_head[call[0]])
                found[call] = [rule for rule in adorned if rule is not None]
                pending += [goal for rule in found[call] for goal in rule.body]
        return found

    def _body_bindings(
        self, rule: _AdornedRule, last: int, cost: int, activity: str
    ) -> Iterator[tuple[Bindings, int]]:
        """Find all bindings for which the body atoms up to index `last` have a total cost of exactly `cost`.

        Yields:
            Chunks of bindings, each with its number of rows.
        """
        if last < 0:
            if cost == 0:
                yield constant_columns((*rule.body_terms, rule.head_terms), 1), 1
            return
        terms = rule.body_terms[last]
        for atom_cost, atoms in self.tables[rule.body[last]].by_cost.items():
            if atom_cost <= cost:
                for bindings, num_rows in self._body_bindings(rule, last - 1, cost - atom_cost, activity):
                    for rows, indices in atoms.match(bindings, num_rows, terms):
                        self.limit.check(activity)
                        if len(rows):
                            yield atoms.bind(bindings, terms, rows, indices), len(rows)

    def prove_bodies(
        self, rule: _AdornedRule, codes: np.ndarray, budgets: np.ndarray, activity: str
    ) -> Iterator[_BodyProofs]:
        """Find all ground instances of a rule's body that prove a goal within the goal's budget.

        Args:
            rule: The rule.
            codes: Encoded arguments of each ground goal.
            budgets: For each goal, the maximum cost of its proof.
            activity: Progress message.

        Yields:
            Chunks of instances.
        """
        body = [self.tables[call] for call in rule.body]
        if not all(len(table.codes) for table in body):
            return
        goals, bindings = bind_head(
            rule.head_terms, rule.body_terms, decode_tuples(codes, self.base, self.arity)
        )
        min_costs = [int(table.costs.min()) for table in body]

        def extend(
            goals: np.ndarray, bindings: Bindings, atoms: list[np.ndarray], costs: list[np.ndarray]
        ) -> Iterator[_BodyProofs]:
            position = len(atoms)
            if position == len(body):
                yield _BodyProofs(goals, np.stack(atoms, axis=1), np.stack(costs, axis=1))
                return
            table, terms = body[position], rule.body_terms[position]
            remaining = budgets[goals] - 1 - sum(min_costs[position + 1 :]) - sum(costs)
            for rows, indices in table.atoms.match(bindings, len(goals), terms):
                self.limit.check(activity)
                affordable = table.costs[indices] <= remaining[rows]
                rows, indices = rows[affordable], indices[affordable]
                if len(rows):
                    yield from extend(
                        goals[rows],
                        table.atoms.bind(bindings, terms, rows, indices),
                        [*(column[rows] for column in atoms), indices],
                        [*(column[rows] for column in costs), table.costs[indices]],
                    )

        if len(goals):
            yield from extend(goals, bindings, [], [])

    def cheapest_rules(
        self, call: Call, codes: Int64[np.ndarray, " goals"], max_cost: int, activity: str
    ) -> Int64[np.ndarray, " goals"]:
        """Return the cost of proving each goal by its cheapest rule.

        The result is -1 for goals that no rule proves at a cost of at most `max_cost`.
        """
        best = np.full(len(codes), _INFINITE_COST)
        for rule in self.rules[call]:
            for proofs in self.prove_bodies(rule, codes, np.full(len(codes), max_cost), activity):
                np.minimum.at(best, proofs.goal, 1 + proofs.costs.sum(axis=1))
        return np.where(best <= max_cost, best, -1)


def _fact_codes(facts: np.ndarray, call: Call, base: int) -> np.ndarray:
    rows = facts[facts[:, 0] == call[0]]
    shared = [1 + position for position, letter in enumerate(call[1]) if letter == "s"]
    for position in shared[1:]:
        rows = rows[rows[:, shared[0]] == rows[:, position]]
    return merge_codes([encode_tuples(rows.T[1:], base)])


# Top-down proofs of queries that are facts, which must not be used in their own proofs


def _costs_without_query(
    tables: _CostTables,
    predicates: Int32[np.ndarray, " queries"],
    codes: Int64[np.ndarray, " queries"],
    max_cost: int,
) -> Int64[np.ndarray, " queries"]:
    """Return the cost of proving each ground query without using the query itself as a fact.

    The result is -1 if the cost is more than `max_cost`.

    In the cost tables, all queries are facts, so the costs in the tables are only lower bounds. Each query
    has a budget, which starts at the lower bound for its cheapest rule and grows by one step at a time. For
    each budget, the search collects all rule instances that do not use the query and can be part of a proof
    within the budget. Then it computes the cheapest proof that consists of these rule instances. If the cost
    of this proof is within the budget, no cheaper proof exists.
    """
    answers = np.full(len(codes), -1)
    for start in range(0, len(codes), _QUERIES_PER_BATCH):
        batch = slice(start, start + _QUERIES_PER_BATCH)
        activity = f"proofs of up to {max_cost} steps without the query: query {start + 1} of {len(codes)}"
        answers[batch] = _LeaveOneOutSearch(tables, predicates[batch], codes[batch], activity).run(max_cost)
    return answers


class _LeaveOneOutSearch:
    """Searches for proofs of several queries, each in its own "world" in which the query is not a fact.

    The search graph has one node for each combination of a goal and a world, encoded as one number. An edge
    is a rule instance that proves the goal of a node. It leads from this node to the nodes of its body atoms.
    """

    def __init__(self, tables: _CostTables, predicates: np.ndarray, codes: np.ndarray, activity: str) -> None:
        self.tables, self.predicates, self.codes, self.activity = tables, predicates, codes, activity
        self.calls = list(tables.rules)
        self.call_numbers = {call: number for number, call in enumerate(self.calls)}
        self.num_codes = tables.base**tables.arity
        if len(codes) * len(self.calls) * self.num_codes >= 1 << 63:
            raise ValueError(
                f"{tables.base} constants are too many for the depths of atoms with {tables.arity} arguments"
            )

    def run(self, max_cost: int) -> np.ndarray:
        answers, budgets, roots = np.full((3, len(self.codes)), -1)
        for predicate in np.unique(self.predicates).tolist():
            rows, call = np.flatnonzero(self.predicates == predicate), (predicate, self.tables.ground)
            bounds = self.tables.cheapest_rules(call, self.codes[rows], max_cost, self.activity)
            budgets[rows] = np.where(bounds < 0, max_cost + 1, bounds)
            roots[rows] = self._encode_nodes(call, rows, self.codes[rows])
        while len(pending := np.flatnonzero((answers < 0) & (budgets <= max_cost))):
            costs = self._solve(roots[pending], budgets[pending])
            within = costs <= budgets[pending]
            answers[pending[within]] = costs[within]
            budgets[pending] += 1
        return answers

    def _solve(self, roots: np.ndarray, budgets: np.ndarray) -> np.ndarray:
        """Return the cost of the cheapest proof of each root.

        Proofs consist of the rule instances that `_edges` finds within the budgets. If there is no such
        proof, the cost is `_INFINITE_COST`.
        """
        edges = list(self._edges(roots, budgets))
        nodes = merge_codes([roots, *(heads for heads, _, _ in edges)])
        costs = np.full(len(nodes) + 1, _INFINITE_COST)  # the last entry is a goal without a proof
        indexed = [
            (find_sorted(nodes, heads), np.where(bodies < 0, -2, find_sorted(nodes, bodies)), fixed_cost)
            for heads, bodies, fixed_cost in edges
        ]
        while True:
            before = costs.copy()
            for heads, bodies, fixed_cost in indexed:
                # -2 marks a fact, whose cost is part of `fixed_cost`; -1 is the goal without a proof.
                open_costs = np.where(bodies == -2, 0, costs[bodies])
                total = fixed_cost + open_costs.sum(axis=1)
                np.minimum.at(costs, heads, np.minimum(total, _INFINITE_COST))
            if np.array_equal(before, costs):
                return costs[find_sorted(nodes, roots)]

    def _edges(
        self, nodes: np.ndarray, budgets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Find all edges that are reachable from the given nodes within their budgets.

        Yields:
            Batches of edges. All edges in a batch are instances of the same rule. A batch consists of three
            arrays: the node of each edge's head, the nodes of the edge's body atoms (-1 for facts), and the
            edge's fixed cost, which is the cost of applying the rule and of the facts in the body.
        """
        seen = seen_budgets = np.zeros(0, np.int64)
        while len(nodes):
            nodes, budgets = _max_budgets(nodes, budgets)
            # The index of a new node is -1, and its previous budget is the appended -1.
            fresh = budgets > np.append(seen_budgets, -1)[find_sorted(seen, nodes)]
            nodes, budgets = nodes[fresh], budgets[fresh]
            seen, seen_budgets = _max_budgets(
                np.concatenate([seen, nodes]), np.concatenate([seen_budgets, budgets])
            )
            next_nodes, next_budgets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            worlds, rest = np.divmod(nodes, self.num_codes * len(self.calls))
            numbers, codes = np.divmod(rest, self.num_codes)
            for number in np.unique(numbers).tolist():
                group = np.flatnonzero(numbers == number)
                for rule in self.tables.rules[self.calls[number]]:
                    for proofs in self.tables.prove_bodies(rule, codes[group], budgets[group], self.activity):
                        heads = group[proofs.goal]
                        usable, bodies, fixed_cost = self._body_nodes(rule, proofs, worlds[heads])
                        yield nodes[heads[usable]], bodies[usable], fixed_cost[usable]
                        others_cost = proofs.costs.sum(axis=1, keepdims=True) - proofs.costs
                        is_open = usable[:, None] & (bodies >= 0)
                        next_nodes.append(bodies[is_open])
                        next_budgets.append((budgets[heads, None] - 1 - others_cost)[is_open])
            nodes, budgets = np.concatenate(next_nodes), np.concatenate(next_budgets)

    def _body_nodes(
        self, rule: _AdornedRule, proofs: _BodyProofs, worlds: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Convert rule instances to edges.

        Returns:
            For each rule instance, whether it can be used in its world, the nodes of its body atoms (-1 for
            facts), and its fixed cost; see `_edges`.
        """
        bodies = np.full(proofs.atoms.shape, -1)
        usable, fixed_cost = np.ones(len(worlds), bool), np.ones(len(worlds), np.int64)
        for position, goal in enumerate(rule.body):
            table, indices = self.tables.tables[goal], proofs.atoms[:, position]
            code, is_fact = table.codes[indices], table.is_fact[indices]
            # No shortest proof needs its own query, neither as a fact nor as a goal.
            usable &= (self.predicates[worlds] != goal[0]) | (self.codes[worlds] != code)
            bodies[:, position] = np.where(is_fact, -1, self._encode_nodes(goal, worlds, code))
            fixed_cost += np.where(is_fact, proofs.costs[:, position], 0)
        return usable, bodies, fixed_cost

    def _encode_nodes(self, call: Call, worlds: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return (worlds.astype(np.int64) * len(self.calls) + self.call_numbers[call]) * self.num_codes + codes


def _max_budgets(nodes: np.ndarray, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct nodes in ascending order, each with the largest of its budgets."""
    unique, inverse = np.unique(nodes, return_inverse=True)
    largest = np.full(len(unique), -1)
    np.maximum.at(largest, inverse, budgets)
    return unique, largest
