# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .atoms import Atom as Atom, Rule as Rule, parse_atom as parse_atom, parse_rule as parse_rule
from .candidates import Candidates as Candidates, Metrics as Metrics, make_candidates as make_candidates
from .chaining import entailed as entailed, proof_depths as proof_depths, proof_rounds as proof_rounds
from .datasets import SOURCES as SOURCES, Source as Source, fetch_knowledge as fetch_knowledge
from .evaluation import (
    Embedding as Embedding,
    HybridConfig as HybridConfig,
    RankingResult as RankingResult,
    Score as Score,
    Scores as Scores,
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
    learn_network as learn_network,
    rank_by_network as rank_by_network,
)
from .proof_tree import Proof as Proof
from .proving import (
    Prover as Prover,
    Query as Query,
    episode_goals as episode_goals,
    prove as prove,
    read_query as read_query,
)
from .query_answering import Answer as Answer, Asker as Asker
from .questions import RuleRanking as RuleRanking
from .rules.config import MiningConfig as MiningConfig
from .rules.inductive import Transfer as Transfer, rank_inductive as rank_inductive
from .rules.mining import mine as mine
from .rules.predictor import RuleRanker as RuleRanker, rank_by_rules as rank_by_rules
from .rules.ruleset import RuleSet as RuleSet
from .vocabulary import EncodedAtom as EncodedAtom, EncodedRule as EncodedRule, IndexManager as IndexManager
