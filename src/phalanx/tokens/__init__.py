"""Token batches: lengths, buckets, budgets, packing, plans, fingerprints, batch files and their analysis.

All public names are here; streams of samples that are still being made live in `phalanx.streams`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
