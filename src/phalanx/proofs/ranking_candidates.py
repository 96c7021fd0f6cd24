"""What a true triple is ranked against: corruptions of one argument that are not known to be true.

Negatives to learn from are in `negatives`; scores and metrics of candidates are in `ranking`.
"""

import dataclasses
import hashlib
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int32, Int64

from phalanx.proofs.data import DataHandler
from phalanx.proofs.vocabulary import IndexManager

Sides = Literal["head", "tail", "both"]
SIDES: tuple[Literal["head"], Literal["tail"]] = ("head", "tail")
"""By their numbers: 0 is the first argument, 1 the second."""


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Lists to rank: each has a positive at its head and the corruptions of one of its sides behind it."""

    triples: Int32[np.ndarray, "candidates 3"]
    """All lists, one after the other."""
    starts: Int64[np.ndarray, " lists_and_one"]
    """Where each list begins, and the end of the last."""
    query: Int64[np.ndarray, " lists"]
    """The number of each list's query."""
    side: Int64[np.ndarray, " lists"]
    """0 where the first argument is replaced, 1 where the second is."""
    tie_draw: Float64[np.ndarray, " lists"]
    """From 0 to 1, 1 excluded: where a positive comes among those of its own score."""
    num_queries: int

    def __len__(self) -> int:
        """How many lists there are."""
        return len(self.query)

    @property
    def is_positive(self) -> np.ndarray:
        """bool [candidates]"""
        mask = np.zeros(len(self.triples), bool)
        mask[self.starts[:-1]] = True
        return mask

    @property
    def list_of(self) -> np.ndarray:
        """int64 [candidates]: the list that each candidate is in."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def usual_sides(data: DataHandler) -> Sides:
    """The second argument alone where constants are of several domains, as for countries; else both."""
    return "tail" if len(data.domains) > 1 else "both"


def constant_domains(data: DataHandler, index: IndexManager) -> Int32[np.ndarray, " constants_and_one"]:
    """A number for the domain of each constant; 0 for padding and for constants of no domain."""
    numbers = np.zeros(index.num_constants + 1, np.int32)
    for number, (name, constants) in enumerate(data.domains.items(), 1):
        places = np.array([index.constant_str2idx[constant] for constant in constants], np.int64)
        if len(taken := places[numbers[places] != 0]):
            raise ValueError(
                f"{data.dataset}: {index.constants[taken[0] - 1]!r} is in domain {name!r} and in another; "
                "a corruption needs one domain for each constant"
            )
        numbers[places] = number
    return numbers


def make_candidates(
    queries: Int32[np.ndarray, "queries 3"],
    known: Int32[np.ndarray, "known 3"],
    num_constants: int,
    *,
    sides: Sides = "both",
    corruptions: int | None = 100,
    domains: Int32[np.ndarray, " constants_and_one"] | None = None,
    seed: int = 0,
) -> Candidates:
    """For each query and side: the query, and that many corruptions of it; None takes all there are.

    A corruption replaces the argument by another constant of its domain, gives no known triple, and is drawn
    without replacement; where fewer are left, all of them are taken. What is drawn follows from the seed, the
    query and the side, so other queries do not matter.
    """
    if sides not in ("head", "tail", "both"):
        raise ValueError(f"sides must be head, tail or both, got {sides!r}")
    if corruptions is not None and corruptions < 1:
        raise ValueError(f"corruptions must be at least 1, or None for all, got {corruptions}")
    if domains is None:
        domains = np.zeros(num_constants + 1, np.int32)
    members = {
        int(domain): 1 + np.flatnonzero(domains[1:] == domain).astype(np.int32) for domain in set(domains[1:])
    }
    numbers = [0, 1] if sides == "both" else [SIDES.index(sides)]
    true = {side: _known_arguments(known, queries, side, num_constants) for side in numbers}
    lists: list[np.ndarray] = []
    places = [(query, side) for query in range(len(queries)) for side in numbers]
    draws = np.empty(len(places))
    for place, (query, side) in enumerate(places):
        triple = queries[query]
        rng = _generator(seed, triple, side)
        draws[place] = rng.random()
        among = members[int(domains[triple[1 + side]])]
        taken = np.zeros(num_constants + 1, bool)
        taken[true[side][query]] = True
        taken[triple[1 + side]] = True
        free = among[~taken[among]]
        if corruptions is not None and len(free) > corruptions:
            free = np.sort(rng.choice(free, corruptions, replace=False))
        rows = np.repeat(triple[None], 1 + len(free), axis=0)
        rows[1:, 1 + side] = free
        lists.append(rows)
    lengths = np.array([len(rows) for rows in lists], np.int64)
    return Candidates(
        triples=np.concatenate([np.zeros((0, 3), np.int32), *lists]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        query=np.array([query for query, _ in places], np.int64),
        side=np.array([side for _, side in places], np.int64),
        tie_draw=draws,
        num_queries=len(queries),
    )


def _generator(seed: int, triple: np.ndarray, side: int) -> np.random.Generator:
    words = hashlib.blake2b(f"{seed}/{triple.tolist()}/{side}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.frombuffer(words, "<u4").tolist()))


def _known_arguments(
    known: np.ndarray, queries: np.ndarray, side: int, num_constants: int
) -> list[np.ndarray]:
    """For each query the arguments that are known on a side, given its predicate and its other argument."""

    def cells(rows: np.ndarray) -> np.ndarray:
        return rows[:, 0].astype(np.int64) * (num_constants + 1) + rows[:, 2 - side]

    order = np.argsort(cells(known), kind="stable")
    sorted_cells, arguments = cells(known)[order], known[order, 1 + side]
    wanted = cells(queries)
    begins = np.searchsorted(sorted_cells, wanted)
    ends = np.searchsorted(sorted_cells, wanted, side="right")
    return [arguments[begin:end] for begin, end in zip(begins, ends, strict=True)]
