"""Work of one process in `benchmarks/speed/distributed.py`.

The CPU affinity is set before JAX is imported, because JAX creates as many threads as the process may use
cores.
"""

import json
import os
import sys

_SETTINGS = json.loads(sys.argv[1])
os.sched_setaffinity(0, _SETTINGS["cores"])


def arc_steps(settings):
    """Step ARC environments on the native backend."""
    from benchmarks.speed.arc_env import RandomRollout

    rollout = RandomRollout(num_envs=settings["num_envs"], num_steps=settings["num_steps"])
    return rollout.run, settings["num_envs"] * settings["num_steps"]


def token_lengths(settings):
    """Tokenize a text file with a number of worker processes, and count the tokens of each text."""
    from phalanx.data import iter_lengths, load_tokenizer

    tokenizer = load_tokenizer(settings["tokenizer"])

    def run():
        for _ in iter_lengths(settings["path"], tokenizer, workers=settings["num_workers"]):
            pass

    return run, settings["num_bytes"] / 1e6


def main() -> None:
    from benchmarks.workers import protocol

    run, work = globals()[_SETTINGS["work"]](_SETTINGS)
    protocol.serve(run, work, _SETTINGS["seconds"])


if __name__ == "__main__":
    main()
