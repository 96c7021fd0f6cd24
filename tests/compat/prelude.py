"""Names that the documents use without defining them, and checks of what their code blocks compute."""

import functools
import inspect
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from phalanx.compat.jaxarc import agents, batch_processing, envs, state, types
from phalanx.compat.jaxarc.envs import config as config_module, functional
from phalanx.compat.jaxarc.utils import logging as compat_logging
from phalanx.config import load_config
from phalanx.logging import Handler

Namespace = dict[str, Any]
NAMES: dict[str, Callable[[], Namespace]] = {}
"""Function that returns the names that a document uses without defining them."""
BEFORE: dict[tuple[str, int], Callable[[Namespace, pytest.MonkeyPatch], None]] = {}
"""Setup of a code block, by document and number."""
AFTER: dict[tuple[str, int], Callable[[Namespace, str, str], None]] = {}
"""Check of a code block: its names, what it printed and its text."""

GUIDE, PLAN, DESIGN = "1-batch-processing-guide", "2-high-performance-plan", "3-batched-logging-design"


def before(document: str, number: int) -> Callable[[Any], Any]:
    return lambda setup: BEFORE.setdefault((document, number), setup)


def after(document: str, number: int) -> Callable[[Any], Any]:
    return lambda check: AFTER.setdefault((document, number), check)


# Document 1: batch-processing guide


def guide_names() -> Namespace:
    return {
        "eqx": eqx,
        "ArcEnvState": state.ArcEnvState,
        "JaxArcTask": types.JaxArcTask,
        **{name: getattr(envs, name) for name in vars(envs) if name in vars(batch_processing)},
        **{
            name: getattr(envs, name)
            for name in ("JaxArcConfig", "StructuredAction", "create_mock_task", "batch_reset", "batch_step")
        },
    }


NAMES[GUIDE] = guide_names


@after(GUIDE, 0)
def check_quick_start(names: Namespace, output: str, _: str) -> None:
    assert "Batch shape: (16, 30, 30)" in output
    assert names["rewards"].shape == names["dones"].shape == names["infos"].similarity.shape == (16,)


@after(GUIDE, 1)
def check_reset_signature(names: Namespace, *_: str) -> None:
    expected = list(inspect.signature(names["batch_reset"]).parameters)
    assert list(inspect.signature(envs.batch_reset).parameters) == expected


@after(GUIDE, 3)
def check_step_signature(names: Namespace, *_: str) -> None:
    expected = list(inspect.signature(names["batch_step"]).parameters)
    assert list(inspect.signature(envs.batch_step).parameters)[: len(expected)] == expected


@after(GUIDE, 4)
def check_mixed_operations(names: Namespace, output: str, _: str) -> None:
    assert names["infos"].operation_type.tolist() == [0, 1] * 16
    # Environment 1 fills a cell of column 7 with color 1, as in the target of the mock task.
    assert names["new_states"].working_grid[1, 6, 7] == 1
    assert names["rewards"][1] > names["rewards"][0]
    assert "Completed episodes: 0" in output


@after(GUIDE, 5)
def check_keys_differ(names: Namespace, *_: str) -> None:
    assert len({tuple(key.tolist()) for key in names["batch_keys"]}) == names["batch_size"] == 32


@after(GUIDE, 7)
def check_episodes(names: Namespace, *_: str) -> None:
    # Filling black cells with black never solves the task.
    assert names["results"]["episode_lengths"].tolist() == [50] * 32
    assert jnp.allclose(names["results"]["episode_rewards"], 50 * -0.01)


@after(GUIDE, 8)
def check_batch_sizes(names: Namespace, *_: str) -> None:
    assert list(names["perf_results"]) == [2**power for power in range(11)]
    assert names["optimal_bs"] in names["perf_results"]


@after(GUIDE, 9)
def check_memory(names: Namespace, *_: str) -> None:
    assert names["memory_analysis"][256]["state_mb"] == 256 * 30 * 30 / 2**20


