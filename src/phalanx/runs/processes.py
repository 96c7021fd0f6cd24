"""The processes of one training, on one machine or on many: joining, waiting and agreeing.

How work is spread over their devices is in `phalanx.agents.ppo.parallel`.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree


def connect(coordinator: str, num_processes: int, process_id: int) -> None:
    """Join the other processes of a training; must come before anything else that JAX does."""
    if not 0 <= process_id < num_processes:
        raise ValueError(f"the process id must be between 0 and {num_processes - 1}, got {process_id}")
    jax.distributed.initialize(coordinator, num_processes, process_id)


def is_first_process() -> bool:
    """Whether this process writes the run's files."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Go on only when every process has come here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def any_process(flags: Sequence[bool]) -> list[bool]:
    """Which flags are up in at least one process; all of them must ask at the same time."""
    if jax.process_count() == 1:
        return list(flags)
    from jax.experimental import multihost_utils

    return list(map(bool, multihost_utils.process_allgather(np.asarray(flags)).any(axis=0)))


def local(tree: PyTree) -> PyTree:
    """This process's copy of arrays that are the same on every device."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)
