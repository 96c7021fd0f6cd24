# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .env import (
    TextBatch as TextBatch,
    TextBatchStep as TextBatchStep,
    TextEnvironment as TextEnvironment,
    TextInfo as TextInfo,
    TextRewards as TextRewards,
    TextStep as TextStep,
)
from .wrapper import EnvironmentText as EnvironmentText, EnvironmentTextBatch as EnvironmentTextBatch
