"""DeepProofLog's names for settings."""

import difflib
from collections.abc import Mapping
from typing import Any

from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.proofs.config import ProofConfig

RENAMED_SETTINGS: Mapping[str, str] = {
    "padding_atoms": "max_goals",
    "padding_states": "max_actions",
    "max_depth": "max_episode_steps",
    "memory_pruning": "prune_visited",
    "kge_closes_query": "allow_kge_on_query",
    "engine": "backend",
    "depth_limit": "compute_depths_up_to",
    "max_computed_depth": "compute_depths_up_to",
    "max_exact_proof_depth": "compute_depths_up_to",
    "depth_seconds": "depth_computation_seconds",
    "max_depth_seconds": "depth_computation_seconds",
}
"""Maps DeepProofLog's names for settings to fields of `ProofConfig`."""

REPLACEMENTS: Mapping[str, str] = {
    "unification_engine": "engine, which is `native`, `xla` or `auto`",
    "use_exact_memory": "memory_pruning, which is always exact",
    "reward_type": "reward={'type': ...}",
    "train_neg_ratio": "config=ProofConfig(queries={'negative_ratio': ...})",
    "negative_ratio": "config=ProofConfig(queries={'negative_ratio': ...})",
    "corruption_mode": "config=ProofConfig(queries={'negative_ratio': 0}) for no negatives",
    "corruption_scheme": "config=ProofConfig(queries={'corruption': ...}): head, tail, either or both",
    "sampler": "nothing: negatives are sampled as ProofConfig.queries says, and are never known triples",
    "max_arity": "nothing: atoms have two arguments",
    "padding_idx": "nothing: it is index_manager.padding_idx, 0",
    "runtime_var_start_index": "nothing: it is index_manager.runtime_var_start_index",
    "total_vocab_size": "nothing: tables have index_manager.num_predicate_embeddings and "
    "num_constant_embeddings rows",
    "true_pred_idx": "nothing: it is index_manager.true_idx",
    "false_pred_idx": "nothing: it is index_manager.false_idx",
    "end_pred_idx": "nothing: it is index_manager.end_idx",
    "atom_stringifier": "nothing: names come from the index manager",
    "eval_mode": "mode, which is `train` or `eval`",
    "n_envs": "batch_size",
    "num_envs": "batch_size",
    "max_steps": "max_depth",
    "kge_action": "kge_engine, an embedding loaded by load_kge(run)",
    "kge_inference_engine": "kge_engine, an embedding loaded by load_kge(run)",
    "verbose": "nothing: environments print nothing; see `render` and `last_info`",
    "prover_verbose": "nothing: environments print nothing; see `render` and `last_info`",
    "use_parallel_envs": "nothing: a batch steps in one process",
    "parallel_env_start_method": "nothing: a batch steps in one process",
}
"""Arguments of DeepProofLog that do not exist here, and what to use instead."""


def build_config(
    index_manager: IndexManager, config: ProofConfig | None, settings: Mapping[str, Any]
) -> ProofConfig:
    """Return a copy of a config with changed settings. Raises `TypeError` for unknown settings.

    Args:
        index_manager: Index manager, which determines the default for `max_goals`.
        config: Config to copy. If None, the defaults are used.
        settings: Fields of `ProofConfig`, under their own names or under DeepProofLog's.
    """
    available = sorted({*ProofConfig.model_fields, *RENAMED_SETTINGS})
    for name in settings:
        if name not in available:
            similar = difflib.get_close_matches(name, available, n=3)
            hint = f"did you mean {', '.join(similar)}?" if similar else f"available: {', '.join(available)}"
            hint = f"use {REPLACEMENTS[name]}" if name in REPLACEMENTS else hint
            raise TypeError(f"there is no argument {name!r} here; {hint}")
    base = {"max_goals": index_manager.max_goals} if config is None else config.model_dump()
    changed = {RENAMED_SETTINGS.get(name, name): value for name, value in settings.items()}
    built = ProofConfig(**{**base, **changed})
    if built.max_goals > index_manager.max_goals:
        raise ValueError(
            f"states with {built.max_goals} goals need more variables than the index manager has; create it "
            f"with IndexManager(data_handler, padding_atoms={built.max_goals})"
        )
    return built
