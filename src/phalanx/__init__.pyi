# The public names of the package and where each is defined; `__init__.py` loads them on first use.

from .registry import (
    make as make,
    register as register,
    registered_environments as registered_environments,
)
from .text.names import make_text_env as make_text_env
from .training.run import train as train
from .training.trained_policy import load_policy as load_policy

__version__: str
