"""`phalanx play`: a person solves tasks in the terminal, and saves what they did as demonstrations.

The command is in `command`, the game in `session`; only `application`, `panes` and `grids` need Textual.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
