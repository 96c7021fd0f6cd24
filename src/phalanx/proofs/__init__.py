"""Proofs over knowledge graphs that step in formation: knowledge bases, proof search, embeddings, ranking.

Learning is in `phalanx.agents`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
