"""Agents over all 400 training tasks of ARC-AGI-1: one network that is told which task it is, cloned.

It learns on fresh instances of the RE-ARC generators (`scripts/generate_rearc.py` writes them), for so many
minutes, and then answers instances whose inputs it never saw, and the official test pairs. Answers are
painted and handed in in the environment. Beside every figure: what handing in the input gets.

    python benchmarks/arc_tasks.py rearc.npz --cpu-minutes 120 --out runs/arc-tasks --hard full.npz --official

The budget is of wall minutes, of processor minutes (which mean the same on a busy machine), or of both: the
training ends with the first that is used up, and the learning rate falls to zero by then. Ctrl-C and SIGTERM
end it early: what was learned is saved and measured all the same, and `--resume` goes on. One JSON line is
printed for each point of the curve and one at the end; `results.json` in the folder has the table by task.
"""

import argparse
import dataclasses
import functools
import json
import signal
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from phalanx.arc import GridPair, load_tasks
from phalanx.arc.evaluation import canvas_note
from phalanx.arc.networks.transduction import (
    TransductionNetwork,
    TransductionNetworkConfig,
    predict_output,
    transduction_loss,
)
from phalanx.arc.pair_dataset import GridPairDataset, load_pair_dataset
from phalanx.arc.submission import submit_grids
from phalanx.io.atomic import atomic_write

SIDES = {8: 64, 10: 64, 12: 48, 14: 48, 20: 24, 30: 8}
"""Canvases, and how many instances of each are learned together."""
POOL = 4096
ANSWERED = 64
"""Inputs that are answered together."""
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))
WARM_UP = 4000
"""Samples until the learning rate is reached."""
AVERAGED = 0.999
"""How much of the averaged weights, which are those that answer, stays at each step."""


class Training:
    """The network, its optimizer, and how well each task goes."""

    def __init__(
        self,
        instances: GridPairDataset,
        config: TransductionNetworkConfig,
        seed: int,
        rate: float,
        wide: tuple[GridPairDataset, float] | None = None,
        unseen: frozenset[bytes] = frozenset(),
    ) -> None:
        """`wide` are larger instances and their share of what is learned; `unseen` inputs are left out."""
        self.rate = rate
        self.instances = instances if wide is None else joined(instances, wide[0])
        self.wide_share = 0.0 if wide is None else wide[1]
        self.rng = np.random.default_rng(seed)
        self.network = TransductionNetwork(config, len(instances.names), key=jax.random.key(seed))
        self.average = self.network
        self.moments = OPTIMIZER.init(self.network)
        self.solved = np.zeros(len(instances.names))
        self.seconds, self.cpu_seconds, self.samples = 0.0, 0.0, 0
        kept = self.instances.held_out_mask()
        self.held = np.flatnonzero(kept[: len(instances)])
        if unseen:
            kept |= [input_of(self.instances.pair(row)) in unseen for row in range(len(kept))]
        larger = np.arange(len(kept)) >= len(instances)
        self.by_task, self.wide_by_task = (
            [np.flatnonzero(rows & (self.instances.task == n)) for n in range(len(instances.names))]
            for rows in (~kept & ~larger, ~kept & larger)
        )
        largest = self.instances.sizes.max(axis=1)
        self.side = np.select([largest <= side for side in SIDES], list(SIDES), 30)
        self.queues: dict[int, list[int]] = {side: [] for side in SIDES}

    def learn(self, progress: float) -> None:
        """One gradient step, on a batch of the canvas that has most waiting."""
        full = [side for side, size in SIDES.items() if len(self.queues[side]) >= size]
        if not full:
            self._draw()
            return
        side = max(full, key=lambda one: len(self.queues[one]) / SIDES[one])
        rows = np.array([self.queues[side].pop() for _ in range(SIDES[side])])
        rate = (
            self.rate
            * min(1.0, (1 + self.samples) / WARM_UP)
            * (0.5 + 0.5 * np.cos(np.pi * min(1.0, progress)))
        )
        batch = (*self.instances.pad(rows, side), self.instances.task[rows].astype(np.int32))
        # Young weights are not averaged over as many steps.
        kept = min(AVERAGED, self.samples / (self.samples + 2000))
        self.network, self.average, self.moments, right = gradient_step(
            self.network, self.average, self.moments, batch, np.float32(rate), np.float32(kept)
        )
        for task, exact in zip(batch[2].tolist(), np.asarray(right).tolist(), strict=True):
            self.solved[task] += 0.05 * (exact - self.solved[task])
        self.samples += len(rows)

    def progress(self, limits: tuple[float | None, float | None]) -> float:
        """The greater share of what is used up of so many wall and processor minutes."""
        used = (self.seconds, self.cpu_seconds)
        return max(now / (60 * limit) for now, limit in zip(used, limits, strict=True) if limit is not None)

    def _draw(self) -> None:
        """Instances to learn from: most of tasks that are solved now and then, fewer of the others."""
        weights = 0.1 + 0.25 * (1 - self.solved) + 2 * self.solved * (1 - self.solved)
        weights[[len(rows) == 0 for rows in self.by_task]] = 0
        for task in self.rng.choice(len(weights), POOL, p=weights / weights.sum()):
            some = self.by_task[task]
            if self.rng.random() < self.wide_share and len(self.wide_by_task[task]):
                some = self.wide_by_task[task]
            row = int(self.rng.choice(some))
            self.queues[int(self.side[row])].append(row)
        for queue in self.queues.values():
            self.rng.shuffle(queue)

    def state(self) -> Any:
        numbers = (self.solved, np.array([self.seconds, self.cpu_seconds, float(self.samples)]))
        return self.network, self.average, self.moments, *numbers

    def save(self, path: Path) -> None:
        with atomic_write(path) as file:
            eqx.tree_serialise_leaves(file, self.state())

    def restore(self, path: Path) -> None:
        with path.open("rb") as file:
            found = eqx.tree_deserialise_leaves(file, self.state())
        self.network, self.average, self.moments, self.solved, numbers = found
        self.seconds, self.cpu_seconds, self.samples = float(numbers[0]), float(numbers[1]), int(numbers[2])
        self.rng = np.random.default_rng((1, self.samples))


