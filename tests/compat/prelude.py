"""Names that the documents use without defining them, and checks of what their code blocks compute."""

import asyncio
import functools
import inspect
import io
import json
import logging
import queue
import shlex
import shutil
import threading
import types as types_module
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from rich.console import Console
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.compat.jaxarc import agents, batch_processing, envs, state, types
from phalanx.compat.jaxarc.envs import functional
from phalanx.compat.jaxarc.utils import logging as compat_logging
from phalanx.config import load_config
from phalanx.logging import Handler
from tests.helpers.scripted_puzzle_server import ScriptedServer, scripted_server

Namespace = dict[str, Any]
NAMES: dict[str, Callable[[], Namespace]] = {}
"""Function that returns the names that a document uses without defining them."""
BEFORE: dict[tuple[str, int], Callable[[Namespace, pytest.MonkeyPatch], None]] = {}
"""Setup of a code block, by document and number."""
AFTER: dict[tuple[str, int], Callable[[Namespace, str, str], None]] = {}
"""Check of a code block: its names, what it printed and its text."""

GUIDE, PLAN, DESIGN = "1-batch-processing-guide", "2-high-performance-plan", "3-batched-logging-design"
MODULE, UPDATE = "4-token-batching-module", "5-batched-vec-env"


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
    path = Path(envs.__file__).parents[1] / "conf" / "logging" / "batched.yaml"
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


# Document 4: token-batching module


class TextSample(NamedTuple):
    """A sample of the document's dataset."""

    id: str
    length: int
    num_loss_tokens: int


TEXT_SAMPLES = [TextSample(f"s{i}", 100 + i * 10, 10 + i) for i in range(50)]


def module_names() -> Namespace:
    return {"world_size": 4}


NAMES[MODULE] = module_names


@after(MODULE, 0)
def check_batches(_: Namespace, output: str, __: str) -> None:
    lines = output.splitlines()
    assert sum(int(line.split()[1]) for line in lines) == 50
    # Rows of up to 128, 256, 512 and 1024 tokens: 3, 13, 26 and 8 samples in batches of 16, 8, 4 and 2.
    assert len(lines) == 1 + 2 + 7 + 4


@after(MODULE, 2)
def check_bucket(names: Namespace, *_: str) -> None:
    assert [names[name] for name in ("bucket_id", "min_len", "max_len", "is_overflow")] == [
        1,
        129,
        256,
        False,
    ]


@before(MODULE, 3)
def define_sample_list(names: Namespace, _: pytest.MonkeyPatch) -> None:
    names["samples"] = TEXT_SAMPLES


