# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .distributions import MaskedCategorical as MaskedCategorical
