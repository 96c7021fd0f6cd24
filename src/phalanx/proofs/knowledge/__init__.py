"""Knowledge bases: atoms and rules, the files they are in, numbers for names, and what follows from them.

Proof search is in `phalanx.proofs.search`; nothing here needs JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