@after(MODULE, 3)
def check_length_cache(names: Namespace, *_: str) -> None:
    assert names["lengths"] == {sample.id: sample.length for sample in TEXT_SAMPLES}
    line = Path("lengths.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert line == '{"sample_id":"s0","tokenizer_hash":"tokenizer_v1","length":100}'


@after(MODULE, 4)
def check_sampler(names: Namespace, output: str, _: str) -> None:
    assert output.startswith("Samples: 50\nEst. batches/epoch: 8\n") and output.count("Max length:") == 8
    assert isinstance(names["batch_spec"], names["BatchSpec"])


@before(MODULE, 5)
def define_sample_dict(names: Namespace, _: pytest.MonkeyPatch) -> None:
    names["samples"] = {sample.id: sample for sample in TEXT_SAMPLES}


@after(MODULE, 5)
def check_metrics(names: Namespace, output: str, _: str) -> None:
    metrics = names["metrics"]
    summary = metrics.summary()
    assert isinstance(metrics, names["BatchMetrics"]) and summary["total_samples"] == 50
    assert summary["efficiency"] + summary["padding_waste"] == pytest.approx(1)
    assert metrics.loss_tokens == sum(sample.num_loss_tokens for sample in TEXT_SAMPLES)
    assert "Bucket 3:" in output


@before(MODULE, 6)
def define_batches(names: Namespace, _: pytest.MonkeyPatch) -> None:
    names["batches"] = list(names["sampler"].iter_batches(0))


@after(MODULE, 6)
def check_fingerprint(names: Namespace, *_: str) -> None:
    assert names["matches"] and names["error"] is None and len(names["fingerprint"].fingerprint) == 16
    matches, error = names["verify_batch_fingerprint"](names["batches"][::-1], names["fingerprint"])
    assert not matches and error.startswith("order changed")


@after(MODULE, 7)
def check_packing(names: Namespace, output: str, _: str) -> None:
    assert names["mask"].shape == (512, 512) and int(names["mask"].sum()) == 1 + 2 + 3 + 4
    assert "Segments: 1" in output and "Packing ratio: 1.00x" in output
    second = names["SequenceToPack"](sample_id="s2", input_ids=[5, 6], loss_mask=[0, 1])
    packed = names["pack_sequences"]([*names["sequences"], second], names["config"], pad_token_id=0)
    mask = names["create_segment_attention_mask"](packed[0].segment_ids)
    assert list(packed[0].sample_ids) == ["s1", "s2"] and int(mask.sum()) == (1 + 2 + 3 + 4) + (1 + 2)
    assert names["compute_packing_metrics"](packed).packing_ratio == 2


@before(MODULE, 8)
def define_batching_config(names: Namespace, _: pytest.MonkeyPatch) -> None:
    # The previous block assigned a packing config to the name.
    names["config"] = names["BatchingConfig"].predictable(
        token_budget=4096, bucket_edges=(128, 256, 512), seed=42
    )


@after(MODULE, 8)
def check_plan(names: Namespace, *_: str) -> None:
    plan = names["plan"]
    assert isinstance(plan, names["BatchPlan"]) and names["loaded"].fingerprint == plan.fingerprint
    shards = [plan.shard(rank=rank, world_size=4) for rank in range(4)]
    samples = [sample for shard in shards for batch in shard.iter_epoch(0) for sample in batch.samples]
    assert sorted(samples) == sorted(names["lengths"])
    resumed = [(epoch, index) for epoch, index, _ in plan.iter_from(epoch=1, microbatch_idx=5)]
    assert resumed[0] == (1, 5) and resumed[-1][0] == 2


@before(MODULE, 9)
def define_model(names: Namespace, _: pytest.MonkeyPatch) -> None:
    names["samples"] = {sample.id: {"input_ids": [7] * sample.length} for sample in TEXT_SAMPLES}
    names["inputs"] = []
    names["model"] = names["inputs"].append


@after(MODULE, 9)
def check_batch_files(names: Namespace, *_: str) -> None:
    num_tokens = sum(int((batch == 7).sum()) for batch in names["inputs"])
    assert num_tokens == sum(sample.length for sample in TEXT_SAMPLES)
    assert names["reader"].fingerprint == names["plan"].fingerprint == names["reader"].plan.fingerprint


@after(MODULE, 10)
def check_analysis(names: Namespace, output: str, _: str) -> None:
    assert "P50: 340, P90: 540" in output
    assert len(names["histogram"].bins) == 15 and len(names["suggestion"].edges) == 3
    assert names["suggestion"].estimated_efficiency > names["analysis"].overall_efficiency
    assert names["report"].recommendations


@before(MODULE, 11)
def start_puzzle_server(_: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    # The blocks connect to port 8023, where another program may listen.
    port = queue.Queue[int]()

    async def serve() -> None:
        async with scripted_server(ScriptedServer()) as server:
            port.put(server.port)
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    connect, server_port = asyncio.open_connection, port.get(timeout=10)
    monkeypatch.setattr(
        asyncio, "open_connection", lambda host, _, **options: connect("127.0.0.1", server_port, **options)
    )


@after(MODULE, 11)
def check_puzzle(names: Namespace, output: str, _: str) -> None:
    assert (names["state"].seed, names["state"].moves, names["state"].hints_used) == (names["obs"].seed, 0, 1)
    assert "Optimal steps: 3" in output and "Next move: Try placing" in output


@after(MODULE, 12)
def check_replay_buffer(names: Namespace, output: str, _: str) -> None:
    assert [sample.sample_id for sample in names["samples"]] == ["sudoku_42_step0"] * 32
    assert output == "Buffer size: 1\nMean difficulty: 0.30\n" and names["hard_samples"] == []


@before(MODULE, 13)
def define_training_step(names: Namespace, _: pytest.MonkeyPatch) -> None:
    buffer = names["buffer"]
    for i in range(40):
        buffer.add(names["sample"].model_copy(update={"sample_id": f"sudoku_42_step{i + 1}"}))
    names["batching_config"] = names["BatchingConfig"].predictable(
        token_budget=4096, bucket_edges=(128, 256, 512), seed=42
    )
    names["samples"] = {sample.sample_id: sample for sample in buffer.snapshot().samples}
    names["steps"] = []
    names |= {"collate": list, "train_step": names["steps"].append}


@after(MODULE, 13)
def check_window(names: Namespace, *_: str) -> None:
    assert sum(map(len, names["steps"])) == names["buffer"].size == 41


@before(MODULE, 14)
def define_tokenizer(names: Namespace, _: pytest.MonkeyPatch) -> None:
    prompts: list[tuple[int, ...]] = []

    def tokenize(text: str) -> tuple[int, ...]:
        prompts.append(tuple(text.encode()))
        return prompts[-1]

    names |= {"tokenize": tokenize, "create_loss_mask": lambda message: (1,) * len(prompts[-1])}


@after(MODULE, 14)
def check_collection(_: Namespace, output: str, __: str) -> None:
    assert output == "Collected 15 samples\n"


def run_commands(text: str) -> list[str]:
    """Run the commands of a block and return the output of each."""
    outputs = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "lazarus"
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{line}: {result.output} {result.exception!r}"
            outputs.append(result.output)
    return outputs


@before(MODULE, 15)
def write_dataset(*_: Any) -> None:
    # A tokenizer in a folder `gpt2` needs no network.
    words = ("a", "b", "c")
    rows = [{"id": f"t{i}", "text": " ".join(words[n % 3] for n in range(5 + 3 * i))} for i in range(200)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    vocabulary = {"[UNK]": 0, "<pad>": 1, **{word: index + 2 for index, word in enumerate(words)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    Path("gpt2").mkdir()
    tokenizer.save("gpt2/tokenizer.json")
    Path("lengths.jsonl").unlink()
    shutil.rmtree("batch_plan")
    shutil.rmtree("batches")


@after(MODULE, 15)
def check_length_commands(_: Namespace, __: str, text: str) -> None:
    built, stats = run_commands(text)
    assert f"200 samples, {sum(5 + 3 * i for i in range(200)):,} tokens" in built and "602" in stats


@after(MODULE, 16)
def check_plan_commands(names: Namespace, _: str, text: str) -> None:
    _, info, sharded, verified, shards = run_commands(text)
    plan = names["load_batch_plan"]("batch_plan/")
    assert plan.num_epochs == 3 and plan.fingerprint in info and "rank 0 of 4" in sharded
    assert verified and shards
    assert {path.name for path in Path("shards").iterdir()} == {f"rank_{rank}" for rank in range(4)}


@after(MODULE, 17)
def check_analysis_commands(_: Namespace, __: str, text: str) -> None:
    analysis, histogram, suggestion = run_commands(text)
    assert "Recommendations" in analysis
    assert sum("|" in line for line in histogram.splitlines()) == 20
    assert len(suggestion.splitlines()[0].split(",")) == 3


@after(MODULE, 18)
def check_export_command(names: Namespace, _: str, text: str) -> None:
    run_commands(text)
    plan = names["load_batch_plan"]("batch_plan/")
    reader = names["BatchReader"]("batches/")
    assert reader.fingerprint == plan.fingerprint and reader.verify() == plan.total_microbatches


# Document 5: migration to BatchedVecEnv


def update_names() -> Namespace:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.objectives.value import GAE

    from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
    from phalanx.compat.deepprooflog.data_handler import DataHandler
    from phalanx.compat.deepprooflog.env_factory import create_environments
    from phalanx.compat.deepprooflog.index_manager import IndexManager

    handler = DataHandler(num_families=1, generations=3)
    zeros = torch.zeros(5, 3, 1)
    last = zeros.clone()
    last[-1] = 1
    value_network = TensorDictModule(lambda value: value, in_keys=["value"], out_keys=["state_value"])
    return {
        "BatchedVecEnv": BatchedVecEnv,
        "create_environments": create_environments,
        "dh": handler,
        "index_manager": IndexManager(handler),
        "kge_engine": None,
        "args": types_module.SimpleNamespace(n_envs=4, n_eval_envs=2),
        "gae": GAE(gamma=0.5, lmbda=1.0, value_network=value_network),
        "batch_td_time": TensorDict(
            {
                "value": zeros,
                "next": {"value": zeros, "reward": last, "done": last.bool(), "terminated": last.bool()},
            },
            batch_size=[5, 3],
        ),
    }


NAMES[UPDATE] = update_names


@after(UPDATE, 0)
def check_embedding_sizes(names: Namespace, *_: str) -> None:
    index = names["index_manager"]
    kge_predicate = index.predicate_str2idx[names["dh"].predicates[-1] + "_kge"]
    assert index.num_predicates < kge_predicate <= names["max_predicate_idx"]


@after(UPDATE, 1)
def check_advantages(names: Namespace, *_: str) -> None:
    batch = names["batch_td_time"]
    assert batch.batch_size == (5, 3)
    # The reward of the last step is halved with every step back.
    assert batch["advantage"][:, 1, 0].tolist() == [0.0625, 0.125, 0.25, 0.5, 1.0]


@after(UPDATE, 2)
def check_environments(names: Namespace, *_: str) -> None:
    sizes = [int(names[name].batch_size[0]) for name in ("env", "eval_env", "callback_env")]
    assert sizes == [4, 2, 2]


@after(UPDATE, 3)
def check_environment(names: Namespace, *_: str) -> None:
    assert names["env"].reset()["sub_index"].shape == (4, 1, 6, 3)


@after(UPDATE, 4)
def check_batch_size(names: Namespace, *_: str) -> None:
    assert names["n_envs"] == 4
