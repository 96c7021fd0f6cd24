"""The ground that every domain stands on: environments in batches, configs, spaces, and how to check them.

Nothing here knows a domain; ARC, proofs and tokens live in their own packages.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
