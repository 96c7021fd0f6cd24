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
BATCHING = {
    "core.buckets": "BucketSpec BucketStats BucketId",
    "core.sampler": "TokenBudgetBatchSampler BatchSpec",
    "core.metrics": "BatchMetrics BatchShapeHistogram",
    "planning.batch_plan": "BatchPlan BatchPlanBuilder BatchPlanMeta EpochPlan MicrobatchSpec "
    "save_batch_plan load_batch_plan save_batch_plan_async load_batch_plan_async",
    "planning.predictability": "BatchingConfig BatchingMode PadPolicy BatchFingerprint "
    "compute_batch_fingerprint verify_batch_fingerprint save_fingerprint load_fingerprint "
    "compute_batch_fingerprint_async verify_batch_fingerprint_async save_fingerprint_async "
    "load_fingerprint_async",
    "planning.packing": "PackingConfig PackingMode SequenceToPack PackedSequence pack_sequences "
    "create_segment_attention_mask PackingMetrics compute_packing_metrics",
    "generation.io": "BatchWriter BatchReader CollatedBatch default_collate pad_sequences",
    "generation.length_cache": "LengthCache LengthEntry",
    "analyze.efficiency": "compute_length_histogram LengthHistogram HistogramBin analyze_bucket_efficiency "
    "BucketAnalysis BucketEfficiency suggest_bucket_edges BucketSuggestion OptimizationGoal "
    "create_efficiency_report BatchingEfficiencyReport visualize_buckets",
    "streaming.telnet_client": "TelnetGymClient TelnetClientConfig PuzzleGame PuzzleDifficulty "
    "PuzzleObservation PuzzleHint PuzzleResult PuzzleCompletion PuzzleStats",
    "streaming.gym_stream": "GymEpisodeStream MockGymStream GymConfig",
    "streaming.replay_buffer": "ReplayBuffer ReplayBufferConfig BufferEvictionPolicy BufferSnapshot",
    "streaming.rolling_window": "RollingBatchPlanWindow WindowConfig WindowState",
    "streaming.types": "StreamSample StreamMetrics SampleSource EpisodeStatus StreamState",
    "streaming.protocols": "SampleStream AsyncSampleStream",
    "streaming.offline_stream": "OfflineDatasetStream AsyncOfflineDatasetStream",
}
"""Names of `chuk_lazarus.data.batching` by module. Each package exports the names of its modules."""
for _module, _names in BATCHING.items():
    _package = _module.partition(".")[0]
    _targets = [_module, _package] if _package == "streaming" else [_module, _package, ""]
    for _target in _targets:
        _path = f"chuk_lazarus.data.batching.{_target}".rstrip(".")
        NAMES[_path] = f"{NAMES.get(_path, '')} {_names}"
NAMES["chuk_lazarus.data"] = NAMES["chuk_lazarus.data.batching"]
NAMES["jaxarc.envs"] = " ".join(
    NAMES[f"jaxarc.envs.{module}"] for module in ("config", "functional", "structured_actions")
)


@pytest.mark.parametrize("module", NAMES)
def test_names_can_be_imported(module: str) -> None:
    if module in ("deepprooflog.batched_env", "deepprooflog.env_factory", "deepprooflog.model_eval"):
        pytest.importorskip("torchrl")
    imported = importlib.import_module(f"phalanx.compat.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(imported, name)] == []
