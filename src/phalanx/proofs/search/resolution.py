"""Resolution of a batch of goals: the engine that expands them, and the C++ kernel as a JAX call.

The kernel is in `src/native`; its twin for accelerators is in `xla_resolution`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.custom_batching import custom_vmap

from phalanx.core import engine as native
from phalanx.core.batching import spread_over_batch
from phalanx.proofs.config import Engine
from phalanx.proofs.search import xla_resolution
from phalanx.proofs.search.state import ExpandRequest, Node, ResolutionSettings


def _native_expand(rules: ResolutionSettings, restart: bool, asked: ExpandRequest, node: Node) -> Node:
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


def resolve_engine(engine: Engine, why_not: str) -> Engine:
    """The engine decided; `why_not` says why the native one cannot serve, if it cannot.

    `auto` stays only where several kinds of device are present.
    """
    if engine == "native" and why_not:
        raise RuntimeError(f"engine 'native' was asked for, but {why_not}")
    if engine != "auto":
        return engine
    if why_not:
        return "xla"
    return "native" if native.only_cpu() else "auto"


def expand(rules: ResolutionSettings, asked: ExpandRequest, node: Node, *, restart: bool) -> Node:
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
    return made[key](rules.program.arrays if rules.engine != "native" else (), asked, node)


def _batched(rules: ResolutionSettings, restart: bool) -> Callable[..., Node]:
    # Compiled as one also where the caller compiles nothing.
    @jax.jit
    def flat(arrays: Any, asked: ExpandRequest, node: Node) -> Node:
        arguments = (asked, node)
        on_native = functools.partial(_native_expand, rules, restart)
        on_xla = functools.partial(xla_resolution.expand, rules, restart)
        if rules.engine == "native":
            out = on_native(*arguments)
        elif rules.engine == "xla":
            out = on_xla(arrays, *arguments)
        else:
            out = jax.lax.platform_dependent(
                arrays, *arguments, cpu=lambda _, *rest: on_native(*rest), default=on_xla
            )
        return out

    @custom_vmap
    def run(arrays: Any, asked: ExpandRequest, node: Node) -> Node:
        shape = asked.where.shape
        size = math.prod(shape)
        flattened = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(shape) :]), (asked, node))
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), flat(arrays, *flattened))

    @run.def_vmap
    def _(
        axis_size: int, in_batched: Any, arrays: Any, asked: ExpandRequest, node: Node
    ) -> tuple[Node, Node]:
        result = run(arrays, *spread_over_batch((asked, node), tuple(in_batched[1:]), axis_size))
        return result, jax.tree.map(lambda _: True, result)

    return run
