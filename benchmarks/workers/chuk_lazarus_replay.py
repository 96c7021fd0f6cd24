"""Add samples to a replay buffer of chuk-lazarus, or sample from it."""

import importlib.metadata

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

    def add():
        # The buffer is full, so each new sample replaces an old one.
        for sample in samples[: settings["num_added"]]:
            buffer.add(sample)

    def draw():
        return buffer.sample(batch_size)

    run, work = {
        "add": (add, settings["num_added"]),
        "sample": (draw, batch_size),
    }[settings["work"]]
    version = importlib.metadata.version("chuk-lazarus")
    protocol.serve(run, work, settings["seconds"], version=version)


if __name__ == "__main__":
    main()
