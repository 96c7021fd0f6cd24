"""Add samples to a replay buffer of chuk-lazarus, or sample from it."""

import importlib.metadata
import random

from benchmarks.workers import protocol
from benchmarks.workers.chuk_lazarus_batching import register_parent_packages
from benchmarks.workers.replay_samples import make_samples


def main() -> None:
    settings = protocol.read_settings(__doc__)
    register_parent_packages()
    from chuk_lazarus.data.batching import streaming

    def make(**fields):
        return streaming.StreamSample(source=streaming.SampleSource.GYM, **fields)

    capacity, batch_size = settings["capacity"], settings["batch_size"]
    samples = make_samples(make, capacity)
    buffer = streaming.ReplayBuffer(streaming.ReplayBufferConfig(max_size=capacity))
    for sample in samples:
        buffer.add(sample)
    rng = random.Random(0)

    def add():
        # The buffer is full, so each new sample replaces an old one.
        for sample in samples[: settings["num_added"]]:
            buffer.add(sample)

    def draw():
        return buffer.sample(batch_size)

    def draw_difficult():
        # `sample` has no filters; the interface offers a list of all samples that match.
        return rng.choices(buffer.filter_by_difficulty(0.7), k=batch_size)

    run, work = {
        "add": (add, settings["num_added"]),
        "sample": (draw, batch_size),
        "sample-difficult": (draw_difficult, batch_size),
        "snapshot": (buffer.snapshot, 1),
    }[settings["work"]]
    version = importlib.metadata.version("chuk-lazarus")
    protocol.serve(run, work, settings["seconds"], version=version)


if __name__ == "__main__":
    main()
