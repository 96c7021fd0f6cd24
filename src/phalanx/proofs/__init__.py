"""Proofs over knowledge graphs that step in formation: knowledge bases, resolution, the proof environment.

Learning is in `phalanx.agents`.
"""

from phalanx.proofs.atoms import Atom, Rule, parse_atom, parse_rule
from phalanx.proofs.chaining import entailed, proof_depths, proof_rounds
from phalanx.proofs.config import ProofConfig, ProofRewardConfig, QueryConfig
from phalanx.proofs.data import DataHandler, available_knowledge
from phalanx.proofs.environment import ProofEnv, ProofInfo
from phalanx.proofs.generated import generate_family
from phalanx.proofs.kg_files import KnowledgeBase, read_knowledge, write_knowledge
from phalanx.proofs.negatives import KnownTriples
from phalanx.proofs.program import Program
from phalanx.proofs.queries import QuerySet
from phalanx.proofs.state import ProofObservation, ProofState
from phalanx.proofs.vocabulary import EncodedAtom, EncodedRule, IndexManager

__all__ = [
    "Atom",
    "DataHandler",
    "EncodedAtom",
    "EncodedRule",
    "IndexManager",
    "KnowledgeBase",
    "KnownTriples",
    "Program",
    "ProofConfig",
    "ProofEnv",
    "ProofInfo",
    "ProofObservation",
    "ProofRewardConfig",
    "ProofState",
    "QueryConfig",
    "QuerySet",
    "Rule",
    "available_knowledge",
    "entailed",
    "generate_family",
    "parse_atom",
    "parse_rule",
    "proof_depths",
    "proof_rounds",
    "read_knowledge",
    "write_knowledge",
]