@after(GUIDE, 10)
def check_warm_up(_: Namespace, output: str, __: str) -> None:
    assert "Warmed up batch functions for batch size 64" in output


@before(GUIDE, 11)
def reset_again(names: Namespace, _: pytest.MonkeyPatch) -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), names["batch_size"])
    names["batch_states"], _ = envs.batch_reset(keys, names["config"], names["task"])


@after(GUIDE, 11)
def check_conditional_actions(names: Namespace, *_: str) -> None:
    assert not names["conditional_actions"].operation.any()
    assert (names["new_states"].step_count == 1).all()


@after(GUIDE, 12)
def check_dynamic_batches(names: Namespace, *_: str) -> None:
    # The guide leaves these two functions empty.
    names |= {name: getattr(batch_processing, name) for name in ("stack_states", "stack_actions")}
    config, task = names["config"], names["task"]
    states = [envs.arc_reset(jax.random.PRNGKey(i), config, task)[0] for i in range(5)]
    actions = [envs.create_point_action(1, i, 7) for i in range(5)]
    for max_batch_size in (2, 8):
        results = names["process_dynamic_batch"](states, actions, config, max_batch_size)
        expected = [envs.arc_step(*pair, config) for pair in zip(states, actions, strict=True)]
        np.testing.assert_array_equal(results[2], [step[2] for step in expected])
        np.testing.assert_array_equal(
            results[0].working_grid, np.stack([step[0].working_grid for step in expected])
        )


@after(GUIDE, 13)
def check_hierarchy(names: Namespace, *_: str) -> None:
    assert len(names["results"]) == 50 and names["all_rewards"].shape == (50 * 32,)


@after(GUIDE, 14)
def check_rollout(names: Namespace, *_: str) -> None:
    trajectory = names["trajectory"]
    assert trajectory["rewards"].shape == (10, 32)
    assert trajectory["states"].shape == (10, 32, 30, 30)
    assert trajectory["actions"].shape == (10, 32, 3)


@after(GUIDE, 15)
def check_values(names: Namespace, *_: str) -> None:
    assert jnp.allclose(names["batch_values"], names["batch_states"].similarity_score * 10)


@after(GUIDE, 16)
def check_inspection(_: Namespace, output: str, __: str) -> None:
    assert "Grid shape: (30, 30)" in output and "Unique colors: [-1  0]" in output


@after(GUIDE, 17)
def check_monitor(names: Namespace, *_: str) -> None:
    assert names["stats"]["total_operations"] == 2 and names["stats"]["avg_batch_size"] == 32
    assert names["new_states"].step_count.tolist() == [1] * 32


# Document 2: high-performance plan


def plan_names() -> Namespace:
    return {
        "jax": jax,
        "jnp": jnp,
        "eqx": eqx,
        "functools": functools,
        "RandomAgent": agents.RandomAgent,
        "config": envs.JaxArcConfig(
            environment=envs.EnvironmentConfig(max_episode_steps=100),
            dataset=envs.UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
            action=envs.UnifiedActionConfig(selection_format="point"),
        ),
        "task_data": envs.create_mock_task(),
        "max_steps": 100,
        **{
            name: getattr(envs, name)
            for name in [
                "StepInfo",
                "arc_step",
                "arc_reset",
                "batch_step",
                "batch_reset",
                "NUM_OPERATIONS",
                "check_bounds_jax",
                "create_observation",
                "create_bbox_action",
            ]
        },
    }


NAMES[PLAN] = plan_names


def initial_state(names: Namespace) -> Any:
    return envs.arc_reset(jax.random.PRNGKey(0), names["config"], names["task_data"])[0]


@after(PLAN, 0)
def check_step_info(names: Namespace, *_: str) -> None:
    expected = list(inspect.signature(names["StepInfo"]).parameters)
    assert list(inspect.signature(functional.StepInfo).parameters)[: len(expected)] == expected


