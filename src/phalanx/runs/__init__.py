"""Runs: one loop around every training, with its folder, journal, evaluations, checkpoints and signals.

What is trained, and how, is an `Algorithm`; those of Phalanx are in `phalanx.agents`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
