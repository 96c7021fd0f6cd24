# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .config import (
    ProofConfig as ProofConfig,
    ProofRewardConfig as ProofRewardConfig,
    QueryConfig as QueryConfig,
)
from .env import ProofEnv as ProofEnv, ProofInfo as ProofInfo
from .link_prediction import (
    ProofRanking as ProofRanking,
    RankingConfig as RankingConfig,
    evaluate_proofs as evaluate_proofs,
)
from .network import ProofNetworkConfig as ProofNetworkConfig, create_proof_network as create_proof_network
from .program import Program as Program
from .queries import KnownTriples as KnownTriples, QuerySet as QuerySet, SampledQueries as SampledQueries
from .rendering import (
    ProofFrame as ProofFrame,
    draw_proof as draw_proof,
    draw_state as draw_state,
    drawn_episodes as drawn_episodes,
    proof_frames as proof_frames,
)
from .score_combination import Combination as Combination, fit_combination as fit_combination
from .search.beam import SearchConfig as SearchConfig, search_proofs as search_proofs
from .search.best_first import BestFirstConfig as BestFirstConfig, search_best_first as search_best_first
from .search.heuristics import GuideConfig as GuideConfig
from .state import ProofObservation as ProofObservation, ProofState as ProofState
