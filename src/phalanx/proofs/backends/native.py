"""Resolution with the C++ kernel, called through `jax.ffi`."""

import jax
import numpy as np

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, SearchNode


def expand(
    config: ProofConfig, program: Program, restart: bool, request: ExpandRequest, node: SearchNode
) -> SearchNode:
    """Expand nodes with a single batch axis; see `phalanx.proofs.backends.expand`.

    Nodes are updated in place if XLA allows it. Only rows that are or were in use are written, because the
    padding is many times larger than the actual successors.
    """
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in node)
    out = jax.ffi.ffi_call(
        "phalanx_proofs_expand",
        results,
        input_output_aliases={len(request) + k: k for k in range(len(node))},
    )(
        *request,
        *node,
        program=np.int64(program.native.key),
        unary_limit=np.int64(config.max_skipped_states),
        end_proof_action=np.bool_(config.end_proof_action),
        memory_pruning=np.bool_(config.prune_visited),
        restart=np.bool_(restart),
    )
    return SearchNode(*out)
