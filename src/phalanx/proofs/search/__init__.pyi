# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .environment import (
    ProofEnv as ProofEnv,
    ProofInfo as ProofInfo,
)
from .program import (
    Program as Program,
)
from .proof_tree import (
    Proof as Proof,
)
from .proving import (
    Prover as Prover,
    Query as Query,
    episode_goals as episode_goals,
    prove as prove,
    read_query as read_query,
)
from .queries import (
    KnownTriples as KnownTriples,
    QuerySet as QuerySet,
    SampledQueries as SampledQueries,
)
from .state import (
    ProofObservation as ProofObservation,
    ProofState as ProofState,
)
