"""Lets JAX lower many programs in one MLIR context, where it makes a new one for each.

Making one takes milliseconds, which is most of the time for the small programs that tests are full of.
"""

import threading
from typing import Any

LIFETIME = 250
"""Programs to a context: it keeps the types, constants and places in files of all that it has seen."""


def share_contexts() -> None:
    """Have every thread use a context again."""
    from jax._src.interpreters import mlir

    make, here = mlir.make_ir_context, threading.local()

    def shared() -> Any:
        uses = getattr(here, "uses", 0)
        if uses % LIFETIME == 0:
            here.context = make()
        here.uses = uses + 1
        return here.context

    mlir.make_ir_context = shared
