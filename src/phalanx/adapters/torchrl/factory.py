"""The three environments of a training script from its arguments: to train, to evaluate and for callbacks.

One environment by itself is made by `BatchedVecEnv`.
"""

from collections.abc import Mapping
from typing import Any

from phalanx.adapters.torchrl.proofs import BatchedVecEnv
from phalanx.adapters.torchrl.queries import OTHER_NAMES, proof_config
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.kge.scoring import KGE
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.vocabulary import IndexManager

_NESTED = {
    "reward_type": ("reward", "type"),
    "train_neg_ratio": ("queries", "negative_ratio"),
}
"""Arguments of such scripts that are a level further down in `ProofConfig`."""


def create_environments(
    args: Any,
    dh: DataHandler,
    index_manager: IndexManager,
    *,
    kge_engine: KGE | None = None,
    **settings: Any,
) -> tuple[BatchedVecEnv, BatchedVecEnv, BatchedVecEnv]:
    """Environments over the training, the test and the validation queries.

    `args` (a namespace or a mapping) has `n_envs` and `n_eval_envs`, numbers of environments that step
    together or `auto`; `seed`; and any field of `ProofConfig`, as well as `reward_type` and
    `train_neg_ratio`. What is of no concern to environments, such as a learning rate, is passed over. Other
    `settings` are those of `BatchedVecEnv`. Without test or validation queries those of the split before
    serve.
    """
    given = dict(args) if isinstance(args, Mapping) else dict(vars(args))
    fields = {name: value for name, value in given.items() if name in ProofConfig.model_fields}
    for name, (room, field) in _NESTED.items():
        if name in given:
            fields[room] = {**dict(fields.get(room, {})), field: given[name]}
    if "n_envs" not in given:
        raise TypeError(f"args has no n_envs, the number of environments that step together; got {given}")
    # Asked for by a name that nothing here has, and on purpose: to pass over it would change the training.
    if given.get("use_parallel_envs"):
        raise TypeError(f"args has use_parallel_envs, for which there is {OTHER_NAMES['use_parallel_envs']}")
    batch, eval_batch = given["n_envs"], given.get("n_eval_envs", given["n_envs"])
    seed, config = int(given.get("seed", 0)), proof_config(index_manager, None, fields)
    test = dh.test_queries or dh.valid_queries or dh.train_queries

    def made(queries: Any, size: Any, mode: str, seed: int) -> BatchedVecEnv:
        return BatchedVecEnv(
            index_manager=index_manager,
            data_handler=dh,
            queries=queries,
            batch_size=size,
            mode=mode,
            kge_engine=kge_engine,
            seed=seed,
            config=config,
            **settings,
        )

    return (
        made(dh.train_queries, batch, "train", seed),
        made(test, eval_batch, "eval", seed + 1),
        made(dh.valid_queries or dh.train_queries, eval_batch, "eval", seed + 2),
    )
