"""Throughput of ARC environments: one environment, batches, and the effect of each optimization.

Other benchmarks are suites; see `python -m benchmarks --list`. This script can be run by its path.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax

if not __package__:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.plots import plot
from benchmarks.speed.arc_env import RandomRolloutRunner
from benchmarks.workers.arc_task import checkerboard_task
from benchmarks.workers.protocol import measure
from phalanx.arc import (
    ArcConfig,
    ArcState,
    ArcTask,
    EpisodeConfig,
    Operation,
    PointAction,
    TaskBuffer,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    create_point_action,
    load_tasks,
)
from phalanx.native import is_native_available, native_unavailable_reason

BENCHMARK_CONFIG: dict[str, Any] = {
    "single_env_steps": 100_000,
    "batch_sizes": [1, 10, 100, 1_000, 5_000, 10_000],
    "batch_steps": 10_000,
    "datasets": ["mini_arc", "arc_agi_1", "arc_agi_2"],
    "hardware": ["CPU", "GPU", "TPU"],
}
QUICK_CONFIG = BENCHMARK_CONFIG | {"single_env_steps": 500, "batch_sizes": [1, 10, 100], "batch_steps": 64}
RESULTS = pathlib.Path("out/benchmarks/simple_benchmark")

_TASKS = TaskBuffer.from_tasks([ArcTask.from_dict(checkerboard_task(30), "checkerboard")])


def create_test_config(backend: str = "auto") -> ArcConfig:
    """Return a config with point actions on a 30x30 canvas, whose episodes do not end."""
    return ArcConfig(episode=EpisodeConfig(max_episode_steps=10**9), backend=backend)


def create_test_state(config: ArcConfig, tasks: TaskBuffer = _TASKS) -> ArcState:
    """Return the initial state of an episode."""
    return arc_reset(jax.random.PRNGKey(0), config, tasks)[0]


def create_test_action() -> PointAction:
    """Return a flood fill near the center."""
    return create_point_action(Operation.FLOOD_FILL_3, 14, 15)


def create_batch_states(batch_size: int, config: ArcConfig, tasks: TaskBuffer = _TASKS) -> ArcState:
    """Return the initial states of a batch of episodes."""
    return batch_reset(jax.random.split(jax.random.PRNGKey(0), batch_size), config, tasks)[0]


def create_batch_actions(batch_size: int) -> PointAction:
    """Return a batch of actions with different operations and cells, without submissions."""
    numbers = jax.numpy.arange(batch_size)
    return create_point_action(numbers % 34, numbers * 7 % 30, numbers * 11 % 30)


def benchmark_single_env(
    num_steps: int = 10_000, config: ArcConfig | None = None, tasks: TaskBuffer = _TASKS
) -> float:
    """Return the steps per second of one environment that is stepped from Python."""
    config = config or create_test_config()
    state, action = create_test_state(config, tasks), create_test_action()
    jax.block_until_ready(arc_step(state, action, config))
    start = time.perf_counter()
    for _ in range(num_steps):
        state, _, reward, _, _ = arc_step(state, action, config)
        jax.block_until_ready(reward)
    return num_steps / (time.perf_counter() - start)


def benchmark_batch_env(
    batch_size: int = 100,
    num_steps: int = 1_000,
    config: ArcConfig | None = None,
    *,
    donate: bool = False,
    tasks: TaskBuffer = _TASKS,
) -> float:
    """Return the steps per second of a batch of environments that is stepped from Python."""
    config = config or create_test_config()
    states, actions = create_batch_states(batch_size, config, tasks), create_batch_actions(batch_size)
    states, *_ = jax.block_until_ready(batch_step(states, actions, config, donate=donate))
    start = time.perf_counter()
    for _ in range(num_steps):
        states, _, rewards, _, _ = batch_step(states, actions, config, donate=donate)
        jax.block_until_ready(rewards)
    return batch_size * num_steps / (time.perf_counter() - start)


def run_performance_comparison(quick: bool = False) -> dict[int, float]:
    """Compare one environment with batches. Returns the steps per second by batch size."""
    rates = {1: benchmark_single_env(500 if quick else 10_000)}
    print(f"single environment: {rates[1]:,.0f} steps/s")
    for batch_size in (10, 100, 1_000):
        rates[batch_size] = benchmark_batch_env(batch_size, 20 if quick else 1_000)
        speedup = rates[batch_size] / rates[1]
        print(f"batch of {batch_size:,}: {rates[batch_size]:,.0f} steps/s ({speedup:.1f} times)")
    return rates


def benchmark_with_config(settings: Mapping[str, Any], batch_size: int = 256, num_steps: int = 200) -> float:
    """Return the steps per second of a batch with some optimizations.

    Args:
        settings: `backend` (`xla` or `native`), `donate` (reuse the memory of the states) and `scan` (run all
            steps in one compiled call).
        batch_size: Number of environments.
        num_steps: Steps of each environment.
    """
    if settings.get("scan"):
        rollout = RandomRolloutRunner(
            settings["backend"], batch_size, selection_format="point", num_steps=num_steps
        )
        rollout.run()
        return batch_size * num_steps / measure(rollout.run, 1)[0]
    config = create_test_config(settings["backend"])
    return benchmark_batch_env(batch_size, num_steps, config, donate=settings.get("donate", False))


def analyze_optimization_impact(quick: bool = False) -> dict[str, float]:
    """Measure the effect of each optimization on a batch of 256. Returns the steps per second by name."""
    configs: dict[str, dict[str, Any]] = {
        "XLA": {"backend": "xla"},
        "XLA, scan": {"backend": "xla", "scan": True},
    }
    if is_native_available():
        configs |= {
            "native": {"backend": "native"},
            "native, donated buffers": {"backend": "native", "donate": True},
            "native, scan": {"backend": "native", "scan": True},
        }
    else:
        print(f"the native backend is not measured: {native_unavailable_reason()}")
    rates = {}
    for name, settings in configs.items():
        rates[name] = benchmark_with_config(settings, num_steps=20 if quick else 500)
        print(f"{name}: {rates[name]:,.0f} steps/s ({rates[name] / rates['XLA']:.1f} times)")
    return rates


def run_benchmark_suite(dataset: str, hardware: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Measure one dataset on one kind of device. Returns None if either is not available."""
    try:
        device = jax.devices(hardware.lower())[0]
        tasks = TaskBuffer.from_tasks(load_tasks(dataset.replace("_", "-")))
    except (RuntimeError, FileNotFoundError) as error:
        print(f"{dataset} on {hardware} is not measured: {error}")
        return None
    with jax.default_device(device):
        single = benchmark_single_env(config["single_env_steps"], tasks=tasks)
        rates = {
            size: benchmark_batch_env(size, max(1, config["batch_steps"] // size), tasks=tasks)
            for size in config["batch_sizes"]
        }
    return {"num_tasks": len(tasks), "single_env_steps_per_second": single, "batch_steps_per_second": rates}


def run_paper_benchmarks(
    config: Mapping[str, Any] = BENCHMARK_CONFIG, output: pathlib.Path = RESULTS
) -> dict[str, dict[str, Any]]:
    """Measure all datasets on all devices that are available, and write the results to a folder."""
    results = {}
    for dataset in config["datasets"]:
        for hardware in config["hardware"]:
            result = run_benchmark_suite(dataset, hardware, config)
            if result is not None:
                results[f"{dataset}_{hardware}"] = result
    if results:
        generate_paper_figures(results, output)
        generate_performance_tables(results, output)
    return results


def generate_paper_figures(
    results: Mapping[str, Mapping[str, Any]], output: pathlib.Path = RESULTS
) -> pathlib.Path:
    """Plot the steps per second over the batch size. Returns the path of the SVG file."""
    lines = {name: list(result["batch_steps_per_second"].values()) for name, result in results.items()}
    sizes = list(next(iter(results.values()))["batch_steps_per_second"])
    top = max(max(rates) for rates in lines.values())
    drawing = plot("Steps per second", "number of environments", sizes, lines, (0.0, float(f"{top:.1g}")), "")
    output.mkdir(parents=True, exist_ok=True)
    path = output / "throughput.svg"
    path.write_text(drawing.as_svg())
    return path


def generate_performance_tables(
    results: Mapping[str, Mapping[str, Any]], output: pathlib.Path = RESULTS
) -> pathlib.Path:
    """Write the results as JSON and as a Markdown table. Returns the path of the table."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = ["| dataset, device | batch size | steps/s |", "| --- | ---: | ---: |"]
    for name, result in results.items():
        rows = {"1, from Python": result["single_env_steps_per_second"], **result["batch_steps_per_second"]}
        lines += [f"| {name} | {size} | {rate:,.0f} |" for size, rate in rows.items()]
    path = output / "throughput.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Run all benchmarks of this script and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure few steps, which takes about a minute")
    parser.add_argument(
        "--output", type=pathlib.Path, default=RESULTS, help=f"folder of the results [{RESULTS}]"
    )
    options = parser.parse_args(arguments)
    run_performance_comparison(options.quick)
    analyze_optimization_impact(options.quick)
    run_paper_benchmarks(QUICK_CONFIG if options.quick else BENCHMARK_CONFIG, options.output)
    print(f"results are in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
