"""Time per epoch of training knowledge-graph embeddings, compared with PyKEEN.

Both libraries train the same model with the same dimension on the same dataset, with cross-entropy over all
entities, Adam and the same number of rows per minibatch. A row asks for the tail or the head of a triple.
Each library has its own learning rate, which was chosen on the validation queries. The MRR on the validation
queries after the same number of epochs shows whether the models are trained equally well.
"""

import os
from typing import Any

import jax
import numpy as np

from benchmarks.datasets import DATA
from benchmarks.peers import Peer
from benchmarks.suite import Suite, Workload
from phalanx.kg.evaluation import count_ranks, mean_reciprocal_rank
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.triple_index import TripleIndex
from phalanx.training.kge import KGEConfig, KGETrainer
from phalanx.training.optimizer import OptimizerConfig

PYKEEN = Peer("pykeen", ("torch==2.13.0", "pykeen==1.11.1"))

suite = Suite("kge", unit="s", packages=("jax", "jaxlib"))


def _prepare(
    dataset: str, model: str, embedding_dim: int, batch_rows: int, learning_rate: float, num_epochs: int
) -> Workload:
    config = KGEConfig(
        dataset=dataset if dataset == "generated" else str(DATA / "kg-standard" / dataset),
        model=KGEModelConfig(name=model, embedding_dim=embedding_dim),
        # The schedule is constant, so a larger number of epochs changes nothing.
        num_epochs=10**6,
        # A triple is two rows: one for its tail and one for its head.
        batch_size=batch_rows // 2,
        optimizer=OptimizerConfig(learning_rate=learning_rate, lr_schedule="constant", max_grad_norm=None),
        num_negatives=0,
    )
    trainer = KGETrainer(config)
    state = [trainer.init(jax.random.key(0))]

    def run_epoch() -> None:
        state[0], _ = trainer.update(state[0])
        jax.block_until_ready(state[0])

    info: dict[str, Any] = {
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(state[0].params.model))
    }
    if num_epochs:
        for _ in range(num_epochs):
            run_epoch()
        data = trainer.knowledge_base
        train, valid = data.triples("train"), data.triples("valid")
        known = TripleIndex(np.concatenate([train, valid]), data.vocabulary.num_entities)
        info["valid_mrr"] = mean_reciprocal_rank(count_ranks(state[0].params, valid, known), "realistic")
    return Workload(run_epoch, 1, info)


for _dataset, _model, _dim, _rows, _rates, _num_epochs in (
    ("kinship", "complex", 256, 512, (0.001, 0.01), 20),
    ("umls", "distmult", 256, 512, (0.001, 0.01), 20),
    # One epoch takes about a minute, so the MRR is not computed.
    ("fb15k-237", "complex", 128, 1024, (0.001, 0.001), 0),
):
    _common = {"model": _model, "embedding_dim": _dim, "batch_rows": _rows, "num_epochs": _num_epochs}
    suite.case(
        f"phalanx-{_dataset}",
        group=_dataset,
        smoke={"dataset": "generated", "embedding_dim": 8, "num_epochs": min(_num_epochs, 1)},
        dataset=_dataset,
        learning_rate=_rates[0],
        **_common,
    )(_prepare)
    suite.peer_case(
        f"pykeen-{_dataset}",
        PYKEEN,
        "pykeen_kge",
        group=_dataset,
        system="PyKEEN 1.11.1",
        folder=str(DATA / "kg-standard" / _dataset),
        learning_rate=_rates[1],
        num_threads=len(os.sched_getaffinity(0)),
        **_common,
    )
