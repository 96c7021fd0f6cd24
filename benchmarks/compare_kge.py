"""Phalanx beside PyKEEN in training an embedding: same model, data, threads, epochs, batch size, optimizer.

Both learn by cross-entropy against all entities. A minibatch of Phalanx has so many triples, each with two
questions, one of PyKEEN so many different questions; hence each has its own learning rate: Phalanx's is
the best of 0.01, 0.003 and 0.001 by validation MRR, PyKEEN's the better of 0.01 and 0.003 on kinship, and
the same on umls. What a training takes does not depend on it.

Each trains in a process of its own, in turns; compiling is part of the time, reading the data and measuring
are not. PyKEEN is installed from PyPI in a virtual environment of its own. One JSON line for each training,
then one for each work that says how many times as fast, by the clock and by processor time, and how far the
MRR on the validation split (filtered, all entities, both sides) is apart.

python benchmarks/compare_kge.py --data data/kg-standard
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from measuring.conditions import conditions
from measuring.peers import RUNNERS, Peer

PYKEEN = Peer("pykeen", "pykeen_runner.py", ("torch==2.13.0", "pykeen==1.11.1"))
PHALANX = Peer("phalanx", "phalanx_kge_runner.py")
SPEED_BAR, MRR_BAR = 3.0, 0.01


@dataclasses.dataclass(frozen=True)
class Work:
    """One training."""

    dataset: str
    model: str
    dim: int
    epochs: int
    batch: int
    rate: float
    """Phalanx's."""
    pykeen_rate: float
    negatives: int
    """0 for all entities (LCWA in PyKEEN); else so many a triple (sLCWA), or shared by a minibatch here."""

    def options(self, peer: Peer, data: pathlib.Path, threads: int, seed: int) -> list[str]:
        """What a runner is told."""
        given = {**dataclasses.asdict(self), "data": data / self.dataset, "threads": threads, "seed": seed}
        given.pop("dataset")
        theirs = given.pop("pykeen_rate")
        given["rate"] = theirs if peer is PYKEEN else self.rate
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


WORKS = (
    Work("kinship", "complex", 256, 20, 256, 0.001, 0.01, 0),
    Work("umls", "distmult", 256, 20, 256, 0.001, 0.01, 0),
)


def trained(peer: Peer, venvs: pathlib.Path, options: list[str]) -> dict[str, Any]:
    """What a runner's process says of its training."""
    command = [str(peer.python(venvs)), str(RUNNERS / peer.runner), *options]
    done = subprocess.run(command, env=peer.environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{peer.runner} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def compared(work: Work, arguments: argparse.Namespace) -> dict[str, Any]:
    """All trainings of a work, in turns, and the verdict."""
    found: dict[str, list[dict[str, Any]]] = {"phalanx": [], "pykeen": []}
    for seed in range(arguments.repeats):
        for peer in (PYKEEN, PHALANX):
            options = work.options(peer, arguments.data, arguments.threads, seed)
            told = trained(peer, arguments.venv_dir, options)
            found[peer.name].append(told)
            record = {"benchmark": "compare_kge", "contender": peer.name, **dataclasses.asdict(work), **told}
            print(json.dumps(record), flush=True)
    return {
        "benchmark": "compare_kge",
        **dataclasses.asdict(work),
        "threads": arguments.threads,
        **verdict(found["phalanx"], found["pykeen"]),
    }


def verdict(phalanx: list[dict[str, Any]], pykeen: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast the median training is, and whether both bars are met."""
    found = {"phalanx": phalanx, "pykeen": pykeen}
    medians = {
        name: {key: statistics.median(one[key] for one in all_) for key in ("seconds", "cpu_seconds", "mrr")}
        for name, all_ in found.items()
    }
    ours, theirs = medians["phalanx"], medians["pykeen"]
    speed, behind = theirs["seconds"] / ours["seconds"], theirs["mrr"] - ours["mrr"]
    return {
        "times_as_fast": round(speed, 2),
        "times_as_fast_cpu": round(theirs["cpu_seconds"] / ours["cpu_seconds"], 2),
        "mrr": {name: round(one["mrr"], 4) for name, one in medians.items()},
        "seconds": {name: round(one["seconds"], 2) for name, one in medians.items()},
        "holds": speed >= SPEED_BAR and behind <= MRR_BAR,
    }


def main() -> None:
    """Print JSON lines; exit code 1 where a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder that holds kinship, ...")
    parser.add_argument("--only", action="append", help="this data set; may be given again")
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each, with other seeds [1]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--venv-dir", type=pathlib.Path, default=pathlib.Path("/tmp/phalanx-peers"))
    arguments = parser.parse_args()
    held = True
    for work in WORKS:
        if not arguments.only or work.dataset in arguments.only:
            record = compared(work, arguments)
            print(json.dumps({**record, **conditions("jax", "numpy")}), flush=True)
            held &= record["holds"]
    sys.exit(not held)


if __name__ == "__main__":
    main()
