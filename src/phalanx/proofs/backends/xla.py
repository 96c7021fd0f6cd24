"""The XLA engine of resolution, for accelerators: candidates of goals by number, and nodes made of them.

Its twin on the CPU is the C++ kernel of `src/native`; `resolution` picks between them, and both give the same
successors in the same order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from phalanx.core.backends import is_cpu_only
from phalanx.core.vector import select_rows
from phalanx.proofs.program import Program, ProgramArrays
from phalanx.proofs.state import ExpandRequest, ResolutionSettings, SearchNode

_WIDTH = 16
"""Candidates of a goal that one round looks at; most goals have few."""
_ROWS = 64
"""Goals that one round looks at on a CPU; an accelerator looks at all that are unfinished."""
OPEN, NEXT, FOUND, TOO_LONG = range(4)
"""Columns of a search's progress: whether candidates are left, the next of them, successors found (one more
than fits included), candidates that were too long."""


class Sources(NamedTuple):
    """Where the candidates of goals come from: first some facts, then some rules."""

    order: Int32[Array, " rows"]
    """By which argument the facts are sorted."""
    first_fact: Int32[Array, " rows"]
    num_facts: Int32[Array, " rows"]
    first_rule: Int32[Array, " rows"]
    total: Int32[Array, " rows"]
    """Facts and rules."""


def sources_of(
    program: Program, arrays: ProgramArrays, asked: ExpandRequest, goals: Int32[Array, "rows atoms atom"]
) -> Sources:
    """The facts and rules that the first goals may unify with."""
    constants = program.num_constants
    predicate, terms = goals[:, 0, 0], goals[:, 0, 1:]
    free = terms > constants
    real = (predicate >= 1) & (predicate <= program.num_predicates)
    row = (jnp.where(real, predicate, 1) - 1) * constants
    # Without a bound argument all facts of the predicate are candidates, in the order of the first.
    cell = row[:, None] + jnp.where(free, 0, terms - 1)
    span = jnp.where(free, constants, 1)
    side = jnp.arange(program.arity)
    starts, stops = arrays.starts[side, cell], arrays.starts[side, cell + span]
    order = jnp.argmin(jnp.where(free, stops - starts + 1, stops - starts), axis=1).astype(jnp.int32)
    start, stop = (jnp.take_along_axis(ends, order[:, None], axis=1)[:, 0] for ends in (starts, stops))
    # Where the other goals do not mention the variables, all facts lead to the same successor, and two are
    # enough in case that one of them is the query. All of them unify where one argument alone is bound.
    rest = goals[:, 1:, 1:].reshape(len(goals), -1, 1)
    mentioned = jnp.any((rest == terms[:, None]) & free[:, None], axis=(1, 2))
    pairs = [(one, other) for one in range(program.arity) for other in range(one)]
    repeated = jnp.any(jnp.stack([terms[:, one] == terms[:, other] for one, other in pairs]), axis=0)
    filtered = mentioned | repeated | (jnp.sum(~free, axis=1) > 1)
    needed = jnp.where(filtered, stop - start, jnp.minimum(stop - start, 2))
    # Of a ground goal the only candidate is the goal itself.
    is_query = asked.excluded & jnp.all(goals[:, 0] == asked.query, axis=1)
    itself = arrays.nests.contain(goals[:, 0], constants) & ~is_query
    num_facts = jnp.where(jnp.any(free, axis=1), needed, itself.astype(jnp.int32))
    place = jnp.where(real, predicate, 0)
    first_rule, last_rule = arrays.rule_start[place], arrays.rule_start[place + 1]
    num_facts = jnp.where(real, num_facts, 0)
    total = num_facts + jnp.where(real, last_rule - first_rule, 0)
    return Sources(order, start, num_facts, first_rule, total)


def candidates(
    program: Program,
    arrays: ProgramArrays,
    goals: Int32[Array, "rows atoms atom"],
    query: Int32[Array, "rows atom"],
    excluded: Bool[Array, " rows"],
    sources: Sources,
    number: Int32[Array, "rows width"],
) -> tuple[Int32[Array, "rows width cells"], Bool[Array, "rows width"], Bool[Array, "rows width"]]:
    """The goal lists of some candidates in canonical form; which of them fit; which unify at all."""
    constants, atoms, arity = program.num_constants, goals.shape[1], program.arity
    predicate, terms = goals[:, 0, 0, None], goals[:, 0, None, 1:]
    ground = jnp.all(terms <= constants, axis=-1)

    by_fact = number < sources.num_facts[:, None]
    fact = arrays.facts[sources.order[:, None], sources.first_fact[:, None] + number]
    fact = jnp.where(ground[..., None], terms, fact)
    is_query = (predicate == query[:, :1]) & jnp.all(fact == query[:, None, 1:], axis=-1)
    rule = jnp.where(by_fact, 0, sources.first_rule[:, None] + number - sources.num_facts[:, None])
    # A fact is a rule with constants in its head and without a body.
    head = jnp.where(by_fact[..., None], fact, arrays.heads[rule])
    unifies = (number < sources.total[:, None]) & ~(by_fact & is_query & excluded[:, None])
    bound, agrees = _unified(jnp.broadcast_to(terms, head.shape), head, constants)
    unifies &= agrees

    def substituted(others: Array) -> Array:
        """Terms [rows, 1, n] of the goals under each candidate's substitution [rows, width, n]."""
        made = jnp.broadcast_to(others, (*number.shape, others.shape[-1]))
        for place in range(arity):
            here = (others == terms[..., place, None]) & (others > constants)
            made = jnp.where(here, bound[..., place, None], made)
        return made

    of_goals = substituted(goals[:, None, :, 1:].reshape(goals.shape[0], 1, -1))
    body = jnp.where(by_fact[..., None, None], 0, arrays.bodies[rule])
    inner = body[..., 1:].reshape(*number.shape, arity * body.shape[-2])
    of_body = constants + arity * atoms - inner
    for place in range(arity):
        of_body = jnp.where(inner == head[..., place, None], of_goals[..., place, None], of_body)
    of_body = jnp.where(inner >= 0, inner, of_body)
    made = jnp.concatenate([of_body, of_goals[..., arity:]], axis=-1).reshape(*number.shape, -1, arity)
    rest = jnp.broadcast_to(goals[:, None, 1:, 0], (*number.shape, atoms - 1))
    cells = jnp.concatenate([jnp.concatenate([body[..., 0], rest], axis=-1)[..., None], made], axis=-1)

    proved = arrays.nests.contain(cells, constants)
    proved &= ~(excluded[:, None, None] & jnp.all(cells == query[:, None, None], axis=-1))
    kept = (cells[..., 0] != 0) & ~proved
    length = jnp.sum(kept, axis=-1)
    rows = _renamed(_packed(cells, kept, atoms), constants)
    first = jnp.where(length == 0, program.true_index, rows[..., 0, 0])
    rows = rows.at[..., 0, 0].set(first)
    return rows.reshape(*number.shape, -1), unifies & (length <= atoms), unifies


