"""Expert for proofs: the next step of a shortest proof, found by breadth-first search."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.search.best_first import BestFirstConfig, best_first_search
from phalanx.proofs.search.heuristics import BreadthFirstHeuristic
from phalanx.proofs.state import ProofState


class ShortestProofExpert:
    """Proofs of a batch of queries.

    The expert proves true queries and gives up on false ones. It has no action for queries whose label the
    knowledge base does not confirm: true ones without a proof, and false ones with a proof.

    Args:
        environment: The environment.
        states: Initial states of a batch of episodes.
    """

    def __init__(self, environment: ProofEnvironment, states: ProofState) -> None:
        queries, labels = np.asarray(states.query.atom), np.asarray(states.query.label)
        search = BestFirstConfig(max_depth=environment.config.max_episode_steps, batch_size=len(queries))
        result = best_first_search(
            environment.config, environment.program, BreadthFirstHeuristic(), queries, search
        )
        assert result.trace is not None
        self._program, self._proofs = environment.program, result.trace.paths
        self.is_confirmed = np.asarray(result.proved) == labels
        """Whether the search confirms each query's label."""

    def action(self, row: int, state: ProofState) -> int | None:
        """Return the expert's action in a state of an episode, or None if it has none."""
        if not self.is_confirmed[row]:
            return None
        return next_action(state, self._proofs.get(row), self._program)


def next_action(state: ProofState, proof: Sequence[Any] | None, program: Program) -> int | None:
    """Return the action that leads to the latest goals of a proof, or gives up if there is no proof."""
    successors = np.asarray(state.successors)[: int(state.num_actions)]
    by_predicate = {int(goals[0, 0]): action for action, goals in enumerate(successors)}
    if proof is None:
        return by_predicate.get(program.end_index)
    if program.true_index in by_predicate:
        return by_predicate[program.true_index]
    actions = {goals.tobytes(): action for action, goals in enumerate(successors)}
    # The environment skips states with a single action, so the next goals can be later ones of the proof.
    return next((actions[goals.tobytes()] for goals in reversed(proof) if goals.tobytes() in actions), None)
