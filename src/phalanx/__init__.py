"""JAX environments for reasoning, token batches for language models, and training algorithms.

The public names are imported on first use, so that importing the package is fast. Built-in environments are
registered by import path. The class of an environment is imported only when the environment is created.
"""

from phalanx import registry as _registry
from phalanx.lazy_imports import import_lazily

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)

_registry.register(
    "arc-v2", "phalanx.arc.spec:SPEC", "ARC grid puzzles: change the input grid into the output grid"
)
_registry.register(
    "proofs-v1",
    "phalanx.proofs.spec:SPEC",
    "proof search in a knowledge graph: resolve a query, one goal at a time",
)
