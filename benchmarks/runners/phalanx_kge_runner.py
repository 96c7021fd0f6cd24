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

from phalanx.kg.kge import KGEConfig  # noqa: E402
from phalanx.kg.kge.embedding import validate  # noqa: E402
from phalanx.training import KGETrainer  # noqa: E402
from phalanx.training.kge_training import KGEData  # noqa: E402

data = KGEData.read(str(arguments.data))
numbers = data.index_manager
config = KGEConfig(
    model=arguments.model,
    dim=arguments.dim,
    epochs=arguments.epochs,
    batch_size=arguments.batch,
    learning_rate=arguments.rate,
    schedule="constant",
    negatives=arguments.negatives,
    seed=arguments.seed,
)
worked, began = time.process_time(), time.perf_counter()
trainer = KGETrainer(config, data.train, numbers.num_predicates, numbers.num_constants)
learner = trainer.start()
for _ in range(arguments.epochs):
    learner, loss = trainer.run_epoch(learner)
jax.block_until_ready(learner)
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked

known = np.concatenate([data.train, data.valid])
protocol.say(
    event="trained",
    seconds=seconds,
    cpu_seconds=cpu_seconds,
    mrr=validate(learner.params, data.valid, known).mrr,
    loss=float(loss),
    parameters=sum(leaf.size for leaf in jax.tree.leaves(learner.params.model)),
    jax=jax.__version__,
)
