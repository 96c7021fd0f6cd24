"""PyKEEN on the work of `compare_kge`: all entities as candidates (LCWA), or some (sLCWA)."""

import functools
import time

import protocol  # first: it takes standard output for JSON
import torch
from kge_work import parse_arguments
from pykeen.evaluation import RankBasedEvaluator
from pykeen.losses import CrossEntropyLoss
from pykeen.models import ComplEx, DistMult, TransE
from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
from pykeen.triples import TriplesFactory

arguments = parse_arguments(__doc__)
torch.set_num_threads(arguments.threads)
torch.manual_seed(arguments.seed)
training = TriplesFactory.from_path(arguments.data / "train.txt", create_inverse_triples=True)
validation = TriplesFactory.from_path(
    arguments.data / "valid.txt",
    entity_to_id=training.entity_to_id,
    relation_to_id=training.relation_to_id,
)
kind = {"complex": ComplEx, "distmult": DistMult, "transe": TransE}[arguments.model]
# A complex number is two real ones.
dim = arguments.dim // 2 if arguments.model == "complex" else arguments.dim

worked, began = time.process_time(), time.perf_counter()
model = kind(
    triples_factory=training,
    embedding_dim=dim,
    loss=CrossEntropyLoss(),
    random_seed=arguments.seed,
    # As Phalanx begins, which serves PyKEEN as well: by its own default it ranks far worse after few epochs.
    entity_initializer=functools.partial(torch.nn.init.normal_, std=arguments.dim**-0.5),
    **({} if arguments.model == "transe" else {"regularizer": None}),
)
optimizer = torch.optim.Adam(params=model.get_grad_params(), lr=arguments.rate)
shared = {"model": model, "triples_factory": training, "optimizer": optimizer}
if arguments.negatives:
    loop = SLCWATrainingLoop(
        **shared, negative_sampler="basic", negative_sampler_kwargs={"num_negs_per_pos": arguments.negatives}
    )
else:
    loop = LCWATrainingLoop(**shared)
losses = loop.train(
    triples_factory=training,
    num_epochs=arguments.epochs,
    batch_size=arguments.batch,
    use_tqdm=False,
    use_tqdm_batch=False,
    pin_memory=False,
)
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked

found = RankBasedEvaluator(filtered=True).evaluate(
    model=model,
    mapped_triples=validation.mapped_triples,
    additional_filter_triples=[training.mapped_triples],
    use_tqdm=False,
    batch_size=256,
)
protocol.say(
    event="trained",
    seconds=seconds,
    cpu_seconds=cpu_seconds,
    mrr=found.get_metric("both.realistic.inverse_harmonic_mean_rank"),
    loss=losses[-1],
    parameters=sum(parameter.numel() for parameter in model.parameters()),
    torch=torch.__version__,
)
