"""Token samples, sequence packing, batch plans, streaming plans and replay buffers."""

from phalanx.data.attention_masks import (
    create_segment_attention_mask as create_segment_attention_mask,
    cu_seqlens as cu_seqlens,
)
from phalanx.data.batch_files import BatchReader as BatchReader, BatchWriter as BatchWriter
from phalanx.data.bucket_search import (
    OptimizationGoal as OptimizationGoal,
    analyze_bucket_efficiency as analyze_bucket_efficiency,
    suggest_bucket_edges as suggest_bucket_edges,
)
from phalanx.data.chat_template import ChatTemplate as ChatTemplate, load_chat_template as load_chat_template
from phalanx.data.collation import (
    TokenBatch as TokenBatch,
    collate as collate,
    iter_packed_batches as iter_packed_batches,
    pack_tokens as pack_tokens,
)
from phalanx.data.efficiency_report import create_efficiency_report as create_efficiency_report
from phalanx.data.length_cache import LengthCache as LengthCache
from phalanx.data.length_histogram import compute_length_histogram as compute_length_histogram
from phalanx.data.lengths import LengthTable as LengthTable, SkippedSample as SkippedSample
from phalanx.data.metrics import BatchMetrics as BatchMetrics
from phalanx.data.packed_dataset import pack_dataset as pack_dataset
from phalanx.data.packing import (
    OverlongPolicy as OverlongPolicy,
    PackingConfig as PackingConfig,
    PackingMode as PackingMode,
    PackLayout as PackLayout,
    assign_packs as assign_packs,
    pack_lengths as pack_lengths,
)
from phalanx.data.plans.batch_plan import (
    BatchPlan as BatchPlan,
    BatchPlanBuilder as BatchPlanBuilder,
    BatchPlanMeta as BatchPlanMeta,
    BatchSpec as BatchSpec,
    EpochPlan as EpochPlan,
    Plan as Plan,
    PlanIterator as PlanIterator,
)
from phalanx.data.plans.batching_config import (
    BatchingConfig as BatchingConfig,
    BatchingMode as BatchingMode,
    PadPolicy as PadPolicy,
)
from phalanx.data.plans.buckets import BucketSpec as BucketSpec
from phalanx.data.plans.mixture import MixtureConfig as MixtureConfig, MixtureMilestone as MixtureMilestone
from phalanx.data.plans.plan_comparison import (
    PlanDifference as PlanDifference,
    compare_plans as compare_plans,
    verify_batch_plan as verify_batch_plan,
)
from phalanx.data.plans.plan_files import (
    load_batch_plan as load_batch_plan,
    save_batch_plan as save_batch_plan,
)
from phalanx.data.plans.sharding import RemainderPolicy as RemainderPolicy, ShardingConfig as ShardingConfig
from phalanx.data.plans.stream_sources import (
    IterableSource as IterableSource,
    ShuffledDatasetSource as ShuffledDatasetSource,
    StreamSource as StreamSource,
)
from phalanx.data.plans.streaming_plan import (
    StreamingPlan as StreamingPlan,
    StreamingPlanConfig as StreamingPlanConfig,
)
from phalanx.data.readers import iter_rows as iter_rows
from phalanx.data.replay_buffer import (
    EvictionPolicy as EvictionPolicy,
    ReplayBuffer as ReplayBuffer,
    ReplayBufferConfig as ReplayBufferConfig,
    SampleFilter as SampleFilter,
)
from phalanx.data.replay_planner import (
    ReplayPlanner as ReplayPlanner,
    ReplayPlannerConfig as ReplayPlannerConfig,
)
from phalanx.data.samples import (
    EpisodeStatus as EpisodeStatus,
    Sample as Sample,
    SampleInfo as SampleInfo,
    SampleOrigin as SampleOrigin,
    TokenDataset as TokenDataset,
    load_samples as load_samples,
    save_samples as save_samples,
)
from phalanx.data.token_budget_sampler import TokenBudgetBatchSampler as TokenBudgetBatchSampler
from phalanx.data.tokenization import (
    TokenizeConfig as TokenizeConfig,
    TokenizeStats as TokenizeStats,
    iter_lengths as iter_lengths,
    tokenize_dataset as tokenize_dataset,
    tokenize_rows as tokenize_rows,
)
from phalanx.data.tokenizers import (
    ByteTokenizer as ByteTokenizer,
    CharTokenizer as CharTokenizer,
    HFTokenizer as HFTokenizer,
    Tokenizer as Tokenizer,
    load_tokenizer as load_tokenizer,
)
