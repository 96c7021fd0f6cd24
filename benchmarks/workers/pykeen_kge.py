"""Trains a knowledge-graph embedding with PyKEEN. Runs in PyKEEN's virtual environment.

All entities are candidates (LCWA), with inverse triples, so that heads and tails are learned. Triples with
the same head and relation share one row of a minibatch, which saves work if there are many such triples.
"""

import functools
import pathlib

from benchmarks.workers import protocol  # isort: skip  # first, because it redirects standard output

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.losses import CrossEntropyLoss
from pykeen.models import ComplEx, DistMult
from pykeen.training import LCWATrainingLoop
from pykeen.triples import TriplesFactory

EPOCHS_PER_RUN = 4
"""Each call of `train` creates its instances again, so several epochs are trained per call."""


def main() -> None:
    settings = protocol.read_settings(__doc__)
    torch.set_num_threads(settings["num_threads"])
    torch.manual_seed(0)
    folder, dim = pathlib.Path(settings["folder"]), settings["embedding_dim"]
    training = TriplesFactory.from_path(folder / "train.txt", create_inverse_triples=True)
    validation = TriplesFactory.from_path(
        folder / "valid.txt", entity_to_id=training.entity_to_id, relation_to_id=training.relation_to_id
    )
    model = {"complex": ComplEx, "distmult": DistMult}[settings["model"]](
        triples_factory=training,
        # A complex number consists of two real numbers.
        embedding_dim=dim // 2 if settings["model"] == "complex" else dim,
        loss=CrossEntropyLoss(),
        random_seed=0,
        # As in Phalanx. With its own default, PyKEEN has a much lower MRR after the same number of epochs.
        entity_initializer=functools.partial(torch.nn.init.normal_, std=dim**-0.5),
        regularizer=None,
    )
    optimizer = torch.optim.Adam(params=model.get_grad_params(), lr=settings["learning_rate"])
    loop = LCWATrainingLoop(model=model, triples_factory=training, optimizer=optimizer)

    def train(num_epochs: int) -> None:
        loop.train(
            triples_factory=training,
            num_epochs=num_epochs,
            batch_size=settings["batch_rows"],
            use_tqdm=False,
            use_tqdm_batch=False,
            pin_memory=False,
        )

    info = {"torch": torch.__version__, "num_threads": torch.get_num_threads()}
    info["num_parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if settings["num_epochs"]:
        train(settings["num_epochs"])
        result = RankBasedEvaluator(filtered=True).evaluate(
            model=model,
            mapped_triples=validation.mapped_triples,
            additional_filter_triples=[training.mapped_triples],
            use_tqdm=False,
            batch_size=256,
        )
        info["valid_mrr"] = result.get_metric("both.realistic.inverse_harmonic_mean_rank")
    epochs_per_run = EPOCHS_PER_RUN if settings["num_epochs"] else 1
    protocol.serve(lambda: train(epochs_per_run), epochs_per_run, settings["seconds"], **info)


if __name__ == "__main__":
    main()
