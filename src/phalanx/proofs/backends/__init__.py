"""Resolution: computes the successors of proof states with the selected backend.

Both backends also prune visited states: if `ProofConfig.prune_visited` is true, a successor that the episode
has already visited is removed.
"""

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ExpandSettings, SearchNode


def expand(
    config: ProofConfig, program: Program, request: ExpandRequest, node: SearchNode, *, restart: bool
) -> SearchNode:
    """Compute the successors of some nodes.

    The first goal is resolved with matching facts in ascending order (predicate, first, second), and then
    with the rules for its predicate in the program's order. A successor consists of the body of the rule and
    the remaining goals, with the substitution applied. Ground goals that are facts are removed, except for
    the query if it is excluded. If no goal is left, the successor is True.

    Successors with more than `max_goals` goals are removed and counted in `num_too_long`. Successors that
    equal an earlier one or, with `prune_visited`, a visited state, up to renaming of variables, are removed
    without being counted. If there are more successors than fit, the others are cut off, and `overflow` is
    set.

    The end action, if enabled, comes last. If there is no successor, the only one is False. A True or False
    state has itself as its only successor. With `skip_unary_actions`, goals with exactly one successor, not
    counting the end action, are replaced by that successor unless it is True.

    Args:
        config: Settings of the environment. If the backend is `auto`, the device determines it.
        program: Facts and rules.
        request: Selects the nodes to expand, and contains their queries.
        node: The nodes.
        restart: Clear the visited states first, at the start of an episode.

    Returns:
        The nodes with their successors. Nodes that are not expanded are unchanged.
    """
    settings = ExpandSettings(
        config.max_skipped_states, config.end_proof_action, config.prune_visited, restart
    )
    arrays = () if config.backend == "native" else program.arrays
    return program.expand(config.backend, settings, arrays, request, node)
