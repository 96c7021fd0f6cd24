# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .distributions import (
    Distribution as Distribution,
    Key as Key,
    Keys as Keys,
    MaskedCategorical as MaskedCategorical,
)
from .policy_network import PolicyNetwork as PolicyNetwork, select_action as select_action