@before(PLAN, 1)
def take_the_step_that_the_block_omits(names: Namespace, _: pytest.MonkeyPatch) -> None:
    action = envs.create_point_action(operation=1, row=3, col=7)
    names |= {"state": initial_state(names), "action": action, "validated_action": action}
    results = ("final_state", "observation", "reward", "done", "expected")
    names |= dict(zip(results, envs.arc_step(names["state"], action, names["config"]), strict=True))


@after(PLAN, 1)
def check_info(names: Namespace, *_: str) -> None:
    info = names["arc_step"](names["state"], names["action"], names["config"])[-1]
    assert isinstance(info, functional.StepInfo)
    for name in ("similarity", "similarity_improvement", "operation_type", "step_count", "episode_done"):
        assert getattr(info, name) == getattr(names["expected"], name), name


@after(PLAN, 2)
def check_safe_step(names: Namespace, *_: str) -> None:
    config, start = names["config"], initial_state(names)
    valid = envs.create_point_action(operation=1, row=3, col=7)
    for step in (names["safe_arc_step"], envs.safe_arc_step):
        expected = jax.tree.leaves(envs.arc_step(start, valid, config))
        for leaf, expected_leaf in zip(jax.tree.leaves(step(start, valid, config)), expected, strict=True):
            np.testing.assert_array_equal(leaf, expected_leaf)
        for invalid in ((42, 3, 7), (-1, 3, 7), (1, 30, 7)):
            action = envs.create_point_action(*invalid)
            after_step, _, reward, done, info = step(start, action, config)
            assert eqx.tree_equal(after_step, start)
            assert (float(reward), bool(done), int(info.operation_type)) == (-1.0, False, -1)
            assert not names["validate_action_jax"](action, start, config)
            assert not envs.validate_action_jax(action, start, config)


@after(PLAN, 3)
def check_runner(names: Namespace, *_: str) -> None:
    # The plan leaves the bodies of both functions open.
    assert names["improved_batch_episode_runner"](None, None, 1, names["config"]) is None
    keys = jax.random.split(jax.random.PRNGKey(0), 16)
    states, _ = envs.batch_reset(keys, names["config"], names["task_data"])
    actions = envs.create_point_action(jnp.ones(16, int), jnp.arange(16), jnp.full(16, 7))
    runner = envs.create_batch_episode_runner(
        lambda states, agent_state, key: (actions, agent_state + 1), 3, names["config"]
    )
    final, rewards, trajectory = runner(states, agent_state=jnp.zeros(16, jnp.int32))
    assert final.step_count.tolist() == [3] * 16
    assert jnp.allclose(rewards, trajectory.rewards.sum(axis=0))
    stepped, *_ = envs.batch_step(states, actions, names["config"], donate=True)
    assert stepped.step_count.tolist() == [1] * 16


@before(PLAN, 4)
def define_benchmark_inputs(names: Namespace, _: pytest.MonkeyPatch) -> None:
    config, task = names["config"], names["task_data"]
    names |= {
        "create_test_config": lambda: config,
        "create_test_state": lambda: initial_state(names),
        "create_test_action": lambda: envs.create_point_action(operation=2, row=3, col=7),
        "create_batch_states": lambda size: envs.batch_reset(
            jax.random.split(jax.random.PRNGKey(0), size), config, task
        )[0],
        "create_batch_actions": lambda size: envs.create_point_action(
            jnp.full(size, 2), jnp.full(size, 3), jnp.full(size, 7)
        ),
    }


@after(PLAN, 4)
def run_short_benchmark(names: Namespace, *_: str) -> None:
    names["benchmark_single_env"].__defaults__ = (20,)
    names["benchmark_batch_env"].__defaults__ = (100, 5)
    names["run_performance_comparison"]()


@after(PLAN, 5)
def run_analysis(names: Namespace, *_: str) -> None:
    names["benchmark_with_config"] = lambda config: 1000.0 * len(config)
    assert names["analyze_optimization_impact"]()["optimized"] == 3000.0


