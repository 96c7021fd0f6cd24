"""`IndexManager`: a `ProofVocabulary` with DeepProofLog's attribute names."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int32

from phalanx.kg.atoms import Atom
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.vocabulary import ProofVocabulary


class IndexManager(ProofVocabulary):
    """State indices of predicates, constants and variables under DeepProofLog's names.

    Args:
        data_handler: The predicates and constants.
        padding_atoms: The largest number of goals in a state.
    """

    padding_idx = 0

    def __init__(self, data_handler: KnowledgeBase, padding_atoms: int = 6) -> None:
        if padding_atoms < 1:
            raise ValueError(f"padding_atoms must be at least 1, got {padding_atoms}")
        super().__init__(data_handler, padding_atoms)

    @property
    def padding_atoms(self) -> int:
        """`ProofVocabulary.max_goals`."""
        return self.max_goals

    @property
    def predicate_str2idx(self) -> dict[str, int]:
        """`ProofVocabulary.predicate_indices`."""
        return self.predicate_indices

    @property
    def constant_str2idx(self) -> dict[str, int]:
        """`ProofVocabulary.constant_indices`."""
        return self.constant_indices

    @property
    def predicate_idx2str(self) -> dict[int, str]:
        """`ProofVocabulary.predicate_names`."""
        return self.predicate_names

    @property
    def constant_idx2str(self) -> dict[int, str]:
        """`ProofVocabulary.term_names`."""
        return self.term_names

    @property
    def predicate_no(self) -> int:
        """`ProofVocabulary.num_predicates`; use `num_predicate_embeddings` for the size of a table."""
        return self.num_predicates

    @property
    def constant_no(self) -> int:
        """`ProofVocabulary.num_constants`; use `num_constant_embeddings` for the size of a table."""
        return self.num_constants

    @property
    def true_idx(self) -> int:
        """`ProofVocabulary.true_index`."""
        return self.true_index

    @property
    def false_idx(self) -> int:
        """`ProofVocabulary.false_index`."""
        return self.false_index

    @property
    def end_idx(self) -> int:
        """`ProofVocabulary.end_index`."""
        return self.end_index

    @property
    def runtime_var_start_index(self) -> int:
        """`ProofVocabulary.first_variable`."""
        return self.first_variable

    def encode_atoms(self, atoms: Iterable[Atom]) -> Int32[np.ndarray, "atoms atom"]:
        """`ProofVocabulary.encode`."""
        return self.encode(atoms)
