# The public names of the package, and where each is defined; `__init__.py` loads them when first asked for.

from .agents.policies import load_policy as load_policy
from .core.registry import (
    make as make,
    register as register,
    registered_environments as registered_environments,
)

__version__: str
