# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .candidates import (
    Candidates as Candidates,
    Metrics as Metrics,
    make_candidates as make_candidates,
)
from .combination import (
    Combination as Combination,
    fit_combination as fit_combination,
)
from .rank import (
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
