"""Generate puzzles with reasoning-gym, or verify their answers."""

import importlib.metadata
import itertools

import reasoning_gym

from benchmarks.workers import protocol


def main() -> None:
    settings = protocol.read_settings(__doc__)
    batch_size = settings["batch_size"]
    dataset = reasoning_gym.create_dataset(
        settings["dataset"], seed=1, size=10**9, **settings["dataset_settings"]
    )
    numbers = itertools.count()
    items = [dataset[index] for index in range(batch_size if settings["work"] == "verify" else 0)]
    version = importlib.metadata.version("reasoning-gym")

    def generate():
        for _ in range(batch_size):
            if not dataset[next(numbers)]["question"]:
                raise AssertionError("a puzzle has no question")

    def verify():
        for item in items:
            if dataset.score_answer(item["answer"], item) != 1.0:
                raise AssertionError(f"the answer of {settings['dataset']} was rejected")

    run = generate if settings["work"] == "generate" else verify
    protocol.serve(run, batch_size, settings["seconds"], reasoning_gym=version)


if __name__ == "__main__":
    main()
