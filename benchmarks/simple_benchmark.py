"""Phalanx alone: one environment, batches of them, what each switch brings, and figures over batch sizes.

The comparison with other environments is in `compare_arc.py`. Run with `--quick` for a look at everything.
"""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
from line_chart import Axis, line_chart
from measuring.verdicts import markdown_table

from arc import Rollout, Workload, benchmark_tasks
from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    EpisodeConfig,
    ObservationConfig,
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
from phalanx.io import atomic_write
from phalanx.native import is_native_available, native_unavailable_reason

# Standard benchmark configuration; compare_arc.py runs the comparison environments.
BENCHMARK_CONFIG: dict[str, Any] = {
    "single_env_steps": 100_000,
    "batch_sizes": [1, 10, 100, 1_000, 5_000, 10_000],
    "batch_steps": 10_000,
    "datasets": ["mini_arc", "arc_agi_1", "arc_agi_2"],
    "hardware": ["CPU", "GPU", "TPU"],
    "comparison_envs": ["ARCLE", "JaxARC"],
}

QUICK_CONFIG = BENCHMARK_CONFIG | {
    "single_env_steps": 500,
    "batch_sizes": [1, 10, 100],
    "batch_steps": 64,
    "datasets": ["mini_arc", "arc_agi_1"],
    "hardware": ["CPU"],
}

TASKS = benchmark_tasks((30, 30), 1)
# One episode for the whole measurement: a finished one would no longer do any work.
ENDLESS = EpisodeConfig(max_episode_steps=10**9)


def create_test_config(engine: str = "auto", observation: bool = True) -> ArcConfig:
    """Point actions on a 30x30 canvas, in an episode that does not end."""
    return ArcConfig(episode=ENDLESS, observation=ObservationConfig(working_grid=observation), backend=engine)


def create_test_state(config: ArcConfig) -> ArcState:
    """The start of an episode."""
    return arc_reset(jax.random.PRNGKey(0), config, TASKS)[0]


def create_test_action() -> PointAction:
    """A flood fill near the middle."""
    return create_point_action(Operation.FLOOD_FILL_3, 14, 15)


def create_batch_states(batch_size: int, config: ArcConfig) -> ArcState:
    """The starts of a batch of episodes."""
    return batch_reset(jax.random.split(jax.random.PRNGKey(0), batch_size), config, TASKS)[0]


def create_batch_actions(batch_size: int) -> PointAction:
    """Operations 0 to 33 (no submission) on cells all over the canvas."""
    numbers = jax.numpy.arange(batch_size)
    return create_point_action(numbers % 34, numbers * 7 % 30, numbers * 11 % 30)


def benchmark_single_env(num_steps: int = 10_000, config: ArcConfig | None = None) -> float:
    """Steps a second of one environment stepped from Python, waiting for each step."""
    config = config or create_test_config()
    state, action = create_test_state(config), create_test_action()
    jax.block_until_ready(arc_step(state, action, config))
    start = time.perf_counter()
    for _ in range(num_steps):
        state, _, reward, _, _ = arc_step(state, action, config)
        reward.block_until_ready()
    return num_steps / (time.perf_counter() - start)


def benchmark_batch_env(
    batch_size: int = 100, num_steps: int = 1_000, config: ArcConfig | None = None, donate: bool = False
) -> float:
    """Steps a second of a batch stepped from Python, waiting for each batch step."""
    config = config or create_test_config()
    states, actions = create_batch_states(batch_size, config), create_batch_actions(batch_size)
    states, *_ = jax.block_until_ready(batch_step(states, actions, config, donate=donate))
    start = time.perf_counter()
    for _ in range(num_steps):
        states, _, rewards, _, _ = batch_step(states, actions, config, donate=donate)
        rewards.block_until_ready()
    return batch_size * num_steps / (time.perf_counter() - start)