@eqx.filter_jit
def gradient_step(network: Any, average: Any, moments: Any, batch: Any, rate: Any, kept: Any) -> Any:
    """Network, averaged network and moments after a step, and which answers were right before it."""

    def loss(network: TransductionNetwork) -> Any:
        losses, right = jax.vmap(transduction_loss, (None, 0, 0, 0))(network, *batch)
        return jnp.mean(losses), right

    (_, right), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(network)
    changes, moments = OPTIMIZER.update(gradient, moments)
    network = jax.tree.map(lambda leaf, change: leaf - rate * change, network, changes)
    average = jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, average, network)
    return network, average, moments, right


@eqx.filter_jit
def _answers(network: TransductionNetwork, grids: Any, tasks: Any) -> Any:
    return jax.vmap(predict_output, (None, 0, 0))(network, grids, tasks)


def answers(network: TransductionNetwork, pairs: list[GridPair], tasks: list[int]) -> np.ndarray:
    """On the full canvas, so that nothing about an answer's size is told."""
    grids = on_canvas([pair.input for pair in pairs])
    found = []
    for first in range(0, len(pairs), ANSWERED):
        rows = np.arange(first, first + ANSWERED) % len(pairs)
        found.append(np.asarray(_answers(network, grids[rows], np.array(tasks, np.int32)[rows])))
    return np.concatenate(found)[: len(pairs)]


def on_canvas(grids: list[np.ndarray]) -> np.ndarray:
    canvases = np.full((len(grids), 30, 30), -1, np.int8)
    for canvas, grid in zip(canvases, grids, strict=True):
        canvas[: grid.shape[0], : grid.shape[1]] = grid
    return canvases


def input_of(pair: GridPair) -> bytes:
    """What tells an input from all others."""
    return bytes(pair.input.shape) + pair.input.tobytes()


def joined(first: GridPairDataset, second: GridPairDataset) -> GridPairDataset:
    """The pairs of two files of the same tasks."""
    both = ((first.task, second.task), (first.sizes, second.sizes), (first.cells, second.cells))
    return GridPairDataset(first.names, *(np.concatenate(parts) for parts in both))


def some_of_each(instances: GridPairDataset, rows: np.ndarray, most: int) -> tuple[list[GridPair], list[int]]:
    """Different pairs of each task, at most so many."""
    pairs: list[GridPair] = []
    tasks: list[int] = []
    for task in range(len(instances.names)):
        seen: dict[bytes, GridPair] = {}
        for row in rows[instances.task[rows] == task]:
            if len(seen) < most:
                pair = instances.pair(int(row))
                seen.setdefault(input_of(pair), pair)
        pairs += seen.values()
        tasks += [task] * len(seen)
    return pairs, tasks


def official(names: tuple[str, ...]) -> tuple[list[GridPair], list[int]]:
    """The test pairs of ARC-AGI-1's training tasks."""
    every = {task.id: task for task in load_tasks("arc-agi-1", "training")}
    print(json.dumps({"official": canvas_note(every.values(), (30, 30))}))
    found = [(pair, n) for n, name in enumerate(names) if name in every for pair in every[name].tests]
    return [pair for pair, _ in found], [task for _, task in found]


