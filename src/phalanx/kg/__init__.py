"""Knowledge graphs: facts, rules, exact proofs, rule mining and link prediction.

This package does not depend on the reinforcement learning code. Only `phalanx.kg.kge` imports JAX.
"""

from phalanx.kg.atoms import Atom as Atom, Rule as Rule, parse_atom as parse_atom, parse_rule as parse_rule
from phalanx.kg.chaining import chaining_rounds as chaining_rounds, entail as entail
from phalanx.kg.datasets import DATASETS as DATASETS, download_dataset as download_dataset
from phalanx.kg.evaluation import (
    DEFAULT_TIES as DEFAULT_TIES,
    LinkPredictionResult as LinkPredictionResult,
    LinkPredictor as LinkPredictor,
    RankMetrics as RankMetrics,
    TieRule as TieRule,
    TripleScorer as TripleScorer,
    TripleScores as TripleScores,
    evaluate_candidates as evaluate_candidates,
    evaluate_link_prediction as evaluate_link_prediction,
    make_candidates as make_candidates,
)
from phalanx.kg.family_generator import generate_family as generate_family
from phalanx.kg.knowledge_base import KnowledgeBase as KnowledgeBase
from phalanx.kg.path_network import (
    PathNetwork as PathNetwork,
    PathNetworkConfig as PathNetworkConfig,
    fit_path_network as fit_path_network,
)
from phalanx.kg.predictor_ensemble import Ensemble as Ensemble
from phalanx.kg.proof_depths import compute_proof_depths as compute_proof_depths
from phalanx.kg.proof_tree import Proof as Proof
from phalanx.kg.proving import (
    ProofQuery as ProofQuery,
    Prover as Prover,
    explain_failure as explain_failure,
    parse_query as parse_query,
    prove as prove,
)
from phalanx.kg.query_answering import (
    QueryAnswer as QueryAnswer,
    QueryAnswerer as QueryAnswerer,
    answer_query as answer_query,
)
from phalanx.kg.rendering import draw_proof as draw_proof
from phalanx.kg.rules.inductive import (
    InductiveResult as InductiveResult,
    evaluate_inductive as evaluate_inductive,
)
from phalanx.kg.rules.mining import MiningConfig as MiningConfig, mine_rules as mine_rules
from phalanx.kg.rules.predictor import AGGREGATORS as AGGREGATORS, RulePredictor as RulePredictor
from phalanx.kg.rules.ruleset import RuleSet as RuleSet
from phalanx.kg.time_limit import TimeLimit as TimeLimit, TimeLimitExceeded as TimeLimitExceeded
from phalanx.kg.vocabulary import Vocabulary as Vocabulary
