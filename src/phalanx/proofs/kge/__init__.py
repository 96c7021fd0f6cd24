"""Knowledge-graph embeddings: TransE, DistMult, ComplEx, RotatE and TuckER, their training, scores and files.

Training as a run, with logs and checkpoints, is in `phalanx.agents`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