@dataclasses.dataclass
class Examination:
    """Pairs of tasks to be answered, and what handing their inputs in gets."""

    pairs: list[GridPair]
    tasks: list[int]
    num_tasks: int

    @functools.cached_property
    def count(self) -> np.ndarray:
        return np.bincount(self.tasks, minlength=self.num_tasks)

    @functools.cached_property
    def copy_input(self) -> dict[str, Any]:
        return self._told(on_canvas([pair.input for pair in self.pairs]))

    def measured(self, network: TransductionNetwork) -> dict[str, Any]:
        """Right answers by task, of the network and of handing the input in."""
        return {
            "network": self._told(answers(network, self.pairs, self.tasks)),
            "copy_input": self.copy_input,
            "never_handing_in": 0,
            "tasks": int((self.count > 0).sum()),
            "answers": len(self.pairs),
            "count_by_task": self.count.tolist(),
        }

    def _told(self, guesses: np.ndarray) -> dict[str, Any]:
        solved = submit_grids(self.pairs, guesses)
        right = np.bincount(self.tasks, weights=solved, minlength=self.num_tasks).astype(int)
        share, there = right / np.maximum(self.count, 1), self.count > 0
        return {
            "answers_right": round(float(right.sum() / self.count.sum()), 4),
            "tasks_with_one_right": int((right > 0).sum()),
            "tasks_at_least_half_right": int(((share >= 0.5) & there).sum()),
            "tasks_at_least_eight_tenths_right": int(((share >= 0.8) & there).sum()),
            "tasks_all_right": int(((share == 1) & there).sum()),
            "by_task": right.tolist(),
        }


def without_tables(result: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_tables(value) if isinstance(value, dict) else value
        for name, value in result.items()
        if not name.endswith("by_task")
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("instances", type=Path)
    parser.add_argument("--minutes", type=float, help="Wall minutes of training, evaluations left out.")
    parser.add_argument("--cpu-minutes", type=float, help="Processor minutes, of all threads together.")
    parser.add_argument("--points", type=int, default=24, help="Points of the curve.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hard", type=Path, help="Instances of another difficulty, to answer at the end.")
    parser.add_argument("--wide", type=Path, help="Larger instances, to learn from as well.")
    parser.add_argument("--wide-share", type=float, default=0.15, help="Their share of all samples.")
    parser.add_argument("--official", action="store_true", help="Answer the official test pairs at the end.")
    parser.add_argument("--held-out", type=int, default=10, help="Held-out instances of each task.")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    chosen = parser.parse_args()
    limits = chosen.minutes, chosen.cpu_minutes
    if limits == (None, None):
        parser.error("give --minutes, --cpu-minutes or both")
    checkpoint, curve = chosen.out / "checkpoint.eqx", chosen.out / "curve.jsonl"
    if checkpoint.exists() and not chosen.resume:
        parser.error(f"{chosen.out} has a checkpoint: give --resume, or another --out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    instances = load_pair_dataset(chosen.instances)
    sets = {"official_tests": official(instances.names)} if chosen.official else {}
    others = {path: load_pair_dataset(path) for path in (chosen.hard, chosen.wide) if path is not None}
    for path, other in others.items():
        if other.names != instances.names:
            parser.error(f"{path} has other tasks than {chosen.instances}")
    if chosen.hard is not None:
        hard = others[chosen.hard]
        sets["hard"] = some_of_each(hard, np.arange(len(hard)), chosen.held_out)
    unseen = frozenset(input_of(pair) for pairs, _ in sets.values() for pair in pairs)
    wide = None if chosen.wide is None else (others[chosen.wide], chosen.wide_share)
    config = TransductionNetworkConfig(hidden_dim=chosen.width, num_layers=chosen.depth)
    training = Training(instances, config, chosen.seed, chosen.learning_rate, wide, unseen)
    if chosen.resume and checkpoint.exists():
        training.restore(checkpoint)
    stopped: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, _: stopped.append(number))
    count = len(instances.names)
    few = Examination(*some_of_each(instances, training.held, 2), count)
    while training.progress(limits) < 1 and not stopped:
        point = (int(training.progress(limits) * chosen.points) + 1) / chosen.points
        while training.progress(limits) < point and not stopped:
            began, busy = time.perf_counter(), time.process_time()
            training.learn(training.progress(limits))
            training.seconds += time.perf_counter() - began
            training.cpu_seconds += time.process_time() - busy
        training.save(checkpoint)
        result = without_tables(few.measured(training.average))
        line = {
            "minutes": round(training.seconds / 60, 2),
            "cpu_minutes": round(training.cpu_seconds / 60, 2),
            "samples": training.samples,
            "learning": round(float(training.solved.mean()), 4),
            **result,
        }
        print(json.dumps(line), flush=True)
        with curve.open("a") as file:
            file.write(json.dumps(line) + "\n")
    sets = {"fresh": some_of_each(instances, training.held, chosen.held_out), **sets}
    results = {name: Examination(*some, count).measured(training.average) for name, some in sets.items()}
    facts = {
        "minutes": round(training.seconds / 60, 2),
        "cpu_minutes": round(training.cpu_seconds / 60, 2),
        "samples": training.samples,
        "instances": len(training.instances),
        "network": config.model_dump(),
        "seed": chosen.seed,
    }
    table = {
        name: {kind: [r["network"]["by_task"][n], r["count_by_task"][n]] for kind, r in results.items()}
        for n, name in enumerate(instances.names)
    }
    with atomic_write(chosen.out / "results.json", "w") as file:
        json.dump({**facts, **without_tables(results), "right_of_all_by_task": table}, file, indent=1)
    print(json.dumps({**facts, **without_tables(results)}), flush=True)


if __name__ == "__main__":
    main()
