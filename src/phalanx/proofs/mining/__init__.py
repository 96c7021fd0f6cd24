"""Rules from triples: mining them, ranking by them, and asking questions that they answer.

Rules as text and files are in `phalanx.proofs.knowledge`; nothing here needs JAX but an embedding beside,
and the path network where there is no compiled extension.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
