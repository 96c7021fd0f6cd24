# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .config import (
    ProofConfig as ProofConfig,
    ProofRewardConfig as ProofRewardConfig,
    QueryConfig as QueryConfig,
)
from .drawing import (
    ProofFrame as ProofFrame,
    draw_proof as draw_proof,
    draw_state as draw_state,
    drawn_episodes as drawn_episodes,
    proof_frames as proof_frames,
)
from .kge import (
    KGE as KGE,
    KGEConfig as KGEConfig,
    KGETrainer as KGETrainer,
    load_kge as load_kge,
    save_kge as save_kge,
)
from .knowledge import (
    Atom as Atom,
    DataHandler as DataHandler,
    EncodedAtom as EncodedAtom,
    EncodedRule as EncodedRule,
    IndexManager as IndexManager,
    KnowledgeBase as KnowledgeBase,
    Rule as Rule,
    available_knowledge as available_knowledge,
    entailed as entailed,
    generate_family as generate_family,
    parse_atom as parse_atom,
    parse_rule as parse_rule,
    proof_depths as proof_depths,
    proof_rounds as proof_rounds,
    read_knowledge as read_knowledge,
    write_knowledge as write_knowledge,
)
from .mining import (
    Answer as Answer,
    MiningConfig as MiningConfig,
    PathNetwork as PathNetwork,
    PathNetworkConfig as PathNetworkConfig,
    RuleRanking as RuleRanking,
    RuleSet as RuleSet,
    Transfer as Transfer,
    learn_network as learn_network,
    mine as mine,
    rank_by_network as rank_by_network,
    rank_by_rules as rank_by_rules,
    rank_inductive as rank_inductive,
)
from .ranking import (
    Combination as Combination,
    HybridConfig as HybridConfig,
    RankingResult as RankingResult,
    embedding_scorer as embedding_scorer,
    evaluate_ranking as evaluate_ranking,
    exact_scorer as exact_scorer,
    hybrid_scorer as hybrid_scorer,
    make_candidates as make_candidates,
)
from .search import (
    KnownTriples as KnownTriples,
    Program as Program,
    Proof as Proof,
    ProofEnv as ProofEnv,
    ProofInfo as ProofInfo,
    ProofObservation as ProofObservation,
    ProofState as ProofState,
    Prover as Prover,
    Query as Query,
    QuerySet as QuerySet,
    SampledQueries as SampledQueries,
    episode_goals as episode_goals,
    prove as prove,
    read_query as read_query,
)