def _unified(
    terms: Int32[Array, "*rows arguments"], head: Int32[Array, "*rows arguments"], constants: int
) -> tuple[Int32[Array, "*rows arguments"], Bool[Array, "*rows"]]:
    """What each argument of a goal becomes by unifying it with a head, and whether that can be.

    Two places belong together where the goal has one variable or the head has one, through others or not.
    Of those, all constants must be equal; where there is none, the first place's variable stands for all.
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
    # In each place up to two constants, the goal's and the head's; 0 for none.
    given = [jnp.where(free[..., place], 0, terms[..., place]) for place in range(arity)]
    asked = [jnp.maximum(head[..., place], 0) for place in range(arity)]
    agrees = jnp.ones(terms.shape[:-1], bool)
    values = []
    for place in range(arity):
        least, most = jnp.full(agrees.shape, constants + 1, jnp.int32), jnp.zeros(agrees.shape, jnp.int32)
        stands = terms[..., place]
        for other in reversed(range(arity)):
            here = jnp.ones_like(agrees) if other == place else together[place, other]
            for constant in (given[other], asked[other]):
                known = here & (constant > 0)
                least = jnp.where(known, jnp.minimum(least, constant), least)
                most = jnp.where(known, jnp.maximum(most, constant), most)
            stands = jnp.where(here, terms[..., other], stands)
        agrees &= (most == 0) | (least == most)
        values.append(jnp.where(most > 0, most, stands))
    return jnp.stack(values, axis=-1), agrees


def _packed(
    cells: Int32[Array, "rows width goals atom"], kept: Bool[Array, "rows width goals"], atoms: int
) -> Int32[Array, "rows width atoms atom"]:
    """The kept goals without gaps, as many as fit."""
    place = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    goes = kept[..., None, :] & (place[..., None, :] == jnp.arange(atoms)[:, None])
    return jnp.sum(jnp.where(goes[..., None], cells[..., None, :, :], 0), axis=-2, dtype=jnp.int32)


def _renamed(
    rows: Int32[Array, "rows width atoms atom"], constants: int
) -> Int32[Array, "rows width atoms atom"]:
    """Variables numbered by first occurrence."""
    terms = rows[..., 1:].reshape(*rows.shape[:2], -1)
    count = terms.shape[-1]
    free = terms > constants
    place = jnp.arange(count)
    first = jnp.min(jnp.where(terms[..., :, None] == terms[..., None, :], place, count), axis=-1)
    is_first = free & (first == place)
    name = jnp.sum(is_first[..., None, :] & (place <= first[..., None]), axis=-1, dtype=jnp.int32)
    terms = jnp.where(free, constants + name, terms)
    return jnp.concatenate([rows[..., :1], terms.reshape(*rows.shape[:-1], -1)], axis=-1)


def hash_rows(rows: Int32[Array, "*rows cells"]) -> Int32[Array, "*rows 2"]:
    """Two words for each row; equal words are checked against the rows themselves."""
    numbers = np.random.default_rng(5).integers(1, 2**32, (2, rows.shape[-1]), dtype=np.uint32) | np.uint32(1)
    cells = rows.astype(jnp.uint32)[..., None, :]
    mixed = (cells ^ (cells >> 7)) * jnp.asarray(numbers)
    mixed = jnp.sum(mixed ^ (mixed >> 15), axis=-1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    return (mixed ^ (mixed >> 16)).astype(jnp.int32)


class _Search(NamedTuple):
    """How far the search of each row has come; few arrays, as each costs a gather and a scatter a round."""

    progress: Int32[Array, "batch 4"]
    places: Int32[Array, "batch places cells_and_two"]
    """Visited states, then successors; behind the cells of each the two words of its hash."""


class _Walk(NamedTuple):
    """Where each row stands while states without a choice are passed."""

    goals: Int32[Array, "batch atoms atom"]
    visited: Int32[Array, "batch memory atoms atom"]
    visited_count: Int32[Array, " batch"]
    skipped: Int32[Array, " batch"]
    search: _Search


def expand(
    settings: ResolutionSettings, restart: bool, arrays: ProgramArrays, asked: ExpandRequest, node: SearchNode
) -> SearchNode:
    """The expanded nodes of a flat batch."""
    program, memory = settings.program, node.visited.shape[1]
    batch, num_states = node.successors.shape[:2]
    budget = num_states - int(settings.end_proof_action)

    def is_end(predicate: Array) -> Array:
        return (predicate == program.true_index) | (predicate == program.false_index)

    terminal = is_end(node.goals[:, 0, 0])
    begins = asked.where & restart
    visited = jnp.where(begins[:, None, None, None], 0, node.visited)
    visited_count = jnp.where(begins, 0, node.visited_count)

    def explore(rows: Bool[Array, " batch"], walk: _Walk) -> _Walk:
        visited, count = walk.visited, walk.visited_count
        if settings.memory_pruning:
            place = jnp.where(rows, count, memory)
            visited = visited.at[jnp.arange(batch), place].set(walk.goals, mode="drop")
            count = jnp.where(rows, jnp.minimum(count + 1, memory), count)
        search = _search(settings, arrays, asked, rows, walk.goals, visited, count, budget, walk.search)
        return _Walk(walk.goals, visited, count, walk.skipped, search)

    def has_no_choice(walk: _Walk) -> Bool[Array, " batch"]:
        single = (walk.search.progress[:, FOUND] == 1) & ~is_end(walk.search.places[:, memory, 0])
        return active & single & (walk.skipped < settings.unary_limit)

    def onward(walk: _Walk) -> _Walk:
        rows = has_no_choice(walk)
        only = walk.search.places[:, memory, :-2].reshape(node.goals.shape)
        goals = jnp.where(rows[:, None, None], only, walk.goals)
        return explore(rows, walk._replace(goals=goals, skipped=walk.skipped + rows))

    active = asked.where & ~terminal
    blank = _Search(
        jnp.zeros((batch, 4), jnp.int32),
        jnp.zeros((batch, memory + budget + 1, node.goals[0].size + 2), jnp.int32),
    )
    walk = _Walk(node.goals, visited, visited_count, jnp.zeros(batch, jnp.int32), blank)
    walk = explore(active, walk)
    if settings.unary_limit:
        walk = jax.lax.while_loop(lambda walk: jnp.any(has_no_choice(walk)), onward, walk)
    return _finished(settings, asked, node, terminal, budget, walk)


def _finished(
    settings: ResolutionSettings,
    asked: ExpandRequest,
    node: SearchNode,
    terminal: Bool[Array, " batch"],
    budget: int,
    walk: _Walk,
) -> SearchNode:
    """The nodes with end actions and False where they belong; ends as their own successors."""
    search, program = walk.search, settings.program
    memory, num_states = node.visited.shape[1], node.successors.shape[1]
    found = search.progress[:, FOUND]
    count = jnp.minimum(found, budget)
    place = jnp.arange(num_states)
    successors = search.places[:, memory : memory + num_states, :-2]
    successors = jnp.where((place < count[:, None])[..., None], successors, 0)
    mark = jnp.where(count == 0, program.false_index, program.end_index)
    marked = (place == count[:, None]) & ((count == 0) | settings.end_proof_action)[:, None]
    firsts = jnp.where(marked, mark[:, None], successors[..., 0])
    itself = (place == 0) & terminal[:, None]
    successors = successors.at[..., 0].set(jnp.where(itself, node.goals[:, :1, 0], firsts))
    successors = jnp.where(terminal[:, None, None] & ~itself[..., None], 0, successors)
    count = jnp.where(count == 0, 1, count + int(settings.end_proof_action))
    new = SearchNode(
        goals=walk.goals,
        successors=successors.reshape(node.successors.shape),
        successor_count=jnp.where(terminal, 1, count),
        visited=walk.visited,
        visited_count=walk.visited_count,
        overflow=~terminal & (found > budget),
        too_long=search.progress[:, TOO_LONG],
        skipped=walk.skipped,
    )

    return select_rows(asked.where, new, node)


def _search(
    settings: ResolutionSettings,
    arrays: ProgramArrays,
    asked: ExpandRequest,
    rows: Bool[Array, " batch"],
    goals: Int32[Array, "batch atoms atom"],
    visited: Int32[Array, "batch memory atoms atom"],
    visited_count: Int32[Array, " batch"],
    budget: int,
    before: _Search,
) -> _Search:
    """All candidates of some rows, a round at a time, until one more is found than fits."""
    batch, memory = visited.shape[:2]
    sources = sources_of(settings.program, arrays, asked, goals)
    width = min(batch, _ROWS) if is_cpu_only() else batch
    zero = jnp.zeros(batch, jnp.int32)
    begun = jnp.stack([(rows & (sources.total > 0)).astype(jnp.int32), zero, zero, zero], axis=1)
    begun = begun.at[:, TOO_LONG].set(before.progress[:, TOO_LONG])
    old = visited.reshape(batch, memory, before.places.shape[2] - 2)
    start = _Search(
        progress=jnp.where(rows[:, None], begun, before.progress),
        places=before.places.at[:, :memory].set(jnp.concatenate([old, hash_rows(old)], axis=-1)),
    )
    told = (goals, asked.query, asked.excluded, *sources, visited_count)
    flat = jnp.concatenate([leaf.reshape(batch, -1).astype(jnp.int32) for leaf in told], axis=1)

    def one_round(search: _Search) -> _Search:
        here = _first_rows(search.progress[:, OPEN] != 0, width)
        taken = jnp.minimum(here, batch - 1)
        alive = (here < batch)[:, None]
        columns = [
            part.reshape(width, *leaf.shape[1:])
            for part, leaf in zip(
                jnp.split(flat[taken], np.cumsum([leaf[0].size for leaf in told])[:-1], axis=1),
                told,
                strict=True,
            )
        ]
        goal_rows, query, excluded, *source, remembered = columns
        progress = search.progress[taken]
        number = progress[:, NEXT, None] + jnp.arange(_WIDTH, dtype=jnp.int32)
        made, fits, exists = candidates(
            settings.program, arrays, goal_rows, query, excluded != 0, Sources(*source), number
        )
        fits, exists = fits & alive, exists & alive
        made = jnp.concatenate([made, hash_rows(made)], axis=-1)
        found = progress[:, FOUND]
        fresh = fits & ~_repeated(search.places[taken], made, fits, found, remembered, memory)
        rank = found[:, None] + jnp.cumsum(fresh, axis=1, dtype=jnp.int32)
        long = jnp.sum(exists & ~fits & (rank <= budget), axis=1, dtype=jnp.int32)
        place = jnp.where(fresh & (rank <= budget + 1), memory + rank - 1, memory + budget + 1)
        found = jnp.minimum(rank[:, -1], budget + 1)
        following = progress[:, NEXT] + _WIDTH
        left = (following < source[-1]) & (found <= budget)
        progress = jnp.stack([left.astype(jnp.int32), following, found, progress[:, TOO_LONG] + long], axis=1)
        return _Search(
            progress=search.progress.at[here].set(progress, mode="drop"),
            places=search.places.at[here[:, None], place].set(made, mode="drop"),
        )

    return jax.lax.while_loop(lambda search: jnp.any(search.progress[:, OPEN] != 0), one_round, start)


def _repeated(
    places: Int32[Array, "rows places cells_and_two"],
    made: Int32[Array, "rows width cells_and_two"],
    fits: Bool[Array, "rows width"],
    found: Int32[Array, " rows"],
    visited_count: Int32[Array, " rows"],
    memory: int,
) -> Bool[Array, "rows width"]:
    """Which candidates equal a visited state, a successor, or an earlier candidate of the round."""
    place = jnp.arange(places.shape[1])
    known = place < visited_count[:, None]
    known |= (place >= memory) & (place < memory + found[:, None])
    everyone = jnp.concatenate([places, made], axis=1)
    earlier = jnp.tri(_WIDTH, k=-1, dtype=bool) & fits[:, None]
    known = jnp.broadcast_to(known[:, None], (*fits.shape, known.shape[-1]))
    alike = jnp.concatenate([known, earlier], axis=-1)
    for word in (-2, -1):
        alike &= made[..., None, word] == everyone[:, None, :, word]
    # Equal hashes name the one place to compare with.
    first = jnp.argmax(alike, axis=-1)
    same = jnp.all(jnp.take_along_axis(everyone, first[..., None], axis=1) == made, axis=-1)
    return jnp.any(alike, axis=-1) & same


def _first_rows(mask: Bool[Array, " batch"], count: int) -> Int32[Array, " rows"]:
    """The indices of the first `count` rows that the mask names, then the batch's size."""
    batch = mask.shape[0]
    index = jnp.arange(batch, dtype=jnp.int32)
    if count == batch:
        return jnp.where(mask, index, batch)
    rank = jnp.cumsum(mask, dtype=jnp.int32) - 1
    place = jnp.where(mask & (rank < count), rank, count)
    return jnp.full(count, batch, jnp.int32).at[place].set(index, mode="drop")
