# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .config import (
    ProofConfig as ProofConfig,
    ProofRewardConfig as ProofRewardConfig,
    QueryConfig as QueryConfig,
)
from .env import ProofEnvironment as ProofEnvironment, ProofInfo as ProofInfo
from .link_prediction import (
    LinkPredictionConfig as LinkPredictionConfig,
    ProofLinkPrediction as ProofLinkPrediction,
    evaluate_proofs as evaluate_proofs,
)
from .network import ProofNetworkConfig as ProofNetworkConfig, create_proof_network as create_proof_network
from .program import Program as Program
from .queries import (
    NegativeSampler as NegativeSampler,
    QuerySet as QuerySet,
    SampledQueries as SampledQueries,
)
from .rendering import (
    ProofFrame as ProofFrame,
    draw_proof as draw_proof,
    draw_state as draw_state,
    drawn_episodes as drawn_episodes,
    proof_frames as proof_frames,
)
from .score_combination import ScoreCombination as ScoreCombination, fit_combination as fit_combination
from .search.beam import BeamSearchConfig as BeamSearchConfig, beam_search as beam_search
from .search.best_first import BestFirstConfig as BestFirstConfig, best_first_search as best_first_search
from .search.heuristics import HeuristicConfig as HeuristicConfig
from .state import ProofObservation as ProofObservation, ProofState as ProofState
