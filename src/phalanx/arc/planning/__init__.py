"""Plans for ARC pairs, and demonstrations made from them: the public names.

Tasks that bring shortest solutions of their own are in `phalanx.arc.generators`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
