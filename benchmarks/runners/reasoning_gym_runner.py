"""reasoning-gym: items of a dataset, each with its question and its answer."""

import argparse
import importlib.metadata
import itertools
import json

from protocol import serve

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    import reasoning_gym

    items = reasoning_gym.create_dataset(arguments.dataset, seed=1, size=10**9, **arguments.settings)
    numbers = itertools.count()

    def call() -> None:
        for _ in range(BATCH):
            assert items[next(numbers)]["question"]

    serve(call, BATCH, arguments.seconds, reasoning_gym=importlib.metadata.version("reasoning-gym"))


if __name__ == "__main__":
    main()
