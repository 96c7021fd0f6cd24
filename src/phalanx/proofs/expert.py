"""Expert for proofs: the next step of a shortest proof, found by breadth-first search."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from phalanx.core.expert import ExpertLabels
from phalanx.core.vector import host_rows
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.search.best_first import BestFirstConfig, best_first_search
from phalanx.proofs.search.heuristics import BreadthFirstHeuristic
from phalanx.proofs.state import ProofState

_CACHE_SIZE = 10_000
_SEARCH_BATCH_SIZE = 64

Path = Sequence[np.ndarray]
"""Goals of the states on the path of a proof."""


class ShortestProofExpert:
    """Proves true queries and gives up on false ones.

    The expert has no answer for queries whose label the knowledge base does not confirm (true ones without a
    proof, and false ones with a proof), and in states from which no action leads back to the proof. Proofs of
    recent queries are cached, so the expert has no memory of episodes.

    Args:
        environment: The environment, which determines how goals are expanded and the longest proof.
    """

    def __init__(self, environment: ProofEnvironment) -> None:
        self._environment = environment
        self._paths: collections.OrderedDict[bytes, Path | None] = collections.OrderedDict()

    def init(self, states: ProofState) -> tuple[()]:
        """Return an empty memory."""
        return ()

    def label(self, states: ProofState, memory: Any) -> ExpertLabels:
        """Return the expert's action in each state of a batch."""
        rows, program = host_rows(states, np.asarray), self._environment.program
        paths = self._find_paths(np.stack([row.query.atom for row in rows]))
        actions: list[int | None] = []
        for row, path in zip(rows, paths, strict=True):
            is_confirmed = bool(row.query.label) == (path is not None)
            actions.append(next_action(row, path, program) if is_confirmed else None)
        mask = np.array([[action is not None] for action in actions])
        return ExpertLabels(np.array([[action or 0] for action in actions], np.int32), mask)

    def must_act(self, actions: Any, labels: ExpertLabels) -> Bool[np.ndarray, " batch"]:
        """Return no rows: the policy may always act."""
        return np.zeros(len(labels.mask), bool)

    def advance(self, memory: Any, labels: ExpertLabels, actions: Any, reset: Any) -> tuple[()]:
        """Return an empty memory."""
        return ()

    def _find_paths(self, queries: np.ndarray) -> list[Path | None]:
        """Return the path of a shortest proof of each query; None if there is no proof."""
        missing = {query.tobytes(): query for query in queries if query.tobytes() not in self._paths}
        if missing:
            config, program = self._environment.config, self._environment.program
            search = BestFirstConfig(max_depth=config.max_episode_steps, batch_size=_SEARCH_BATCH_SIZE)
            searched = np.stack(list(missing.values()))
            result = best_first_search(config, program, BreadthFirstHeuristic(), searched, search)
            assert result.trace is not None
            found = result.trace.paths
            self._paths.update({key: found.get(number) for number, key in enumerate(missing)})
        paths = [self._paths[query.tobytes()] for query in queries]
        for query in queries:
            self._paths.move_to_end(query.tobytes())
        while len(self._paths) > _CACHE_SIZE:
            self._paths.popitem(last=False)
        return paths


def next_action(state: ProofState, path: Path | None, program: Program) -> int | None:
    """Return the action that leads to the latest goals of a proof, or gives up if there is no proof.

    Args:
        state: A single state.
        path: Goals on the path of a proof; None if there is no proof.
        program: Facts and rules.

    Returns:
        The action, or None if no action is in the proof, or if giving up is not possible.
    """
    successors = np.asarray(state.successors)[: int(state.num_actions)]
    by_predicate = {int(goals[0, 0]): action for action, goals in enumerate(successors)}
    if path is None:
        return by_predicate.get(program.end_index)
    if program.true_index in by_predicate:
        return by_predicate[program.true_index]
    actions = {goals.tobytes(): action for action, goals in enumerate(successors)}
    # The environment skips states with a single action, so the next goals can be later ones of the proof.
    return next((actions[goals.tobytes()] for goals in reversed(path) if goals.tobytes() in actions), None)
