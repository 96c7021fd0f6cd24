"""JAX environments for reasoning, token batches for language models, and training algorithms.

The public names are imported on first use, so that importing the package is fast. Built-in environments are
registered by import path. The class of an environment is imported only when the environment is created.
"""

from phalanx import registry as _registry
from phalanx.lazy_imports import import_lazily

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)

_registry.register(
    "arc-v2",
    "phalanx.arc.env:ArcEnvironment",
    "ARC grid puzzles: change the input grid into the output grid",
    report_panel=("browser_policy.json", "phalanx.arc.browser.report_panel:load_agent_panel"),
)
_registry.register(
    "proofs-v1",
    "phalanx.proofs.env:ProofEnvironment",
    "proof search in a knowledge graph: resolve a query, one goal at a time",
)
_registry.register(
    "puzzle_server-v1",
    "phalanx.puzzles.server_client.env:PuzzleServerEnvironment.create",
    "games from a puzzle server",
    settings=("game", "difficulty"),
    interface="text",
    vector_entry_point="phalanx.puzzles.server_client.env:PuzzleServerVectorEnvironment",
)
_registry.register_group(
    "puzzles",
    members="phalanx.puzzles.kinds:KINDS",
    entry_point="phalanx.puzzles.env:PuzzleEnvironment",
    settings=("difficulty", "turns"),
    vector_entry_point="phalanx.puzzles.env:PuzzleVectorEnvironment",
)
