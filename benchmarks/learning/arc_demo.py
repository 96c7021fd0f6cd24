"""`phalanx demo`: success rates on held-out tasks, compared with policies and rules that learn nothing.

The policy observes the test input but not the demonstrations, and the grids are at most 4x4. To show how
much the training contributes, the suite also evaluates a short hand-written rule, and counts the held-out
inputs that equal an input of the training up to rotation, reflection and a permutation of the colors.
"""

import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.peers import REPOSITORY
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.arc import ArcEnvironment, ArcTask
from phalanx.arc.evaluation import copy_solves, held_out_environment
from phalanx.arc.spec import ArcTasks
from phalanx.arc.submission import submit_random
from phalanx.arc.tasks import Grid
from phalanx.training.bc import BCConfig

suite = Suite("arc_demo", unit="%", packages=("jax", "jaxlib", "numpy"))

RUNS = REPOSITORY / "out" / "benchmarks" / "arc_demo"
SEEDS = (0, 1, 2)
GRAY = 5
SMOKE_SETTINGS = (
    "num_updates=1",
    "num_envs=8",
    "minibatch_size=16",
    "env.dataset.num_generated_tasks=8",
    "env.dataset.max_grid_height=3",
    "env.dataset.max_grid_width=3",
    "evaluation.num_generated_tasks=8",
    "logging.sample_frequency=0",
    "network.kind=conv",
    "network.hidden_dim=4",
    "network.num_layers=1",
)


@suite.experiment("training")
def training(smoke: bool) -> Iterator[Measurement]:
    """Run `phalanx demo` once per seed, and evaluate the baselines on the same held-out tasks."""
    settings = SMOKE_SETTINGS if smoke else ()
    seeds = SEEDS[:1] if smoke else SEEDS
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) if smoke else RUNS
        runs = [train(seed, settings, folder / f"seed-{seed}") for seed in seeds]
    config = BCConfig.load("arc", list(settings))
    tasks = list(held_out_environment(config.env.settings, config.evaluation).task_buffer)
    facts = {
        "seeds": list(seeds),
        "num_tasks": len(tasks),
        "max_grid_size": list(config.env.settings.grid_shape),
    }

    def rate(id: str, values: Sequence[float], **settings: Any) -> Measurement:
        return Measurement(id, "phalanx", "%", [100 * value for value in values], (), {**facts, **settings})

    parameters = {"num_parameters": runs[0]["num_parameters"], "updates": runs[0]["updates"]}
    yield rate("before-training", [run["before"] for run in runs], **parameters)
    yield rate("after-training", [run["after"] for run in runs], **parameters)
    for family in runs[0]["after_by_family"]:
        values = [run["after_by_family"][family] for run in runs]
        yield rate(f"after-training-{family}", values, num_tasks=sum(t.family == family for t in tasks))
    yield Measurement(
        "cpu-time", "phalanx", "s", [run["cpu_seconds"] for run in runs], (), {**facts, **parameters}
    )
    yield rate("copy-input", [np.mean([copy_solves(task) for task in tasks])])
    environment = held_out_environment(config.env.settings, config.evaluation)
    random = [submit_random(environment, seed).num_solved / len(tasks) for seed in seeds]
    yield rate("random-actions", random)
    yield rate("hand-written-rule", [np.mean([rule_solves(task) for task in tasks])])
    forms = [canonical_form(pair.input) for task in tasks for pair in task.tests]
    known = [training_inputs(config, seed) for seed in seeds]
    similar = [float(sum(form in inputs for form in forms)) for inputs in known]
    yield Measurement("inputs-similar-to-training", "phalanx", "tasks", similar, (), facts)


def train(seed: int, settings: Sequence[str], folder: pathlib.Path) -> dict[str, Any]:
    """Run `phalanx demo`, or read the results of an earlier run, and return its success rates and times."""
    times = folder.with_suffix(".json")
    if not times.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "phalanx", "demo", "--seed", str(seed), "--out", str(folder)]
        before = cpu_seconds_of_children()
        subprocess.run([*command, *settings], check=True, stdout=sys.stderr)
        times.write_text(json.dumps({"cpu_seconds": cpu_seconds_of_children() - before}))
    run = json.loads((folder / "run.json").read_text()) | json.loads(times.read_text())
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    greedy = [line for line in lines if line["mode"] == "greedy"]
    return {
        **run,
        "before": greedy[0]["success_rate"],
        "after": greedy[-1]["success_rate"],
        "after_by_family": {name: group["success_rate"] for name, group in greedy[-1]["groups"].items()},
    }


def cpu_seconds_of_children() -> float:
    """Return the CPU time of all child processes that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def training_inputs(config: BCConfig, seed: int) -> set[bytes]:
    """Return the canonical forms of all inputs that a run with the given seed trains on."""
    source = ArcTasks(ArcEnvironment.create(config.env.settings), seed)
    environments = map(source.training, range(config.num_updates))
    tasks = (task for environment in environments for task in environment.task_buffer)
    return {canonical_form(pair.input) for task in tasks for pair in task.demos}


def canonical_form(grid: Grid) -> bytes:
    """Return bytes that are equal for grids that differ only by symmetry and a permutation of the colors.

    Black (0) is the background of most families, so it is not permuted.
    """
    forms = []
    for flipped in (grid, grid.T):
        for turns in range(4):
            turned = np.rot90(flipped, turns)
            numbers = {0: 0}
            cells = [numbers.setdefault(color, len(numbers)) for color in turned.ravel().tolist()]
            forms.append(bytes(turned.shape) + bytes(cells))
    return min(forms)


def rule_solves(task: ArcTask) -> bool:
    """Return whether `hand_written_rule` solves all test pairs of a task."""
    return all(np.array_equal(hand_written_rule(pair.input), pair.output) for pair in task.tests)


def hand_written_rule(grid: Grid) -> Grid:
    """Predict the output from the input alone, with one rule for each of the four families."""
    output = grid.copy()
    has_black = (grid == 0).any()
    walls = [(grid == GRAY).all(axis=axis)[1:-1] for axis in (0, 1)]
    if has_black and walls[0].any() != walls[1].any():  # fill_rooms: A gray line separates two rooms.
        turned, wall = (output, walls[0].argmax()) if walls[0].any() else (output.T, walls[1].argmax())
        for room in (turned[:, : wall + 1], turned[:, wall + 2 :]):
            room[:] = room.max()
    elif has_black and len(np.unique(grid)) == 2:  # fill_enclosed: Fill the inside of the ring.
        rows, columns = np.nonzero(grid)
        output[rows.min() + 1 : rows.max(), columns.min() + 1 : columns.max()] = grid.max()
    elif has_black:  # complete_symmetry: Copy missing cells from the mirror image.
        for axis in (0, 1):
            output = np.where(grid == 0, np.flip(grid, axis), grid)
            if np.array_equal(output, np.flip(output, axis)):
                break
    else:  # denoise: Remove the rarest color that leaves a single color in each row, or in each column.
        for noise in sorted(np.unique(grid), key=lambda color: (grid == color).sum()):
            for turned, result in ((grid, output), (grid.T, output.T)):
                rows = [set(row.tolist()) - {noise} for row in turned]
                if all(len(colors) == 1 for colors in rows):
                    result[:] = np.array([list(colors) for colors in rows])
                    return output
    return output
