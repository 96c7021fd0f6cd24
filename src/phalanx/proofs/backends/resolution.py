"""Resolution of a batch of goals: the engine that expands them, and the C++ kernel as a JAX call.

The kernel is in `src/native`; its twin for accelerators is in `xla_resolution`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from phalanx.core.backends import dispatch, vmappable_kernel
from phalanx.proofs.backends import xla as xla_resolution
from phalanx.proofs.state import ExpandRequest, ResolutionSettings, SearchNode


def _native_expand(
    rules: ResolutionSettings, restart: bool, asked: ExpandRequest, node: SearchNode
) -> SearchNode:
    """The expanded nodes of a flat batch.

    Nodes are updated in place where XLA allows it, and only the rows that were or are in use are written: the
    padding is many times larger than the successors that there are.
    """
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in node)
    out = jax.ffi.ffi_call(
        "phalanx_proofs_expand",
        results,
        input_output_aliases={len(asked) + k: k for k in range(len(node))},
    )(
        *asked,
        *node,
        program=np.int64(rules.program.native.key),
        unary_limit=np.int64(rules.unary_limit),
        end_proof_action=np.bool_(rules.end_proof_action),
        memory_pruning=np.bool_(rules.memory_pruning),
        restart=np.bool_(restart),
    )
    return SearchNode(*out)


def expand(rules: ResolutionSettings, asked: ExpandRequest, node: SearchNode, *, restart: bool) -> SearchNode:
    """The nodes with the successors of their goals, where asked for.

    Candidates come from the first goal: its facts in ascending order (predicate, first, second), then the
    rules of its predicate in the program's order. A candidate is the rule's body and the remaining goals
    under the substitution, without the ground goals that are facts (the query is none where it is excluded);
    an empty one is True. A candidate with more goals than fit is removed and counted; so is, without
    counting, one that equals an earlier one or, with memory pruning, a visited state, variables renamed. The
    search stops when one more successor than fits is found: that one is cut, and `overflow` says so.

    Behind the others stands the end action, where there is one; where there is no successor, False. A True
    or False state has itself as its only successor. With a `unary_limit`, goals with exactly one successor,
    not counting the end action, give way to it unless it is True. `restart` forgets what was visited before.
    """
    made = rules.program.compiled
    key = (*rules.options, restart)
    if key not in made:
        made[key] = _batched(rules, restart)
    # The native engine has the program's arrays on its own side.
    arrays = () if rules.engine == "native" else rules.program.arrays
    return made[key]((arrays,), asked, node)


def _batched(rules: ResolutionSettings, restart: bool) -> Callable[..., SearchNode]:
    on_native = functools.partial(_native_expand, rules, restart)
    on_xla = functools.partial(xla_resolution.expand, rules, restart)

    def flat(shared: tuple[Any], asked: ExpandRequest, node: SearchNode) -> SearchNode:
        return dispatch(rules.engine, lambda _, *rest: on_native(*rest), on_xla, *shared, asked, node)

    return vmappable_kernel(flat, lambda asked, node: asked.where.shape, constant=(True,))
