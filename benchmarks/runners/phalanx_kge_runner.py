"""Phalanx's trainer of embeddings on the work of `compare_kge`; its compilation is part of the time."""

import os
import time

import protocol  # first: it takes standard output for JSON
from kge_work import parse_arguments

arguments = parse_arguments(__doc__)
# Before XLA makes its pool of threads.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])

import jax  # noqa: E402
import numpy as np  # noqa: E402

from phalanx.kg.evaluation import count_ranks, mean_reciprocal_rank  # noqa: E402
from phalanx.kg.kge.models import KGEModelConfig  # noqa: E402
from phalanx.kg.triple_index import TripleIndex  # noqa: E402
from phalanx.training.kge import KGEConfig, KGETrainer  # noqa: E402
from phalanx.training.optimizer import OptimizerConfig  # noqa: E402

config = KGEConfig(
    dataset=str(arguments.data),
    model=KGEModelConfig(name=arguments.model, embedding_dim=arguments.dim),
    num_epochs=arguments.epochs,
    batch_size=arguments.batch,
    optimizer=OptimizerConfig(learning_rate=arguments.rate, lr_schedule="constant", max_grad_norm=None),
    num_negatives=arguments.negatives,
    seed=arguments.seed,
)
trainer = KGETrainer(config)
base = trainer.knowledge_base
worked, began = time.process_time(), time.perf_counter()
state = trainer.init(jax.random.key(0))
for _ in range(arguments.epochs):
    state, result = trainer.update(state)
jax.block_until_ready(state)
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked

train, valid = base.triples("train"), base.triples("valid")
known = TripleIndex(np.concatenate([train, valid]), base.vocabulary.num_entities)
protocol.say(
    event="trained",
    seconds=seconds,
    cpu_seconds=cpu_seconds,
    mrr=mean_reciprocal_rank(count_ranks(state.params, valid, known), "realistic"),
    loss=float(result.metrics["loss"]),
    parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params.model)),
    jax=jax.__version__,
)
