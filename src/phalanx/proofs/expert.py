"""Expert policy for proofs, which follows a shortest proof found by breadth-first search."""

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
"""Number of queries after which the cache of proofs is cleared."""
_NUM_PARALLEL_QUERIES = 64

Path = Sequence[np.ndarray]
"""Goals of each state on the path from the query to the end of a proof."""


class ShortestProofExpert:
    """Expert that follows a shortest proof of true queries and gives up on false queries.

    The expert has no label for a state if the query is true but has no proof, if the query is false but has a
    proof, or if no action leads to a state on the shortest proof. Proofs of recent queries are cached. The
    expert keeps no memory of the episode.

    Args:
        environment: The environment. Its settings determine the successors of a state and the maximum length
            of a proof.
    """

    def __init__(self, environment: ProofEnvironment) -> None:
        self._environment = environment
        self._paths: dict[bytes, Path | None] = {}

    def init(self, states: ProofState) -> tuple[()]:
        """Return an empty memory, because the expert is stateless."""
        return ()

    def label(self, states: ProofState, memory: Any) -> ExpertLabels:
        """Return the expert's action in each state of a batch.

        The mask of the labels is False where the expert has no action.
        """
        rows, program = host_rows(states, np.asarray), self._environment.program
        paths = self._find_paths(np.stack([row.query.atom for row in rows]))
        actions: list[int | None] = []
        for row, path in zip(rows, paths, strict=True):
            is_confirmed = bool(row.query.label) == (path is not None)
            actions.append(next_action(row, path, program) if is_confirmed else None)
        mask = np.array([[action is not None] for action in actions])
        return ExpertLabels(np.array([[action or 0] for action in actions], np.int32), mask)

    def must_act(self, actions: Any, labels: ExpertLabels) -> Bool[np.ndarray, " batch"]:
        """Return a mask that is always False, because the expert never has to act instead of the policy."""
        return np.zeros(len(labels.mask), bool)

    def advance(self, memory: Any, labels: ExpertLabels, actions: Any, reset: Any) -> tuple[()]:
        """Return an empty memory, because the expert is stateless."""
        return ()

    def _find_paths(self, queries: np.ndarray) -> list[Path | None]:
        """Return the path of a shortest proof of each query, or None if there is no proof."""
        if len(self._paths) >= _CACHE_SIZE:
            self._paths.clear()
        keys = [query.tobytes() for query in queries]
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in self._paths}
        if missing:
            config, program = self._environment.config, self._environment.program
            search = BestFirstConfig(
                max_depth=config.max_episode_steps, num_parallel_queries=_NUM_PARALLEL_QUERIES
            )
            searched = np.stack(list(missing.values()))
            result = best_first_search(config, program, BreadthFirstHeuristic(), searched, search)
            assert result.trace is not None
            found = result.trace.paths
            self._paths.update({key: found.get(number) for number, key in enumerate(missing)})
        return [self._paths[key] for key in keys]


def next_action(state: ProofState, path: Path | None, program: Program) -> int | None:
    """Return the expert's action in a single state.

    If there is a proof, this is the action that leads as far along the proof as possible. Otherwise, it is
    the end action.

    Args:
        state: A state without a batch axis.
        path: Goals of each state of the proof, or None if there is no proof.
        program: Facts and rules.

    Returns:
        The action. None if no action leads to a state of the proof, or if there is neither a proof nor an end
        action.
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
