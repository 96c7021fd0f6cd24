"""Train a knowledge-graph embedding with PyKEEN.

Setting `loop` selects PyKEEN's training loop:
    symmetric: `SymmetricLCWATrainingLoop`. As in Phalanx, each triple is two rows, one for its head and one
        for its tail, and each row is compared with all entities.
    lcwa: `LCWATrainingLoop`, PyKEEN's usual loop for such losses, with inverse triples, so that heads and
        tails are learned. Triples with the same head and relation share one row, which is less work.

The data loader is created once, and the model and the optimizer are kept between calls. The number of threads
is the faster one of one thread and all cores.
"""

import functools
import pathlib

from benchmarks.workers import protocol  # isort: skip  # first, because it redirects standard output

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.losses import CrossEntropyLoss
from pykeen.models import ComplEx, DistMult
from pykeen.training import LCWATrainingLoop, SymmetricLCWATrainingLoop
from pykeen.triples import TriplesFactory

EPOCHS_PER_RUN = 4
"""Several epochs are trained per call, because each call of PyKEEN's `train` has some overhead."""


def main() -> None:
    settings = protocol.read_settings(__doc__)
    torch.manual_seed(0)
    folder, dim, is_lcwa = (
        pathlib.Path(settings["folder"]),
        settings["embedding_dim"],
        settings["loop"] == "lcwa",
    )
    training = TriplesFactory.from_path(folder / "train.txt", create_inverse_triples=is_lcwa)
    validation = TriplesFactory.from_path(
        folder / "valid.txt", entity_to_id=training.entity_to_id, relation_to_id=training.relation_to_id
    )
    is_complex = settings["model"] == "complex"
    model = (ComplEx if is_complex else DistMult)(
        triples_factory=training,
        # A complex number consists of two real numbers.
        embedding_dim=dim // 2 if is_complex else dim,
        loss=CrossEntropyLoss(),
        random_seed=0,
        # As in Phalanx. With its own default, PyKEEN has a much lower MRR after the same number of epochs.
        entity_initializer=functools.partial(torch.nn.init.normal_, std=dim**-0.5),
        regularizer=None,
        # By default, DistMult normalizes all entities after each step, which Phalanx does not do.
        **({} if is_complex else {"entity_constrainer": None}),
    )
    optimizer = torch.optim.Adam(params=model.get_grad_params(), lr=settings["learning_rate"])
    loop_type = LCWATrainingLoop if is_lcwa else SymmetricLCWATrainingLoop
    loop = loop_type(model=model, triples_factory=training, optimizer=optimizer)
    create, loaders = loop._create_training_data_loader, []

    def create_once(*args, **kwargs):
        if not loaders:
            loaders.append(create(*args, **kwargs))
        return loaders[0]

    loop._create_training_data_loader = create_once
    num_trained = 0

    def train(num_epochs: int) -> None:
        nonlocal num_trained
        loop.train(
            triples_factory=training,
            # The total number, including the epochs of earlier calls.
            num_epochs=num_trained + num_epochs,
            batch_size=settings["batch_rows"] if is_lcwa else settings["batch_rows"] // 2,
            continue_training=num_trained > 0,
            use_tqdm=False,
            use_tqdm_batch=False,
            pin_memory=False,
        )
        num_trained += num_epochs

    info = {"torch": torch.__version__, "num_training_triples": training.num_triples}
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
        times = {}
        for num_threads in (1, settings["num_cores"]):
            torch.set_num_threads(num_threads)
            times[num_threads] = protocol.measure(lambda: train(EPOCHS_PER_RUN), 1)[0]
        torch.set_num_threads(min(times, key=times.get))
    else:
        # A single epoch takes long enough to keep all cores busy.
        torch.set_num_threads(settings["num_cores"])
    info["num_threads"] = torch.get_num_threads()
    epochs_per_run = EPOCHS_PER_RUN if settings["num_epochs"] else 1
    work = epochs_per_run * training.num_triples
    protocol.serve(lambda: train(epochs_per_run), work, settings["seconds"], **info)


if __name__ == "__main__":
    main()
