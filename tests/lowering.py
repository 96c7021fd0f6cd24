"""Lets JAX lower many programs in one MLIR context, where it makes a new one for each.

Making one takes milliseconds, which is most of the time for the small programs that tests are full of.
"""

import threading
from typing import Any

from jax._src.interpreters import mlir

LIFETIME = 250
"""Programs to a context: it keeps the types, constants and places in files of all that it has seen."""

_make_context = mlir.make_ir_context
_here = threading.local()


def share_contexts() -> None:
    """Have every thread use a context again."""
    mlir.make_ir_context = _shared


def _shared() -> Any:
    uses = getattr(_here, "uses", 0)
    if uses % LIFETIME == 0:
        _here.context = _make_context()
    _here.uses = uses + 1
    return _here.context
