"""Computes the successors of proof states by resolution, with the C++ or the XLA backend."""

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ExpandSettings, SearchNode


def expand(
    config: ProofConfig, program: Program, request: ExpandRequest, node: SearchNode, *, clear_visited: bool
) -> SearchNode:
    """Compute the successors of a batch of nodes.

    The first goal of a node is resolved with each matching fact, and then with each rule whose head has the
    same predicate. Facts are tried in ascending order of predicate, first and second argument, and rules in
    the order of the program. A successor consists of the body of the rule, followed by the node's remaining
    goals, with the substitution applied. Ground goals that are facts are removed, except for the query if
    `request` excludes it from the facts. If no goal is left, the successor is the state True.

    Successors with more than `max_goals` goals are removed and counted in `num_too_long`. Duplicates are
    removed; states that differ only in the names of their variables count as duplicates. With
    `prune_visited`, states that the episode has already visited are removed, too. If more than `max_actions`
    successors remain, the last ones are cut off, and `overflow` is set.

    A node without successors gets False as its only successor. Otherwise, the last successor is the end
    action, if it is enabled. The only successor of a True or False state is the state itself. With
    `skip_unary_actions`, a node with exactly one successor (not counting the end action) moves on to this
    successor, unless the successor is True or False.

    Args:
        config: Settings of the environment. If `backend` is `auto`, the device determines the implementation.
        program: Facts and rules.
        request: Selects the nodes to expand, and contains their queries.
        node: The nodes.
        clear_visited: Clear the list of visited states first. Set this at the start of an episode.

    Returns:
        The nodes with their successors. Nodes that are not expanded are unchanged.
    """
    settings = ExpandSettings(
        config.max_skipped_states, config.end_proof_action, config.prune_visited, clear_visited
    )
    arrays = () if config.backend == "native" else program.arrays
    return program.expand(config.backend, settings, arrays, request, node)
