"""`IndexManager`: a `ProofVocabulary` with DeepProofLog's attribute names."""

from phalanx.compat.renamed import alias
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.vocabulary import ProofVocabulary


class IndexManager(ProofVocabulary):
    """Integer encoding of proof states, with DeepProofLog's attribute names.

    Args:
        data_handler: Knowledge base that provides the predicates and constants.
        padding_atoms: Maximum number of goals in a state.
    """

    padding_idx = 0

    def __init__(self, data_handler: KnowledgeBase, padding_atoms: int = 6) -> None:
        if padding_atoms < 1:
            raise ValueError(f"padding_atoms must be at least 1, got {padding_atoms}")
        super().__init__(data_handler, padding_atoms)

    padding_atoms = alias("max_goals")
    predicate_str2idx = alias("predicate_indices")
    constant_str2idx = alias("constant_indices")
    predicate_idx2str = alias("predicate_names")
    constant_idx2str = alias("term_names")
    # The size of an embedding table is num_predicate_embeddings or num_constant_embeddings.
    predicate_no = alias("num_predicates")
    constant_no = alias("num_constants")
    true_idx = alias("true_index")
    false_idx = alias("false_index")
    end_idx = alias("end_index")
    runtime_var_start_index = alias("first_variable")

    encode_atoms = ProofVocabulary.encode
