"""Token samples, sequence packing, batch plans, streaming plans and replay buffers."""

from phalanx.data.attention_masks import create_segment_attention_mask, cu_seqlens
from phalanx.data.batch_files import BatchReader, BatchWriter
from phalanx.data.bucket_edges import OptimizationGoal, analyze_bucket_efficiency, suggest_bucket_edges
from phalanx.data.chat_template import ChatTemplate, load_chat_template
from phalanx.data.collation import TokenBatch, collate, iter_packed_batches, pack_tokens
from phalanx.data.efficiency_report import create_efficiency_report
from phalanx.data.episode_tokens import EpisodeTokenizer, StepTokens
from phalanx.data.length_cache import LengthCache
from phalanx.data.length_histogram import compute_length_histogram
from phalanx.data.lengths import LengthTable, SkippedSample
from phalanx.data.metrics import BatchMetrics
from phalanx.data.packed_dataset import pack_dataset
from phalanx.data.packing import (
    OverlongPolicy,
    PackingConfig,
    PackingMode,
    PackLayout,
    assign_packs,
    pack_lengths,
)
from phalanx.data.plans.batch_plan import (
    BatchPlan,
    BatchPlanBuilder,
    BatchPlanMeta,
    BatchSpec,
    EpochPlan,
    Plan,
    PlanIterator,
)
from phalanx.data.plans.batching_config import BatchingConfig, BatchingMode, PadPolicy
from phalanx.data.plans.buckets import BucketSpec
from phalanx.data.plans.mixture import Mixture, MixtureStage
from phalanx.data.plans.plan_comparison import PlanDifference, compare_plans, verify_batch_plan
from phalanx.data.plans.plan_files import load_batch_plan, save_batch_plan
from phalanx.data.plans.sharding import ShardPolicy, ShardSpec
from phalanx.data.plans.stream_sources import DatasetSource, IterableSource, StreamSource
from phalanx.data.plans.streaming_plan import StreamingPlan, StreamingPlanConfig
from phalanx.data.readers import iter_rows
from phalanx.data.replay_buffer import EvictionPolicy, ReplayBuffer, ReplayBufferConfig, SampleFilter
from phalanx.data.replay_planner import ReplayPlanner, ReplayPlannerConfig
from phalanx.data.samples import (
    EpisodeStatus,
    Sample,
    SampleInfo,
    SampleOrigin,
    TokenDataset,
    read_samples,
    write_samples,
)
from phalanx.data.token_budget_sampler import TokenBudgetBatchSampler
from phalanx.data.tokenization import (
    TokenizeConfig,
    TokenizeStats,
    iter_lengths,
    tokenize_dataset,
    tokenize_rows,
)
from phalanx.data.tokenizers import ByteTokenizer, CharTokenizer, HFTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "BatchMetrics",
    "BatchPlan",
    "BatchPlanBuilder",
    "BatchPlanMeta",
    "BatchReader",
    "BatchSpec",
    "BatchWriter",
    "BatchingConfig",
    "BatchingMode",
    "BucketSpec",
    "ByteTokenizer",
    "CharTokenizer",
    "ChatTemplate",
    "DatasetSource",
    "EpisodeStatus",
    "EpisodeTokenizer",
    "EpochPlan",
    "EvictionPolicy",
    "HFTokenizer",
    "IterableSource",
    "LengthCache",
    "LengthTable",
    "Mixture",
    "MixtureStage",
    "OptimizationGoal",
    "OverlongPolicy",
    "PackLayout",
    "PackingConfig",
    "PackingMode",
    "PadPolicy",
    "Plan",
    "PlanDifference",
    "PlanIterator",
    "ReplayBuffer",
    "ReplayBufferConfig",
    "ReplayPlanner",
    "ReplayPlannerConfig",
    "Sample",
    "SampleFilter",
    "SampleInfo",
    "SampleOrigin",
    "ShardPolicy",
    "ShardSpec",
    "SkippedSample",
    "StepTokens",
    "StreamSource",
    "StreamingPlan",
    "StreamingPlanConfig",
    "TokenBatch",
    "TokenBudgetBatchSampler",
    "TokenDataset",
    "TokenizeConfig",
    "TokenizeStats",
    "Tokenizer",
    "analyze_bucket_efficiency",
    "assign_packs",
    "collate",
    "compare_plans",
    "compute_length_histogram",
    "create_efficiency_report",
    "create_segment_attention_mask",
    "cu_seqlens",
    "iter_lengths",
    "iter_packed_batches",
    "iter_rows",
    "load_batch_plan",
    "load_chat_template",
    "load_tokenizer",
    "pack_dataset",
    "pack_lengths",
    "pack_tokens",
    "read_samples",
    "save_batch_plan",
    "suggest_bucket_edges",
    "tokenize_dataset",
    "tokenize_rows",
    "verify_batch_plan",
    "write_samples",
]
