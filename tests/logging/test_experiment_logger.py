"""The experiment logger: when it logs, aggregation, sampling, and handlers that fail."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.logging import ExperimentLogger, LoggingConfig, aggregation
from tests.helpers.recording_handler import BrokenHandler, RecordingHandler

BATCHED = LoggingConfig()


def a_batch(update_step: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "update_step": update_step,
        "episode_returns": jnp.array([1.0, 2.0, 3.0, 6.0]),
        "episode_lengths": jnp.array([10, 20, 30, 40]),
        "similarity_scores": jnp.array([0.5, 1.0, 1.0, 0.5]),
        "success_mask": jnp.array([False, True, True, False]),
        "policy_loss": jnp.float32(0.25),
        "value_loss": 0.5,
        "gradient_norm": np.float32(2.0),
    } | more


def logged(batch: dict[str, Any], config: LoggingConfig = BATCHED) -> RecordingHandler:
    handler = RecordingHandler()
    ExperimentLogger(config, {"memory": handler}).log_batch_step(batch)
    return handler


def test_batches_are_aggregated_to_mean_std_max_and_min() -> None:
    assert logged(a_batch()).metrics[0] == pytest.approx(
        {
            "reward_mean": 3.0,
            "reward_std": 3.5**0.5,
            "reward_max": 6.0,
            "reward_min": 1.0,
            "similarity_mean": 0.75,
            "similarity_std": 0.25,
            "similarity_max": 1.0,
            "similarity_min": 0.5,
            "episode_length_mean": 25.0,
            "episode_length_std": 125**0.5,
            "episode_length_max": 40.0,
            "episode_length_min": 10.0,
            "success_rate": 0.5,
            "policy_loss": 0.25,
            "value_loss": 0.5,
            "gradient_norm": 2.0,
        }
    )


def test_metrics_are_python_floats() -> None:
    assert {type(value) for value in logged(a_batch()).metrics[0].values()} == {float}


def test_other_scalars_of_any_type_are_logged() -> None:
    extra = {"entropy": jnp.float32(1.5), "learning_rate": 3e-4, "updates": np.int64(7), "kl": jnp.int32(2)}
    metrics = logged({"update_step": 0, **extra}).metrics[0]
    assert metrics == {"entropy": 1.5, "learning_rate": 3e-4, "updates": 7.0, "kl": 2.0}


def test_unknown_arrays_are_skipped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    handler = RecordingHandler()
    logger = ExperimentLogger(BATCHED, {"memory": handler})
    for step in (0, 10):
        logger.log_batch_step({"update_step": step, "advantages": jnp.zeros(4), "entropy": 1.0})
    assert handler.metrics == {0: {"entropy": 1.0}, 10: {"entropy": 1.0}}
    assert caplog.messages == ["batch_data['advantages'] is neither a known key nor a scalar; left out"]


@pytest.mark.parametrize(
    "key", ["episode_returns", "episode_lengths", "similarity_scores", "success_mask", "policy_loss"]
)
def test_every_key_may_be_absent(key: str) -> None:
    batch = a_batch()
    del batch[key]
    handler = logged(batch)
    prefix = {
        "episode_returns": "reward_",
        "episode_lengths": "episode_length_",
        "similarity_scores": "similarity_",
        "success_mask": "success_rate",
        "policy_loss": "policy_loss",
    }[key]
    assert not [name for name in handler.metrics[0] if name.startswith(prefix)]
    assert len(handler.episodes) == 3


def test_an_empty_update_has_no_metrics_and_no_episodes() -> None:
    handler = logged({})
    assert handler.metrics == {0: {}} and handler.episodes == []


def test_metrics_come_every_ten_updates_and_samples_every_fifty() -> None:
    handler = RecordingHandler()
    logger = ExperimentLogger(BATCHED, {"memory": handler})
    for step in range(101):
        logger.log_batch_step(a_batch(step))
    assert list(handler.metrics) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert [episode["episode_num"] for episode in handler.episodes] == [0, 0, 0, 50, 50, 50, 100, 100, 100]


def test_a_frequency_of_0_turns_metrics_or_samples_off() -> None:
    handler = logged(a_batch(), LoggingConfig(log_frequency=0))
    assert handler.metrics == {} and len(handler.episodes) == 3
    handler = logged(a_batch(), BATCHED.model_copy(update={"sample_frequency": 0}))
    assert list(handler.metrics) == [0] and handler.episodes == []


def test_sampled_episodes_are_requested_only_when_they_are_due() -> None:
    handler = RecordingHandler()
    logger = ExperimentLogger(LoggingConfig(log_frequency=0, sample_frequency=2), {"memory": handler})
    requested = []
    for step in range(1, 5):

        def sampled_episodes(step: int = step) -> list[dict[str, Any]]:
            requested.append(step)
            return [{"episode_num": step}]

        logger.log_batch_step(a_batch(step), sampled_episodes)
    assert requested == [2, 4] and handler.episodes == [{"episode_num": 2}, {"episode_num": 4}]


def test_sampled_episodes_contain_the_values_of_their_row() -> None:
    config = LoggingConfig(num_samples=9)
    batch = a_batch(50, task_ids=["a", "b", "c", "d"], final_states=jnp.arange(8).reshape(4, 2))
    first, *_, last = logged(batch, config).episodes
    assert len(logged(batch, config).episodes) == 4, "no more than there are"
    final = {"first": first.pop("final_state"), "last": last.pop("final_state")}
    assert first == {
        "episode_num": 50,
        "total_reward": 1.0,
        "total_steps": 10,
        "final_similarity": 0.5,
        "success": False,
        "environment_id": 0,
        "task_id": "a",
        "initial_state": None,
    }
    assert final["first"].tolist() == [0, 1] and final["last"].tolist() == [6, 7]
    assert last["task_id"] == "d" and last["total_reward"] == 6.0


def test_samples_without_task_ids_are_named_after_their_environment() -> None:
    for episode in logged(a_batch()).episodes:
        assert episode["task_id"] == f"batch_task_{episode['environment_id']}"
    numbered = logged(a_batch(task_ids=jnp.array([7, 8, 9, 10]))).episodes
    assert {e["environment_id"]: e["task_id"] for e in numbered} == {
        e["environment_id"]: str(e["environment_id"] + 7) for e in numbered
    }


@settings(max_examples=30, deadline=None)
@given(step=st.integers(0, 2**31 - 1))
def test_sampling_is_a_function_of_the_update_step_and_never_repeats_an_environment(step: int) -> None:
    config = LoggingConfig(sample_frequency=1)
    once, again = (
        [episode["environment_id"] for episode in logged(a_batch(step), config).episodes] for _ in range(2)
    )
    assert once == again and len(set(once)) == 3 and set(once) <= {0, 1, 2, 3}


def test_other_updates_sample_other_environments() -> None:
    config = LoggingConfig(sample_frequency=1, num_samples=1)
    rows = {logged(a_batch(step), config).episodes[0]["environment_id"] for step in range(20)}
    assert rows == {0, 1, 2, 3}


def test_episode_mask_selects_finished_episodes() -> None:
    handler = logged(a_batch(episode_mask=jnp.array([True, False, False, True])))
    metrics = handler.metrics[0]
    assert (metrics["reward_mean"], metrics["reward_max"], metrics["reward_min"]) == (3.5, 6.0, 1.0)
    assert metrics["success_rate"] == 0.0 and metrics["episode_length_std"] == 15.0
    assert sorted(episode["environment_id"] for episode in handler.episodes) == [0, 3]


def test_without_finished_episodes_only_scalars_are_logged() -> None:
    handler = logged(a_batch(episode_mask=jnp.zeros(4, bool)))
    assert set(handler.metrics[0]) == {"policy_loss", "value_loss", "gradient_norm"}
    assert handler.episodes == []


@pytest.mark.parametrize("size", [1_024, 10_000, 100_000])
def test_large_batches_are_aggregated_exactly(size: int) -> None:
    values = jnp.arange(size, dtype=jnp.float32)
    mask = values % 2 == 1
    handler = logged({"episode_returns": values, "success_mask": mask, "episode_mask": mask})
    metrics = handler.metrics[0]
    assert (metrics["reward_min"], metrics["reward_max"], metrics["success_rate"]) == (1, size - 1, 1)
    assert metrics["reward_mean"] == pytest.approx(size / 2, rel=1e-5)
    assert all(episode["environment_id"] % 2 == 1 for episode in handler.episodes)


class Pair(NamedTuple):
    grid: Any
    key: Any


def test_batched_states_can_be_any_pytree_with_prng_keys() -> None:
    states = Pair(jnp.arange(12, dtype=jnp.int8).reshape(4, 3), jax.random.split(jax.random.key(0), 4))
    for episode in logged(a_batch(initial_states=states)).episodes:
        row = episode["environment_id"]
        assert isinstance(episode["initial_state"], Pair)
        assert episode["initial_state"].grid.tolist() == [3 * row, 3 * row + 1, 3 * row + 2]
        assert (episode["initial_state"].key == jax.random.key_data(states.key[row])).all()


def test_states_can_be_a_list_of_any_objects() -> None:
    states = ["state 0", "state 1", "state 2", "state 3"]
    for episode in logged(a_batch(final_states=states)).episodes:
        assert episode["final_state"] == f"state {episode['environment_id']}"


def test_arrays_of_different_batch_sizes_are_rejected() -> None:
    with pytest.raises(
        ValueError, match="must have the same size, but episode_returns has 4, episode_lengths has 3"
    ):
        logged(a_batch(episode_lengths=jnp.zeros(3)))
    with pytest.raises(ValueError, match=r"batch_data\['success_mask'\] must have one value per environment"):
        logged(a_batch(success_mask=jnp.zeros((4, 2), bool)))
    with pytest.raises(ValueError, match="update_step must not be negative, got -1"):
        logged(a_batch(-1))


def test_bfloat16_scalars_are_logged() -> None:
    assert logged({"policy_loss": jnp.bfloat16(1.5)}).metrics[0] == {"policy_loss": 1.5}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("final_states", jnp.zeros((1, 2)), "has 1 environments, but the batch has 4"),
        ("initial_states", ["one", "two"], "has 2 environments, but the batch has 4"),
        ("task_ids", ["a"], "has 1 environments, but the batch has 4"),
        ("task_ids", jnp.arange(9), "has 9 environments, but the batch has 4"),
    ],
)
def test_ids_and_states_of_another_batch_size_are_skipped_with_one_warning(
    key: str, value: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = RecordingHandler()
    logger = ExperimentLogger(BATCHED, {"memory": handler})
    for step in (0, 50):
        logger.log_batch_step(a_batch(step, **{key: value}))
    assert caplog.messages == [f"batch_data[{key!r}] {why}; left out"]
    assert len(handler.episodes) == 6
    for episode in handler.episodes:
        assert episode["task_id"] == f"batch_task_{episode['environment_id']}"
        assert episode["initial_state"] is None and episode["final_state"] is None


def test_arrays_are_transferred_only_on_updates_that_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    transferred: list[Any] = []
    to_host = aggregation._to_host

    def counted(values: Any) -> Any:
        transferred.append(values)
        return to_host(values)

    monkeypatch.setattr(aggregation, "_to_host", counted)
    logger = ExperimentLogger(BATCHED, {})
    counts = {}
    for step in (7, 10, 50):
        transferred.clear()
        logger.log_batch_step(a_batch(step))
        counts[step] = len(transferred)
    assert counts == {7: 0, 10: 1, 50: 1}


def test_handlers_without_a_method_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    class StepHandler:
        def __init__(self) -> None:
            self.steps: list[Any] = []

        def log_step(self, step_data: Any) -> None:
            self.steps.append(step_data)

    handler: Any = StepHandler()
    with ExperimentLogger(BATCHED, {"steps": handler}) as logger:
        logger.log_batch_step(a_batch(0))
        logger.log_step({"step_num": 1})
    assert handler.steps == [{"step_num": 1}] and not caplog.messages


def test_a_failing_handler_is_reported_once_and_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = RecordingHandler()
    logger = ExperimentLogger(BATCHED, {"broken": BrokenHandler(), "good": good})
    for step in (0, 10, 20):
        logger.log_batch_step(a_batch(step))
    logger.log_task_start({"task_id": "a"})
    logger.log_step({"step_num": 1})
    assert caplog.messages == [
        "handler 'broken' failed in log_aggregated_metrics: RuntimeError: no space left; "
        "training continues, and further errors of this handler are only counted"
    ]
    assert list(good.metrics) == [0, 10, 20] and len(good.episodes) == 3
    assert good.tasks == [{"task_id": "a"}] and good.steps == [{"step_num": 1}]
    logger.close()
    assert good.closed
    assert caplog.messages[1:] == ["handler 'broken' failed 9 times in this run"]
    assert logger.failures == {"broken": 9}


def test_keyboard_interrupts_in_handlers_propagate() -> None:
    class Interrupted(RecordingHandler):
        def log_step(self, step_data: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ExperimentLogger(BATCHED, {"interrupted": Interrupted()}).log_step({})


def test_all_handlers_receive_configs_evaluations_and_images() -> None:
    told: list[Any] = []

    class Listening(RecordingHandler):
        def log_config(self, config: Any, metadata: Any) -> None:
            told.append((config, metadata))

        def log_evaluation(self, record: Any) -> None:
            told.append(record)

        def log_picture(self, name: str, picture: Any, step: int) -> None:
            told.append((name, picture.svg, step))

    logger = ExperimentLogger(
        BATCHED,
        {"broken": BrokenHandler(), "listening": Listening()},
        render=lambda state, mode: f"<svg>{state}</svg>",
    )
    logger.log_config({"seed": 1}, {"cores": 2})
    logger.log_evaluation({"step": 3, "success_rate": 0.5})
    logger.log_picture("curve", "<svg/></svg>", 3)
    logger.log_episode_summary({"episode_num": 3, "final_state": 7})
    logger.log_episode_summary({"episode_num": 3, "final_state": 8})
    assert told == [
        ({"seed": 1}, {"cores": 2}),
        {"step": 3, "success_rate": 0.5},
        ("curve", "<svg/></svg>", 3),
        ("episode_0/final", "<svg>7</svg>", 3),
        ("episode_1/final", "<svg>8</svg>", 3),
    ]
    with pytest.raises(ValueError, match="needs the number of its update as `step`"):
        logger.log_evaluation({"success_rate": 0.5})


def test_leaving_the_block_closes_the_handlers() -> None:
    handler = RecordingHandler()
    with ExperimentLogger(BATCHED, {"memory": handler}):
        assert not handler.closed
    assert handler.closed
