# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .config import (
    KGEConfig as KGEConfig,
)
from .files import (
    load_kge as load_kge,
    read_kge_config as read_kge_config,
    read_kge_facts as read_kge_facts,
    save_kge as save_kge,
)
from .scoring import (
    KGE as KGE,
    Validation as Validation,
    calibrated as calibrated,
    kge_scores as kge_scores,
    validate as validate,
)
from .training import (
    KGELearner as KGELearner,
    KGETrainer as KGETrainer,
)
