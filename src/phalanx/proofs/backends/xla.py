"""Resolution in XLA, for accelerators. It returns the same successors in the same order as the C++ kernel."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from phalanx.core.backends import is_cpu_only
from phalanx.core.vector import first_true_rows, select_rows
from phalanx.proofs.program import Program, ProgramArrays
from phalanx.proofs.state import ExpandRequest, ExpandSettings, SearchNode

_WIDTH = 16
"""Number of candidates (facts and rules) that are tried per round to resolve a goal. Most goals have few
candidates."""
_ROWS = 64
"""Maximum number of nodes that are processed per round on a CPU. On an accelerator, each round processes all
unfinished nodes."""
OPEN, NEXT, FOUND, TOO_LONG = range(4)
"""Columns of `_Search.progress`.

- `OPEN`: 1 if there are candidates left to try, otherwise 0;
- `NEXT`: index of the next candidate;
- `FOUND`: number of successors found so far, at most one more than there is space for;
- `TOO_LONG`: number of successors that were removed because they have too many goals.
"""


class CandidateRanges(NamedTuple):
    """Candidates for resolving the first goal of each node: a range of facts, and then a range of rules."""

    order: Int32[Array, " rows"]
    """Position (from 0) of the argument by which the facts are sorted. This is also the index of the sorted
    copy in `ProgramArrays.facts`."""
    first_fact: Int32[Array, " rows"]
    """Index of the first candidate fact in the sorted copy of the facts that `order` selects."""
    num_facts: Int32[Array, " rows"]
    """Number of candidate facts."""
    first_rule: Int32[Array, " rows"]
    """Index of the first candidate rule in `ProgramArrays.heads`."""
    total: Int32[Array, " rows"]
    """Total number of candidate facts and rules."""


def find_candidates(
    program: Program, arrays: ProgramArrays, request: ExpandRequest, goals: Int32[Array, "rows atoms atom"]
) -> CandidateRanges:
    """Find the facts and rules that can unify with the first goal of each node."""
    constants = program.num_constants
    predicate, terms = goals[:, 0, 0], goals[:, 0, 1:]
    free = terms > constants
    real = (predicate >= 1) & (predicate <= program.num_predicates)
    row = (jnp.where(real, predicate, 1) - 1) * constants
    # Without a bound argument, all facts of the predicate are candidates, ordered by the first argument.
    cell = row[:, None] + jnp.where(free, 0, terms - 1)
    span = jnp.where(free, constants, 1)
    side = jnp.arange(program.arity)
    starts, stops = arrays.starts[side, cell], arrays.starts[side, cell + span]
    order = jnp.argmin(jnp.where(free, stops - starts + 1, stops - starts), axis=1).astype(jnp.int32)
    start, stop = (jnp.take_along_axis(ends, order[:, None], axis=1)[:, 0] for ends in (starts, stops))
    # If the other goals do not contain the variables, all facts lead to the same successor, and two facts
    # are enough in case one of them is the query. With only one bound argument, all of them unify.
    rest = goals[:, 1:, 1:].reshape(len(goals), -1, 1)
    mentioned = jnp.any((rest == terms[:, None]) & free[:, None], axis=(1, 2))
    pairs = [(one, other) for one in range(program.arity) for other in range(one)]
    repeated = jnp.any(jnp.stack([terms[:, one] == terms[:, other] for one, other in pairs]), axis=0)
    filtered = mentioned | repeated | (jnp.sum(~free, axis=1) > 1)
    needed = jnp.where(filtered, stop - start, jnp.minimum(stop - start, 2))
    # The only candidate of a ground goal is the goal itself.
    is_query = request.exclude_query & jnp.all(goals[:, 0] == request.query, axis=1)
    itself = arrays.fact_set.contains(goals[:, 0], constants) & ~is_query
    num_facts = jnp.where(jnp.any(free, axis=1), needed, itself.astype(jnp.int32))
    slot = jnp.where(real, predicate, 0)
    first_rule, last_rule = arrays.rule_start[slot], arrays.rule_start[slot + 1]
    num_facts = jnp.where(real, num_facts, 0)
    total = num_facts + jnp.where(real, last_rule - first_rule, 0)
    return CandidateRanges(order, start, num_facts, first_rule, total)


def resolve_candidates(
    program: Program,
    arrays: ProgramArrays,
    goals: Int32[Array, "rows atoms atom"],
    query: Int32[Array, "rows atom"],
    exclude_query: Bool[Array, " rows"],
    sources: CandidateRanges,
    number: Int32[Array, "rows width"],
) -> tuple[Int32[Array, "rows width cells"], Bool[Array, "rows width"], Bool[Array, "rows width"]]:
    """Resolve the first goal of each node with some of its candidates.

    Args:
        program: Facts and rules.
        arrays: The program on the device.
        goals: Goals of each node.
        query: Query of each node.
        exclude_query: Whether the query must not be used as a fact.
        sources: All candidates of each node.
        number: Indices of the candidates to try. Facts come first, followed by rules.

    Returns:
        Three arrays: the flattened new goals of each candidate, in canonical form; a mask of the candidates
        that unify and lead to at most `max_goals` goals; and a mask of all candidates that unify.
    """
    constants, atoms, arity = program.num_constants, goals.shape[1], program.arity
    predicate, terms = goals[:, 0, 0, None], goals[:, 0, None, 1:]
    ground = jnp.all(terms <= constants, axis=-1)

    by_fact = number < sources.num_facts[:, None]
    fact = arrays.facts[sources.order[:, None], sources.first_fact[:, None] + number]
    fact = jnp.where(ground[..., None], terms, fact)
    is_query = (predicate == query[:, :1]) & jnp.all(fact == query[:, None, 1:], axis=-1)
    rule = jnp.where(by_fact, 0, sources.first_rule[:, None] + number - sources.num_facts[:, None])
    # A fact is treated as a rule with constants in its head and an empty body.
    head = jnp.where(by_fact[..., None], fact, arrays.heads[rule])
    unifies = (number < sources.total[:, None]) & ~(by_fact & is_query & exclude_query[:, None])
    bound, agrees = _unify(jnp.broadcast_to(terms, head.shape), head, constants)
    unifies &= agrees

    def substitute(others: Array) -> Array:
        """Apply the substitution of each candidate, which binds the variables of the first goal.

        `others` are terms of any goals, with shape [rows, 1, n]. The result has shape [rows, width, n]: one
        copy of the terms per candidate, in which bound variables are replaced by their values.
        """
        result = jnp.broadcast_to(others, (*number.shape, others.shape[-1]))
        for slot in range(arity):
            is_bound = (others == terms[..., slot, None]) & (others > constants)
            result = jnp.where(is_bound, bound[..., slot, None], result)
        return result

    of_goals = substitute(goals[:, None, :, 1:].reshape(goals.shape[0], 1, -1))
    body = jnp.where(by_fact[..., None, None], 0, arrays.bodies[rule])
    inner = body[..., 1:].reshape(*number.shape, arity * body.shape[-2])
    of_body = constants + arity * atoms - inner
    for slot in range(arity):
        of_body = jnp.where(inner == head[..., slot, None], of_goals[..., slot, None], of_body)
    of_body = jnp.where(inner >= 0, inner, of_body)
    new_terms = jnp.concatenate([of_body, of_goals[..., arity:]], axis=-1).reshape(*number.shape, -1, arity)
    rest = jnp.broadcast_to(goals[:, None, 1:, 0], (*number.shape, atoms - 1))
    predicates = jnp.concatenate([body[..., 0], rest], axis=-1)
    cells = jnp.concatenate([predicates[..., None], new_terms], axis=-1)

    proved = arrays.fact_set.contains(cells, constants)
    proved &= ~(exclude_query[:, None, None] & jnp.all(cells == query[:, None, None], axis=-1))
    kept = (cells[..., 0] != 0) & ~proved
    length = jnp.sum(kept, axis=-1)
    rows = _rename_variables(_pack(cells, kept, atoms), constants)
    first = jnp.where(length == 0, program.true_index, rows[..., 0, 0])
    rows = rows.at[..., 0, 0].set(first)
    return rows.reshape(*number.shape, -1), unifies & (length <= atoms), unifies


def _unify(
    terms: Int32[Array, "*rows arguments"], head: Int32[Array, "*rows arguments"], constants: int
) -> tuple[Int32[Array, "*rows arguments"], Bool[Array, "*rows"]]:
    """Unify a goal with the head of a rule.

    Two argument positions are linked if the goal, or the head, has the same variable at both positions. Links
    are transitive. All constants at linked positions must be equal. If there is no constant, the goal's
    variable at the first of the linked positions becomes the value of all of them.

    Returns:
        The value of each argument of the goal, and whether the goal and the head unify.
    """
    arity = terms.shape[-1]
    free = terms > constants
    together = {
        (one, other): ((terms[..., one] == terms[..., other]) & free[..., one])
        | ((head[..., one] == head[..., other]) & (head[..., one] < 0))
        for one in range(arity)
        for other in range(arity)
        if one != other
    }
    for middle in range(arity):
        for one, other in list(together):
            if middle not in (one, other):
                together[one, other] |= together[one, middle] & together[middle, other]
    # Up to two constants per position, the goal's and the head's, or 0 for none.
    given = [jnp.where(free[..., slot], 0, terms[..., slot]) for slot in range(arity)]
    request = [jnp.maximum(head[..., slot], 0) for slot in range(arity)]
    agrees = jnp.ones(terms.shape[:-1], bool)
    values = []
    for slot in range(arity):
        least, most = jnp.full(agrees.shape, constants + 1, jnp.int32), jnp.zeros(agrees.shape, jnp.int32)
        stands = terms[..., slot]
        for other in reversed(range(arity)):
            here = jnp.ones_like(agrees) if other == slot else together[slot, other]
            for constant in (given[other], request[other]):
                known = here & (constant > 0)
                least = jnp.where(known, jnp.minimum(least, constant), least)
                most = jnp.where(known, jnp.maximum(most, constant), most)
            stands = jnp.where(here, terms[..., other], stands)
        agrees &= (most == 0) | (least == most)
        values.append(jnp.where(most > 0, most, stands))
    return jnp.stack(values, axis=-1), agrees


def _pack(
    cells: Int32[Array, "rows width goals atom"], kept: Bool[Array, "rows width goals"], atoms: int
) -> Int32[Array, "rows width atoms atom"]:
    """Move the goals marked by `kept` to the front. Return the first `atoms` goals, padded with zeros."""
    slot = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    goes = kept[..., None, :] & (slot[..., None, :] == jnp.arange(atoms)[:, None])
    return jnp.sum(jnp.where(goes[..., None], cells[..., None, :, :], 0), axis=-2, dtype=jnp.int32)


def _rename_variables(
    rows: Int32[Array, "rows width atoms atom"], constants: int
) -> Int32[Array, "rows width atoms atom"]:
    """Renumber the variables of each list of goals by first occurrence."""
    terms = rows[..., 1:].reshape(*rows.shape[:2], -1)
    count = terms.shape[-1]
    free = terms > constants
    slot = jnp.arange(count)
    first = jnp.min(jnp.where(terms[..., :, None] == terms[..., None, :], slot, count), axis=-1)
    is_first = free & (first == slot)
    name = jnp.sum(is_first[..., None, :] & (slot <= first[..., None]), axis=-1, dtype=jnp.int32)
    terms = jnp.where(free, constants + name, terms)
    return jnp.concatenate([rows[..., :1], terms.reshape(*rows.shape[:-1], -1)], axis=-1)


def _append_hashes(rows: Int32[Array, "*rows cells"]) -> Int32[Array, "*rows cells_and_two"]:
    """Append two hash values to each row. Equal hashes do not guarantee equal rows."""
    numbers = np.random.default_rng(5).integers(1, 2**32, (2, rows.shape[-1]), dtype=np.uint32) | np.uint32(1)
    cells = rows.astype(jnp.uint32)[..., None, :]
    mixed = (cells ^ (cells >> 7)) * jnp.asarray(numbers)
    mixed = jnp.sum(mixed ^ (mixed >> 15), axis=-1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    return jnp.concatenate([rows, (mixed ^ (mixed >> 16)).astype(jnp.int32)], axis=-1)


class _Search(NamedTuple):
    """State of the loops that expand a batch of nodes.

    If states with a single successor are skipped, this successor replaces the state of the node, and the
    search for successors starts again. Several values are stored in the same array, because each round
    performs a gather and a scatter for every array that it updates.
    """

    goals: Int32[Array, "batch atoms atom"]
    num_visited: Int32[Array, " batch"]
    num_skipped: Int32[Array, " batch"]
    progress: Int32[Array, "batch 4"]
    """Progress of the search for each node's successors. The columns are `OPEN`, `NEXT`, `FOUND` and
    `TOO_LONG`."""
    slots: Int32[Array, "batch slots cells_and_two"]
    """Visited states, followed by the successors found so far. Each slot ends with two hash values of its
    state."""


def expand(
    program: Program,
    settings: ExpandSettings,
    arrays: ProgramArrays,
    request: ExpandRequest,
    node: SearchNode,
) -> SearchNode:
    """Expand nodes with a single batch axis; see `phalanx.proofs.backends.expand`."""
    memory = node.visited.shape[1]
    batch, num_states = node.successors.shape[:2]
    budget = num_states - int(settings.end_proof_action)
    width = min(batch, _ROWS) if is_cpu_only() else batch

    def is_end(predicate: Array) -> Array:
        return (predicate == program.true_index) | (predicate == program.false_index)

    def explore(rows: Bool[Array, " batch"], search: _Search) -> _Search:
        """Find the successors of the nodes in `rows` by trying all candidates, round by round.

        The search for a node's successors stops when the number of successors found exceeds the available
        space by one, because the node is then known to have too many.
        """
        num_visited, slots = search.num_visited, search.slots
        if settings.prune_visited:
            slot = jnp.where(rows & (num_visited < memory), num_visited, slots.shape[1])
            current = _append_hashes(search.goals.reshape(batch, -1))
            slots = slots.at[jnp.arange(batch), slot].set(current, mode="drop")
            num_visited = jnp.minimum(num_visited + rows, memory)
        sources = find_candidates(program, arrays, request, search.goals)
        begun = jnp.zeros_like(search.progress).at[:, OPEN].set(rows & (sources.total > 0))
        begun = begun.at[:, TOO_LONG].set(search.progress[:, TOO_LONG])
        progress = jnp.where(rows[:, None], begun, search.progress)
        # The inputs are concatenated, because each array costs a gather per round.
        inputs = (search.goals, request.query, request.exclude_query, *sources, num_visited)
        flat = jnp.concatenate([leaf.reshape(batch, -1).astype(jnp.int32) for leaf in inputs], axis=1)
        ends = np.cumsum([leaf[0].size for leaf in inputs])[:-1]

        def one_round(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            all_progress, all_slots = carry
            is_open = all_progress[:, OPEN] != 0
            rows = jnp.where(is_open, jnp.arange(batch, dtype=jnp.int32), batch)
            if width < batch:
                rows = first_true_rows(is_open, width)
            clipped = jnp.minimum(rows, batch - 1)
            parts = zip(jnp.split(flat[clipped], ends, axis=1), inputs, strict=True)
            goals, query, exclude_query, *source, row_visited = (
                part.reshape(width, *leaf.shape[1:]) for part, leaf in parts
            )
            progress = all_progress[clipped]
            number = progress[:, NEXT, None] + jnp.arange(_WIDTH, dtype=jnp.int32)
            states, fits, unifies = resolve_candidates(
                program, arrays, goals, query, exclude_query != 0, CandidateRanges(*source), number
            )
            is_row = (rows < batch)[:, None]
            fits, unifies = fits & is_row, unifies & is_row
            states, found = _append_hashes(states), progress[:, FOUND]
            is_new = fits & ~_find_repeated(all_slots[clipped], states, fits, found, row_visited, memory)
            rank = found[:, None] + jnp.cumsum(is_new, axis=1, dtype=jnp.int32)
            num_long = jnp.sum(unifies & ~fits & (rank <= budget), axis=1, dtype=jnp.int32)
            slot = jnp.where(is_new & (rank <= budget + 1), memory + rank - 1, memory + budget + 1)
            found = jnp.minimum(rank[:, -1], budget + 1)
            following = progress[:, NEXT] + _WIDTH
            has_more = (following < source[-1]) & (found <= budget)
            columns = [has_more.astype(jnp.int32), following, found, progress[:, TOO_LONG] + num_long]
            return (
                all_progress.at[rows].set(jnp.stack(columns, axis=1), mode="drop"),
                all_slots.at[rows[:, None], slot].set(states, mode="drop"),
            )

        progress, slots = jax.lax.while_loop(
            lambda carry: jnp.any(carry[0][:, OPEN] != 0), one_round, (progress, slots)
        )
        return search._replace(num_visited=num_visited, progress=progress, slots=slots)

    def has_single_successor(search: _Search) -> Bool[Array, " batch"]:
        single = (search.progress[:, FOUND] == 1) & ~is_end(search.slots[:, memory, 0])
        return active & single & (search.num_skipped < settings.max_skipped_states)

    def skip(search: _Search) -> _Search:
        rows = has_single_successor(search)
        only = search.slots[:, memory, :-2].reshape(node.goals.shape)
        goals = jnp.where(rows[:, None, None], only, search.goals)
        return explore(rows, search._replace(goals=goals, num_skipped=search.num_skipped + rows))

    terminal = is_end(node.goals[:, 0, 0])
    active = request.where & ~terminal
    begins = request.where & settings.clear_visited
    visited = jnp.where(begins[:, None, None, None], 0, node.visited)
    padding = ((0, 0), (0, budget + 1), (0, 0))
    search = _Search(
        goals=node.goals,
        num_visited=jnp.where(begins, 0, node.num_visited),
        num_skipped=jnp.zeros(batch, jnp.int32),
        progress=jnp.zeros((batch, 4), jnp.int32),
        slots=jnp.pad(_append_hashes(visited.reshape(batch, memory, node.goals[0].size)), padding),
    )
    search = explore(active, search)
    if settings.max_skipped_states:
        search = jax.lax.while_loop(lambda search: jnp.any(has_single_successor(search)), skip, search)

    # Add the end action and False, and make final states their own only successor.
    found = search.progress[:, FOUND]
    count = jnp.minimum(found, budget)
    slot = jnp.arange(num_states)
    successors = search.slots[:, memory : memory + num_states, :-2]
    successors = jnp.where((slot < count[:, None])[..., None], successors, 0)
    mark = jnp.where(count == 0, program.false_index, program.end_index)
    marked = (slot == count[:, None]) & ((count == 0) | settings.end_proof_action)[:, None]
    firsts = jnp.where(marked, mark[:, None], successors[..., 0])
    itself = (slot == 0) & terminal[:, None]
    successors = successors.at[..., 0].set(jnp.where(itself, node.goals[:, :1, 0], firsts))
    successors = jnp.where(terminal[:, None, None] & ~itself[..., None], 0, successors)
    count = jnp.where(count == 0, 1, count + int(settings.end_proof_action))
    new = SearchNode(
        goals=search.goals,
        successors=successors.reshape(node.successors.shape),
        num_actions=jnp.where(terminal, 1, count),
        visited=search.slots[:, :memory, :-2].reshape(node.visited.shape),
        num_visited=search.num_visited,
        overflow=~terminal & (found > budget),
        num_too_long=search.progress[:, TOO_LONG],
        num_skipped=search.num_skipped,
    )
    return select_rows(request.where, new, node)


def _find_repeated(
    slots: Int32[Array, "rows slots cells_and_two"],
    states: Int32[Array, "rows width cells_and_two"],
    fits: Bool[Array, "rows width"],
    found: Int32[Array, " rows"],
    num_visited: Int32[Array, " rows"],
    memory: int,
) -> Bool[Array, "rows width"]:
    """Return a mask of the new states that repeat a visited state, a successor or an earlier new state.

    Args:
        slots: Visited states, followed by the successors found in earlier rounds.
        states: States that the candidates of this round lead to.
        fits: Mask of the candidates that unify and whose state has at most `max_goals` goals.
        found: Number of successors found in earlier rounds.
        num_visited: Number of visited states.
        memory: Maximum number of visited states, which is the index of the first successor in `slots`.
    """
    slot = jnp.arange(slots.shape[1])
    known = slot < num_visited[:, None]
    known |= (slot >= memory) & (slot < memory + found[:, None])
    others = jnp.concatenate([slots, states], axis=1)
    earlier = jnp.tri(_WIDTH, k=-1, dtype=bool) & fits[:, None]
    known = jnp.broadcast_to(known[:, None], (*fits.shape, known.shape[-1]))
    has_same_hash = jnp.concatenate([known, earlier], axis=-1)
    for word in (-2, -1):
        has_same_hash &= states[..., None, word] == others[:, None, :, word]
    # Equal hashes identify the one slot to compare with.
    first = jnp.argmax(has_same_hash, axis=-1)
    is_same = jnp.all(jnp.take_along_axis(others, first[..., None], axis=1) == states, axis=-1)
    return jnp.any(has_same_hash, axis=-1) & is_same
