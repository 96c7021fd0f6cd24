# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .atoms import Atom as Atom, Rule as Rule, parse_atom as parse_atom, parse_rule as parse_rule
from .candidates import (
    CandidateLists as CandidateLists,
    RankMetrics as RankMetrics,
    make_candidates as make_candidates,
)
from .chaining import chaining_rounds as chaining_rounds, entail as entail, proof_depths as proof_depths
from .datasets import (
    DATASETS as DATASETS,
    KGDatasetSource as KGDatasetSource,
    download_dataset as download_dataset,
)
from .evaluation import (
    Embedding as Embedding,
    HybridConfig as HybridConfig,
    LinkPredictionResult as LinkPredictionResult,
    Score as Score,
    TripleScores as TripleScores,
    embedding_scorer as embedding_scorer,
    evaluate_ranking as evaluate_ranking,
    exact_scorer as exact_scorer,
    hybrid_scorer as hybrid_scorer,
)
from .family_generator import generate_family as generate_family
from .formats import (
    KnowledgeBase as KnowledgeBase,
    read_knowledge as read_knowledge,
    write_knowledge as write_knowledge,
)
from .knowledge_base import DataHandler as DataHandler, available_knowledge as available_knowledge
from .path_network import (
    PathNetwork as PathNetwork,
    PathNetworkConfig as PathNetworkConfig,
    fit_path_network as fit_path_network,
    rank_by_network as rank_by_network,
)
from .proof_tree import Proof as Proof
from .proving import (
    ProofQuery as ProofQuery,
    Prover as Prover,
    episode_goals as episode_goals,
    parse_query as parse_query,
    prove as prove,
)
from .query_answering import QueryAnswer as QueryAnswer, QueryAnswerer as QueryAnswerer
from .questions import RuleRankingResult as RuleRankingResult
from .rules.config import MiningConfig as MiningConfig
from .rules.inductive import InductiveResult as InductiveResult, evaluate_inductive as evaluate_inductive
from .rules.mining import mine_rules as mine_rules
from .rules.predictor import RulePredictor as RulePredictor, rank_by_rules as rank_by_rules
from .rules.ruleset import RuleSet as RuleSet
from .vocabulary import EncodedAtom as EncodedAtom, EncodedRule as EncodedRule, IndexManager as IndexManager
