"""Ranking true triples among corruptions: candidates, scorers, metrics, and a learned combination.

Ranking with a policy that searches is in `phalanx.agents.search`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
