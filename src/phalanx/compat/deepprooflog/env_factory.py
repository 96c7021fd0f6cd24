"""Function that creates training, test and validation environments from the arguments of a script."""

import warnings
from collections.abc import Mapping
from typing import Any

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.compat.deepprooflog.settings import RENAMED_SETTINGS, build_config
from phalanx.kg.kge.embedding import KGE
from phalanx.proofs.config import ProofConfig

_NESTED = {
    "reward_type": ("reward", "type"),
    "train_neg_ratio": ("queries", "negative_ratio"),
}
"""Maps arguments of training scripts to the section and the field of `ProofConfig` that they set."""


def create_environments(
    args: Any,
    dh: DataHandler,
    index_manager: IndexManager,
    *,
    kge_engine: KGE | None = None,
    **settings: Any,
) -> tuple[BatchedVecEnv, BatchedVecEnv, BatchedVecEnv]:
    """Create environments for the training, test and validation queries.

    Without validation queries, the validation environment uses the training queries. Without test queries,
    the test environment uses the same queries as the validation environment.

    Args:
        args: A namespace or mapping with `n_envs` and `n_eval_envs` (batch sizes), `seed`,
            `reward_type`, `train_neg_ratio`, and any field of `ProofConfig`. Arguments that do not concern
            environments, such as a learning rate, are ignored. `use_parallel_envs` is ignored with a warning.
        dh: Facts, rules and queries.
        index_manager: Index manager, which encodes the atoms in states.
        kge_engine: An embedding that can close goals. None means no embedding.
        settings: Additional arguments to `BatchedVecEnv`.
    """
    given = dict(args) if isinstance(args, Mapping) else dict(vars(args))
    known = {*ProofConfig.model_fields, *RENAMED_SETTINGS}
    fields = {name: value for name, value in given.items() if name in known}
    for name, (section, field) in _NESTED.items():
        if name in given:
            fields[section] = {**dict(fields.get(section, {})), field: given[name]}
    if "n_envs" not in given:
        raise TypeError(f"args has no n_envs, the number of environments in a batch; got {given}")
    if given.get("use_parallel_envs"):
        warnings.warn(
            "use_parallel_envs is ignored: a BatchedVecEnv steps all environments in one process",
            UserWarning,
            stacklevel=2,
        )
    batch_size, eval_batch_size = given["n_envs"], given.get("n_eval_envs", given["n_envs"])
    seed, config = int(given.get("seed", 0)), build_config(index_manager, None, fields)
    test = dh.test_queries or dh.valid_queries or dh.train_queries
    valid = dh.valid_queries or dh.train_queries
    shared: dict[str, Any] = dict(
        index_manager=index_manager, data_handler=dh, kge_engine=kge_engine, config=config, **settings
    )
    return (
        BatchedVecEnv(queries=dh.train_queries, batch_size=batch_size, mode="train", seed=seed, **shared),
        BatchedVecEnv(queries=test, batch_size=eval_batch_size, mode="eval", seed=seed + 1, **shared),
        BatchedVecEnv(queries=valid, batch_size=eval_batch_size, mode="eval", seed=seed + 2, **shared),
    )
