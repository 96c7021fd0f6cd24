"""The native engine of resolution: the C++ kernel of `src/native` as a flat-batch JAX call.

Its twin for accelerators is `xla_resolution`; `resolution` picks between them.
"""

import jax
import numpy as np

from phalanx.proofs.nodes import Asked, Node, Rules


def expand(rules: Rules, restart: bool, asked: Asked, node: Node) -> Node:
    """The expanded nodes of a flat batch.

    Nodes are updated in place where XLA allows it, and only the rows that were or are in use are written: the
    padding is many times larger than the successors that there are.
    """
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in node)
    out = jax.ffi.ffi_call(
        "phalanx_proof_expand",
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
    return Node(*out)
