# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .algorithm import (
    Algorithm as Algorithm,
    CheckpointConfig as CheckpointConfig,
    EvaluationConfig as EvaluationConfig,
    Outcome as Outcome,
    Progress as Progress,
    Report as Report,
    RunConfig as RunConfig,
)
from .checkpoints import Checkpoints as Checkpoints
from .folder import (
    files_only as files_only,
    next_free as next_free,
    read_config as read_config,
    read_facts as read_facts,
)
from .loading import (
    initial_policy as initial_policy,
    load_algorithm as load_algorithm,
    load_policy as load_policy,
)
from .run import Run as Run, train as train
from .weights import Origin as Origin
