"""Training triples per second of knowledge-graph embeddings, compared with PyKEEN.

Both libraries train the same model, with the same number of parameters, on the same dataset in float32, with
softmax cross-entropy over all entities, Adam without regularization, and the same number of rows per
minibatch. In Phalanx and in PyKEEN's `SymmetricLCWATrainingLoop`, each triple is two rows, one for its tail
and one for its head, and each row is compared with all entities. One difference remains: Phalanx masks the
other known answers of a row, which is additional work. PyKEEN's `LCWATrainingLoop` does less work per triple,
because triples with the same head and relation share one row; it is measured as well, because it is PyKEEN's
usual loop for losses over all entities. It needs inverse relations, so it has more parameters.

The setting `valid_mrr`, the MRR on the validation queries after the same number of epochs, shows whether the
models are trained equally well. Phalanx and the symmetric loop use the same learning rate; the LCWA loop has
its own, because its loss differs.
"""

import os
from typing import Any

import jax
import numpy as np

from benchmarks.datasets import DATA
from benchmarks.peers import PYKEEN
from benchmarks.suite import Suite, Workload
from phalanx.kg.evaluation import count_ranks, mean_reciprocal_rank
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.triple_index import TripleIndex
from phalanx.training.kge import KGEConfig, KGETrainer
from phalanx.training.optimizer import OptimizerConfig

suite = Suite("kge", unit="triples/s", packages=("jax", "jaxlib"))


def _prepare(
    dataset: str, model: str, embedding_dim: int, batch_rows: int, learning_rate: float, num_epochs: int
) -> Workload:
    config = KGEConfig(
        dataset=dataset if dataset == "generated" else str(DATA / "kg-standard" / dataset),
        model=KGEModelConfig(name=model, embedding_dim=embedding_dim, reciprocal=False),
        # The schedule is constant, so a larger number of epochs changes nothing.
        num_epochs=10**6,
        # A triple is two rows: one for its tail and one for its head.
        batch_size=batch_rows // 2,
        optimizer=OptimizerConfig(learning_rate=learning_rate, lr_schedule="constant", max_grad_norm=None),
        num_negatives_per_batch=0,
    )
    trainer = KGETrainer(config)
    state = [trainer.init(jax.random.key(0))]

    def run_epoch() -> None:
        state[0], _ = trainer.update(state[0])
        jax.block_until_ready(state[0])

    info: dict[str, Any] = {
        "num_training_triples": len(trainer.train),
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(state[0].params.model)),
    }
    if num_epochs:
        for _ in range(num_epochs):
            run_epoch()
        data = trainer.knowledge_base
        train, valid = data.triples("train"), data.triples("valid")
        known = TripleIndex(np.concatenate([train, valid]), data.vocabulary.num_entities)
        info["valid_mrr"] = mean_reciprocal_rank(count_ranks(state[0].params, valid, known), "realistic")
    return Workload(run_epoch, len(trainer.train), info)


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
    for _loop, _name, _rate in (
        ("symmetric", "SymmetricLCWATrainingLoop", _rates[0]),
        ("lcwa", "LCWATrainingLoop", _rates[1]),
    ):
        suite.peer_case(
            f"pykeen-{_loop}-{_dataset}",
            PYKEEN,
            "pykeen_kge",
            group=_dataset,
            system=f"PyKEEN 1.11.1, {_name}",
            loop=_loop,
            folder=str(DATA / "kg-standard" / _dataset),
            learning_rate=_rate,
            num_cores=len(os.sched_getaffinity(0)),
            **_common,
        )
