# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .config import (
    ProofConfig as ProofConfig,
    ProofRewardConfig as ProofRewardConfig,
    QueryConfig as QueryConfig,
)
from .knowledge.atoms import Atom as Atom, Rule as Rule, parse_atom as parse_atom, parse_rule as parse_rule
from .knowledge.chaining import (
    entailed as entailed,
    proof_depths as proof_depths,
    proof_rounds as proof_rounds,
)
from .knowledge.data import DataHandler as DataHandler, available_knowledge as available_knowledge
from .knowledge.files import (
    KnowledgeBase as KnowledgeBase,
    read_knowledge as read_knowledge,
    write_knowledge as write_knowledge,
)
from .knowledge.generated import generate_family as generate_family
from .knowledge.vocabulary import (
    EncodedAtom as EncodedAtom,
    EncodedRule as EncodedRule,
    IndexManager as IndexManager,
)
from .search.environment import ProofEnv as ProofEnv, ProofInfo as ProofInfo
from .search.program import Program as Program
from .search.queries import KnownTriples as KnownTriples, QuerySet as QuerySet
from .search.state import ProofObservation as ProofObservation, ProofState as ProofState
