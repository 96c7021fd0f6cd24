# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .env import (
    TextEnvironment as TextEnvironment,
    TextInfo as TextInfo,
    TextRewards as TextRewards,
    TextStep as TextStep,
    TextVectorEnvironment as TextVectorEnvironment,
    TextVectorStep as TextVectorStep,
)
from .env_spec import text_env_factory as text_env_factory
from .wrapper import TextVectorWrapper as TextVectorWrapper, TextWrapper as TextWrapper
