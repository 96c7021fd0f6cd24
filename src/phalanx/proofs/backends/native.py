"""Resolution with the C++ kernel, called through `jax.ffi`."""

from typing import Any

import jax
import numpy as np

from phalanx.core.backends import ffi_call
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ExpandSettings, SearchNode


def expand(
    program: Program, settings: ExpandSettings, arrays: Any, request: ExpandRequest, node: SearchNode
) -> SearchNode:
    """Expand nodes with a single batch axis; see `phalanx.proofs.backends.expand`.

    Nodes are updated in place if XLA allows it. Most rows of a node are padding. To save time, the kernel
    only writes rows that contain data before or after the call. `arrays` is ignored, because the kernel has
    its own copy of the program.
    """
    out = ffi_call(
        "phalanx_proofs_expand",
        [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in node],
        (),
        (*request, *node),
        num_aliased=len(node),
        program=np.int64(program.native.key),
        max_skipped_states=np.int64(settings.max_skipped_states),
        end_proof_action=np.bool_(settings.end_proof_action),
        prune_visited=np.bool_(settings.prune_visited),
        clear_visited=np.bool_(settings.clear_visited),
    )
    return SearchNode(*out)