def run_performance_comparison(quick: bool = False) -> dict[int, float]:
    """One environment against batches of 10, 100 and 1,000; the rates, with 0 for the single one."""
    print("=== Phalanx performance, stepped from Python ===")
    results = {0: benchmark_single_env(500 if quick else 10_000)}
    print(f"Single environment: {results[0]:,.0f} SPS")
    for batch_size in (10, 100, 1_000):
        results[batch_size] = benchmark_batch_env(batch_size, 20 if quick else 1_000)
        speedup = results[batch_size] / results[0]
        print(f"Batch {batch_size:4d}: {results[batch_size]:,.0f} SPS ({speedup:.1f}x)")
    return results


def benchmark_with_config(switches: dict[str, Any], batch_size: int = 256, num_steps: int = 200) -> float:
    """Steps a second of a batch under some switches: `jit`, `engine`, `donate`, `observation`, `scan`."""
    engine, observation = switches.get("engine", "auto"), switches.get("observation", True)
    if not switches.get("jit", True):
        return _without_jit(create_test_config(engine, observation), batch_size)
    if switches.get("scan", False):
        rollout = Rollout.prepare(
            Workload(engine=engine, batch=batch_size, selection_format="point", observation=observation)
        )
        calls = max(1, num_steps // rollout.workload.steps_per_call)
        return rollout.rate(calls)
    config = create_test_config(engine, observation)
    return benchmark_batch_env(batch_size, num_steps, config, donate=switches.get("donate", False))


def _without_jit(config: ArcConfig, batch_size: int, num_steps: int = 5) -> float:
    """Every operation of a step sent to the device on its own, as un-jitted JAX does it."""
    environment = ArcEnvironment.create(config, TASKS)
    states, actions = create_batch_states(batch_size, config), create_batch_actions(batch_size)
    states, *_ = jax.block_until_ready(environment.batch_step(states, actions))
    start = time.perf_counter()
    for _ in range(num_steps):
        states, *_ = jax.block_until_ready(environment.batch_step(states, actions))
    return batch_size * num_steps / (time.perf_counter() - start)


def analyze_optimization_impact(quick: bool = False) -> dict[str, float]:
    """What each switch brings over the one before it, and all of them over plain XLA without `jit`."""
    print("=== What each switch brings (batch of 256) ===")
    configs: dict[str, dict[str, Any]] = {
        "xla, no jit": {"engine": "xla", "jit": False},
        "xla, jit": {"engine": "xla"},
    }
    if is_native_available():
        configs |= {
            "native": {"engine": "native"},
            "+ donation": {"engine": "native", "donate": True},
            "+ scan": {"engine": "native", "scan": True},
            "- observation": {"engine": "native", "scan": True, "observation": False},
        }
    else:
        print(f"the native engine is left out: {native_unavailable_reason()}")
    results = {}
    for name, switches in configs.items():
        results[name] = benchmark_with_config(switches, num_steps=20 if quick else 500)
        print(f"{name:14s}: {results[name]:,.0f} SPS ({results[name] / results['xla, no jit']:.1f}x)")
    return results


def load_dataset(name: str) -> TaskBuffer | None:
    """A data set's training tasks by the name that BENCHMARK_CONFIG uses; None where it is not installed."""
    try:
        return TaskBuffer.from_tasks(load_tasks(name.replace("_", "-")))
    except FileNotFoundError as error:
        print(f"{name} is left out: {error}")
        return None


def run_benchmark_suite(dataset: str, hardware: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """Single and batched throughput over a data set on one kind of device; None where either is missing."""
    try:
        device = jax.devices(hardware.lower())[0]
    except RuntimeError as error:
        print(f"{hardware} is left out: {error}")
        return None
    tasks = load_dataset(dataset)
    if tasks is None:
        return None
    rates: dict[int, float] = {}
    compile_seconds: dict[int, float] = {}
    state_bytes = 0
    with jax.default_device(device):
        for batch_size in config["batch_sizes"]:
            steps = min(config["batch_steps"], Workload(batch=batch_size).steps_per_call)
            workload = Workload(batch=batch_size, grid=tasks.max_shape, steps=steps)
            rollout = Rollout.prepare(workload, tasks)
            calls = max(1, config["batch_steps"] // steps)
            rates[batch_size] = rollout.rate(calls)
            compile_seconds[batch_size] = rollout.compile_seconds
            state_bytes = rollout.state_bytes
            print(f"{dataset} on {hardware}, batch {batch_size:6,}: {rates[batch_size]:,.0f} SPS")
        single = benchmark_single_env(config["single_env_steps"])
    return {
        "tasks": len(tasks),
        "single_env_sps": single,
        "batch_sps": rates,
        "compile_seconds": compile_seconds,
        "state_bytes": state_bytes,
    }


def run_paper_benchmarks(
    output: str | pathlib.Path = "benchmarks/results", config: dict[str, Any] = BENCHMARK_CONFIG
) -> dict[str, dict[str, Any]]:
    """Every data set on every kind of device that is here; figures and tables into a folder."""
    results = {}
    for dataset in config["datasets"]:
        for hardware in config["hardware"]:
            result = run_benchmark_suite(dataset, hardware, config)
            if result is not None:
                results[f"{dataset}_{hardware}"] = result
    if not results:
        raise RuntimeError("nothing was measured: no data set of the configuration is installed")
    generate_paper_figures(results, output)
    generate_performance_tables(results, output)
    return results


def generate_paper_figures(
    results: dict[str, dict[str, Any]], output: str | pathlib.Path = "benchmarks/results"
) -> list[pathlib.Path]:
    """Throughput and state memory over batch size, as SVG files."""
    folder = pathlib.Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    memory: Callable[[dict[str, Any], int], float] = lambda r, batch: r["state_bytes"] * batch / 1e6  # noqa: E731
    figures = {
        "throughput.svg": (
            "Throughput over batch size",
            "steps per second",
            {name: list(r["batch_sps"].items()) for name, r in results.items()},
        ),
        "memory.svg": (
            "State memory over batch size",
            "megabytes",
            {name: [(batch, memory(r, batch)) for batch in r["batch_sps"]] for name, r in results.items()},
        ),
    }
    paths = []
    for name, (title, y_label, lines) in figures.items():
        with atomic_write(folder / name, "w") as file:
            points = [point for line in lines.values() for point in line]
            x_axis = Axis.decades("environments", (x for x, _ in points))
            y_axis = Axis.decades(y_label, (y for _, y in points))
            file.write(line_chart(title, x_axis, y_axis, lines).as_svg())
        paths.append(folder / name)
    return paths


def generate_performance_tables(
    results: dict[str, dict[str, Any]], output: str | pathlib.Path = "benchmarks/results"
) -> pathlib.Path:
    """Every rate in one Markdown table."""
    batches = sorted({batch for result in results.values() for batch in result["batch_sps"]})
    header = ["data set, device", "tasks", "single, from Python", *(f"batch {batch:,}" for batch in batches)]
    rows = []
    for name, result in results.items():
        rates = [result["single_env_sps"], *(result["batch_sps"].get(batch) for batch in batches)]
        rows.append([name, str(result["tasks"]), *("" if rate is None else f"{rate:,.0f}" for rate in rates)])
    lines = markdown_table(header, rows)
    path = pathlib.Path(output) / "throughput.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "w") as file:
        file.write("Steps per second, all operations random, auto-reset on.\n\n" + "\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps: a look at everything in a minute")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    arguments = parser.parse_args()
    run_performance_comparison(arguments.quick)
    analyze_optimization_impact(arguments.quick)
    run_paper_benchmarks(arguments.output, QUICK_CONFIG if arguments.quick else BENCHMARK_CONFIG)
    print(f"figures and tables are in {arguments.output}")


if __name__ == "__main__":
    main()