@after(PLAN, 6)
def run_training(names: Namespace, *_: str) -> None:
    final_states, rewards, trajectories = names["optimized_training"]()
    assert final_states.step_count.shape == rewards.shape == (1000,)
    assert jnp.allclose(rewards, trajectories.rewards.sum(axis=0), atol=1e-4)
    assert final_states.episode_done.all()


@after(PLAN, 7)
def run_single_environment(names: Namespace, _: str, text: str) -> None:
    # As printed, the function reads `agent_state` before it is assigned.
    line = "    agent = RandomAgent(grid_shape=(30, 30))\n"
    assert line in text
    exec(text.replace(line, f"{line}    agent_state = agent.init(key)\n"), names)
    state, reward = names["single_env_usage"]()
    assert 1 <= state.step_count <= 100 and state.episode_done and reward.shape == ()


@before(PLAN, 8)
def restore_tree_map(names: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Later versions of JAX call it `jax.tree.map`.
    monkeypatch.setattr(jax, "tree_map", jax.tree.map, raising=False)
    names |= {"state": initial_state(names), "action": envs.create_point_action(operation=1, row=3, col=7)}


@after(PLAN, 8)
def run_tests_of_the_plan(names: Namespace, *_: str) -> None:
    names["test_function_equivalence"]()
    names["test_batch_scaling"]()


@after(PLAN, 9)
def run_paper_benchmarks(names: Namespace, *_: str) -> None:
    calls: list[Any] = []
    names["run_benchmark_suite"] = lambda dataset, hardware, config: len(config["batch_sizes"])
    names["generate_paper_figures"] = names["generate_performance_tables"] = calls.append
    results = names["run_paper_benchmarks"]()
    assert len(results) == 9 and results["mini_arc_CPU"] == 6 and calls == [results, results]


# Document 3: batched-logging design


def design_names() -> Namespace:
    return {
        "eqx": eqx,
        "jnp": jnp,
        "logger": logging.getLogger("phalanx.logging"),
        "Any": Any,
        "Dict": dict,
        "List": list,
        "Literal": Literal,
    }


NAMES[DESIGN] = design_names


def example_batch(size: int, step: int) -> Namespace:
    """Create a value for every key of the design's `batch_data`."""
    rng = np.random.default_rng(7)
    return {
        "update_step": step,
        "episode_returns": jax.device_put(rng.standard_normal(size, np.float32)),
        "episode_lengths": jax.device_put(rng.integers(1, 100, size, np.int32)),
        "similarity_scores": jax.device_put(rng.random(size, np.float32)),
        "success_mask": jax.device_put(rng.random(size) < 0.3),
        "policy_loss": 0.5,
        "value_loss": 0.25,
        "gradient_norm": 2.0,
        "entropy": 1.5,
        "explained_variance": 0.75,
        "learning_rate": 0.001,
        "task_ids": [f"task {i}" for i in range(size)],
        "initial_states": [f"initial {i}" for i in range(size)],
        "final_states": [f"final {i}" for i in range(size)],
    }


def batched_config() -> envs.LoggingConfig:
    return envs.LoggingConfig(batched_logging_enabled=True)


class MemoryHandler(Handler):
    """Keeps metrics and episodes."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def log_aggregated_metrics(self, metrics: Any, step: int) -> None:
        self.events.append((step, {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()}))

    def log_episode_summary(self, summary_data: Any) -> None:
        self.events.append(summary_data)


class StepHandler:
    """Has no `log_aggregated_metrics`, as the handlers that the design extends."""

    def log_step(self, step_data: Any) -> None:
        raise AssertionError("no steps are logged")


def make_logger(**handlers: Any) -> compat_logging.ExperimentLogger:
    return compat_logging.ExperimentLogger(batched_config(), handlers)


@after(DESIGN, 3)
def check_yaml(_: Namespace, __: str, text: str) -> None:
    path = config_module.CONF_FOLDER / "logging" / "batched.yaml"
    assert path.read_text(encoding="utf-8") == text
    assert load_config(envs.LoggingConfig, path) == batched_config()


@after(DESIGN, 4)
def check_fields(names: Namespace, *_: str) -> None:
    assert envs.JaxArcConfig().logging.model_dump() == vars(names["LoggingConfig"]())


@after(DESIGN, 7)
def check_logger(names: Namespace, *_: str) -> None:
    logger = make_logger()
    extra = {"entropy": 1.5, "explained_variance": 0.75, "learning_rate": 0.001}
    for size in (2, 10_000):
        batch = example_batch(size, 0)
        expected = names["_aggregate_batch_metrics"](logger, batch) | extra
        assert logger._aggregate_batch_metrics(batch) == pytest.approx(expected, rel=1e-5)
    for size in (2, 100):
        for step in (0, 50):
            for omitted in ((), ("episode_lengths",), ("task_ids", "initial_states", "final_states")):
                batch = {k: value for k, value in example_batch(size, step).items() if k not in omitted}
                expected = names["_sample_episodes_from_batch"](logger, batch)
                assert logger._sample_episodes_from_batch(batch) == expected
    ours, documented = MemoryHandler(), MemoryHandler()
    for step in (0, 7, 10, 50):
        make_logger(memory=ours, steps=StepHandler()).log_batch_step(example_batch(8, step))
        names["log_batch_step"](make_logger(memory=documented, steps=StepHandler()), example_batch(8, step))
    assert ours.events == documented.events and len(ours.events) == 3 + 3 + 3


@after(DESIGN, 8)
def check_wandb(names: Namespace, *_: str) -> None:
    rows: list[Any] = []

    class Run:
        def log(self, values: Any, step: int) -> None:
            rows.append((values, step))

    handler = compat_logging.WandbHandler(run=Run())
    for method in (type(handler).log_aggregated_metrics, names["log_aggregated_metrics"]):
        method(handler, {"reward_mean": 0.5}, 10)
    assert rows == [({"batch/reward_mean": 0.5}, 10)] * 2


@after(DESIGN, 9)
def check_file(names: Namespace, *_: str) -> None:
    handler = compat_logging.FileHandler(Path("run"), envs.JaxArcConfig())
    for method in (type(handler).log_aggregated_metrics, names["log_aggregated_metrics"]):
        method(handler, {"reward_mean": 0.5, "policy_loss": 0.25}, 10)
    lines = Path("run/batch_metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ours, documented = (json.loads(line) for line in lines)
    assert list(ours) == list(documented)
    assert ours | {"timestamp": 0} == documented | {"timestamp": 0}


@after(DESIGN, 10)
def check_console(names: Namespace, *_: str) -> None:
    metrics = {"reward_mean": 0.5, "similarity_max": 1.0, "success_rate": 0.25, "policy_loss": 0.125}
    tables = []
    for method in (compat_logging.RichHandler.log_aggregated_metrics, names["log_aggregated_metrics"]):
        output = io.StringIO()
        method(compat_logging.RichHandler(console=Console(file=output, width=60)), metrics, 10)
        lines = [line for line in output.getvalue().splitlines() if "│" in line]
        tables.append([line.replace("│", " ").split() for line in lines])
    ours, documented = tables
    assert [row for row in ours if row in documented] == documented
    assert [row for row in ours if row not in documented] == [["Episodes"], ["Success", "Rate", "0.2500"]]


@after(DESIGN, 11)
def check_batch_data(names: Namespace, *_: str) -> None:
    assert set(names["batch_data"]) == set(example_batch(4, 0))


@after(DESIGN, 12)
def check_validation(names: Namespace, *_: str) -> None:
    for change in (
        {},
        {"num_samples": 0},
        {"sample_frequency": -1, "log_frequency": 0},
        {"num_samples": 1001},
    ):
        expected = names["validate_batched_logging_config"](names["LoggingConfig"](**change))
        assert envs.validate_batched_logging_config(envs.LoggingConfig(**change)) == expected
