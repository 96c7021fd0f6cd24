"""Proof search over a knowledge graph as a reinforcement-learning environment."""

from phalanx.extras import require_jax

require_jax(__name__)

from phalanx.proofs.config import (
    DepthCurriculumStage as DepthCurriculumStage,
    FamilyTreeConfig as FamilyTreeConfig,
    ProofConfig as ProofConfig,
    ProofEvaluationConfig as ProofEvaluationConfig,
    ProofRewardConfig as ProofRewardConfig,
    QueryConfig as QueryConfig,
)
from phalanx.proofs.env import ProofEnvironment as ProofEnvironment, ProofInfo as ProofInfo
from phalanx.proofs.evaluation import (
    ProverEvaluationResult as ProverEvaluationResult,
    evaluate_prover as evaluate_prover,
)
from phalanx.proofs.link_prediction import (
    LinkPredictionConfig as LinkPredictionConfig,
    ProofLinkPredictionTask as ProofLinkPredictionTask,
    evaluate_proofs as evaluate_proofs,
)
from phalanx.proofs.network import ProofNetwork as ProofNetwork, ProofNetworkConfig as ProofNetworkConfig
from phalanx.proofs.program import Program as Program
from phalanx.proofs.queries import (
    NegativeSamplingData as NegativeSamplingData,
    PositiveQueries as PositiveQueries,
    SampledQuery as SampledQuery,
)
from phalanx.proofs.rendering import (
    ProofFrame as ProofFrame,
    draw_state as draw_state,
    proof_frames as proof_frames,
    render_episodes as render_episodes,
)
from phalanx.proofs.score_combination import (
    HybridConfig as HybridConfig,
    LearnedCombination as LearnedCombination,
    fit_combination as fit_combination,
)
from phalanx.proofs.search.beam import (
    BeamSearchConfig as BeamSearchConfig,
    BestFirstTrace as BestFirstTrace,
    SearchResults as SearchResults,
    beam_search as beam_search,
)
from phalanx.proofs.search.best_first import (
    BestFirstConfig as BestFirstConfig,
    Heuristic as Heuristic,
    best_first_search as best_first_search,
)
from phalanx.proofs.search.heuristics import (
    BreadthFirstHeuristic as BreadthFirstHeuristic,
    ConfidenceHeuristic as ConfidenceHeuristic,
    LearnedHeuristic as LearnedHeuristic,
    RandomHeuristic as RandomHeuristic,
    UniformPolicyHeuristic as UniformPolicyHeuristic,
)
from phalanx.proofs.state import (
    ProofObservation as ProofObservation,
    ProofState as ProofState,
    SearchNode as SearchNode,
)
from phalanx.proofs.text import ProofText as ProofText, episode_goals as episode_goals
from phalanx.proofs.vocabulary import ProofVocabulary as ProofVocabulary
