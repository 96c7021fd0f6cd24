"""Write scalars with PyTorch's TensorBoard `SummaryWriter`."""

import itertools
import tempfile

import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.workers import protocol


def main() -> None:
    settings = protocol.read_settings(__doc__)
    writer = SummaryWriter(tempfile.mkdtemp(), max_queue=settings["max_queue"])
    names = [f"metric_{index}" for index in range(settings["num_metrics"])]
    steps = itertools.count()

    def run() -> None:
        for _ in range(settings["num_records"]):
            step = next(steps)
            for index, name in enumerate(names):
                writer.add_scalar(name, step + index / 7, step)
        writer.flush()

    protocol.serve(run, settings["num_records"], settings["seconds"], torch=torch.__version__)


if __name__ == "__main__":
    main()
