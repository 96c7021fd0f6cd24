"""Every name of the other projects can be imported from its module after changing the import root."""

import importlib

import pytest

NAMES = {
    "jaxarc.state": "ArcEnvState",
    "jaxarc.types": "JaxArcTask",
    "jaxarc.agents": "RandomAgent VectorizedRandomAgent",
    "jaxarc.envs.config": "JaxArcConfig EnvironmentConfig UnifiedDatasetConfig UnifiedActionConfig "
    "RewardConfig LoggingConfig validate_batched_logging_config",
    "jaxarc.envs.functional": "batch_reset batch_step arc_reset arc_step safe_arc_step run_episode_batch "
    "create_batch_episode_runner StepInfo create_observation validate_action_jax check_bounds_jax "
    "NUM_OPERATIONS create_mock_task",
    "jaxarc.envs.structured_actions": "PointAction BboxAction MaskAction StructuredAction "
    "create_point_action create_bbox_action create_mask_action",
    "jaxarc.batch_processing": "find_optimal_batch_size analyze_memory_usage warm_up_batch_functions "
    "BatchPerformanceMonitor inspect_batch_states stack_states stack_actions pad_states pad_actions "
    "unpad_results combine_batch_results process_dynamic_batch batch_policy_rollout compute_batch_values "
    "extract_state_features NetworkPolicy",
    "jaxarc.utils.logging": "ExperimentLogger MinimalAsyncLogger FileHandler SVGHandler RichHandler "
    "WandbHandler",
    "deepprooflog.batched_env": "BatchedVecEnv QuerySchedule",
    "deepprooflog.env_factory": "create_environments",
    "deepprooflog.model_eval": "evaluate_policy_torchrl evaluate_policy _configure_env_batch QueryEpisodes",
    "deepprooflog.data_handler": "DataHandler",
    "deepprooflog.index_manager": "IndexManager",
}
NAMES["jaxarc.envs"] = " ".join(
    NAMES[f"jaxarc.envs.{module}"] for module in ("config", "functional", "structured_actions")
)


@pytest.mark.parametrize("module", NAMES)
def test_names_can_be_imported(module: str) -> None:
    if module in ("deepprooflog.batched_env", "deepprooflog.env_factory", "deepprooflog.model_eval"):
        pytest.importorskip("torchrl")
    imported = importlib.import_module(f"phalanx.compat.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(imported, name)] == []
