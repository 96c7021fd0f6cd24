# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .config import KGEConfig as KGEConfig
from .embedding import (
    KGE as KGE,
    Validation as Validation,
    calibrate as calibrate,
    kge_scores as kge_scores,
    validate as validate,
)
from .files import (
    load_kge as load_kge,
    read_kge_config as read_kge_config,
    read_kge_facts as read_kge_facts,
    save_kge as save_kge,
)
