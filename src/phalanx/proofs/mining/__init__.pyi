# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .asking import (
    Answer as Answer,
    Asker as Asker,
)
from .config import (
    MiningConfig as MiningConfig,
)
from .miner import (
    mine as mine,
)
from .network import (
    PathNetwork as PathNetwork,
    PathNetworkConfig as PathNetworkConfig,
    learn_network as learn_network,
    rank_by_network as rank_by_network,
)
from .questions import (
    RuleRanking as RuleRanking,
)
from .rank import (
    RuleRanker as RuleRanker,
    rank_by_rules as rank_by_rules,
)
from .ruleset import (
    RuleSet as RuleSet,
)
from .transfer import (
    Transfer as Transfer,
    rank_inductive as rank_inductive,
)
