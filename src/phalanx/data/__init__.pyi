# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .analysis.charts import (
    draw_bucket_efficiency as draw_bucket_efficiency,
    draw_bucketing_vs_packing as draw_bucketing_vs_packing,
    draw_length_histogram as draw_length_histogram,
    save_chart as save_chart,
)
from .analysis.report import (
    BatchingEfficiencyReport as BatchingEfficiencyReport,
    PackingEstimate as PackingEstimate,
    create_efficiency_report as create_efficiency_report,
)
from .batch_files import BatchReader as BatchReader, BatchWriter as BatchWriter
from .bucket_search import (
    BucketAnalysis as BucketAnalysis,
    BucketEfficiency as BucketEfficiency,
    BucketSuggestion as BucketSuggestion,
    OptimizationGoal as OptimizationGoal,
    analyze_bucket_efficiency as analyze_bucket_efficiency,
    suggest_bucket_edges as suggest_bucket_edges,
    visualize_buckets as visualize_buckets,
)
from .chat_template import ChatTemplate as ChatTemplate, load_chat_template as load_chat_template
from .collation import (
    CollatedBatch as CollatedBatch,
    collate_microbatch as collate_microbatch,
    default_collate as default_collate,
    pad_sequences as pad_sequences,
)
from .corpus import LengthWorkerError as LengthWorkerError
from .episode_tokens import EpisodeTokenizer as EpisodeTokenizer, StepTokens as StepTokens
from .finetuning.samples import TokenizeConfig as TokenizeConfig, TokenizeStats as TokenizeStats
from .length_analysis import (
    HistogramBin as HistogramBin,
    LengthHistogram as LengthHistogram,
    compute_length_histogram as compute_length_histogram,
)
from .length_cache import LengthCache as LengthCache, LengthEntry as LengthEntry
from .lengths import Lengths as Lengths, LengthTable as LengthTable, SkippedSample as SkippedSample
from .metrics import BatchMetrics as BatchMetrics, BatchShapeHistogram as BatchShapeHistogram
from .moved import with_moved as with_moved
from .offline_stream import (
    AsyncOfflineDatasetStream as AsyncOfflineDatasetStream,
    OfflineDatasetStream as OfflineDatasetStream,
    write_samples as write_samples,
)
from .packed_batch import (
    PackedBatch as PackedBatch,
    create_segment_attention_mask as create_segment_attention_mask,
    cu_seqlens as cu_seqlens,
    iter_packed_batches as iter_packed_batches,
    pack_tokens as pack_tokens,
)
from .packing import PackLayout as PackLayout, assign_packs as assign_packs, pack_lengths as pack_lengths
from .packing_config import (
    OverlongPolicy as OverlongPolicy,
    PackingConfig as PackingConfig,
    PackingMode as PackingMode,
)
from .plans.arrays import EpochBatches as EpochBatches, MicrobatchSpec as MicrobatchSpec
from .plans.batch_plan import (
    BatchPlan as BatchPlan,
    BatchPlanMeta as BatchPlanMeta,
    MissingEpochError as MissingEpochError,
)
from .plans.batching_config import (
    BatchingConfig as BatchingConfig,
    BatchingMode as BatchingMode,
    PadPolicy as PadPolicy,
)
from .plans.buckets import BucketId as BucketId, BucketSpec as BucketSpec, BucketStats as BucketStats
from .plans.builder import (
    BatchPlanBuilder as BatchPlanBuilder,
    PlanDifference as PlanDifference,
    compare_plans as compare_plans,
    verify_batch_plan as verify_batch_plan,
)
from .plans.epoch_plan import EpochPlan as EpochPlan
from .plans.mixture import Mixture as Mixture, MixtureStage as MixtureStage
from .plans.plan_files import (
    load_batch_plan as load_batch_plan,
    load_batch_plan_async as load_batch_plan_async,
    save_batch_plan as save_batch_plan,
    save_batch_plan_async as save_batch_plan_async,
)
from .plans.plan_fingerprint import (
    BatchFingerprint as BatchFingerprint,
    compute_batch_fingerprint as compute_batch_fingerprint,
    compute_batch_fingerprint_async as compute_batch_fingerprint_async,
    load_fingerprint as load_fingerprint,
    load_fingerprint_async as load_fingerprint_async,
    save_fingerprint as save_fingerprint,
    save_fingerprint_async as save_fingerprint_async,
    verify_batch_fingerprint as verify_batch_fingerprint,
)
from .plans.sharding import (
    ShardBalance as ShardBalance,
    ShardInfo as ShardInfo,
    ShardPolicy as ShardPolicy,
    ShardSpec as ShardSpec,
)
from .plans.stream_sources import (
    DatasetSource as DatasetSource,
    IterableSource as IterableSource,
    SimulatedSource as SimulatedSource,
    StreamSource as StreamSource,
)
from .plans.streaming_plan import (
    LiveBatch as LiveBatch,
    StreamingPlan as StreamingPlan,
    StreamingPlanConfig as StreamingPlanConfig,
    StreamingState as StreamingState,
)
from .processes import iterate_lengths_in_processes as iterate_lengths_in_processes
from .ray_lengths import RayWorkerError as RayWorkerError, iterate_lengths_on_ray as iterate_lengths_on_ray
from .readers import (
    SourceSample as SourceSample,
    TokenizedSample as TokenizedSample,
    iterate_lengths as iterate_lengths,
    iterate_samples as iterate_samples,
    tokenize_samples as tokenize_samples,
)
from .replay.config import (
    EvictionPolicy as EvictionPolicy,
    ReplayBufferConfig as ReplayBufferConfig,
    SampleFilter as SampleFilter,
)
from .replay.files import SampleFileError as SampleFileError
from .replay.rows import BufferSnapshot as BufferSnapshot
from .replay.stats import ReplayStats as ReplayStats
from .replay_buffer import ReplayBuffer as ReplayBuffer
from .replay_planner import (
    RollingBatchPlanWindow as RollingBatchPlanWindow,
    WhenCovered as WhenCovered,
    WindowConfig as WindowConfig,
    WindowState as WindowState,
)
from .samples import (
    EpisodeStatus as EpisodeStatus,
    SampleSource as SampleSource,
    StreamSample as StreamSample,
    StreamState as StreamState,
)
from .sequences import (
    PackedSequence as PackedSequence,
    PackedSequences as PackedSequences,
    PackingMetrics as PackingMetrics,
    SequenceToPack as SequenceToPack,
    compute_packing_metrics as compute_packing_metrics,
    pack_sequences as pack_sequences,
)
from .stream_base import (
    AsyncSampleStream as AsyncSampleStream,
    SampleStream as SampleStream,
    StreamMetrics as StreamMetrics,
)
from .sum_tree import Handles as Handles, ReplayDraw as ReplayDraw
from .token_budget_sampler import BatchSpec as BatchSpec, TokenBudgetBatchSampler as TokenBudgetBatchSampler
from .tokenization import tokenize_rows as tokenize_rows
from .tokenizers import (
    BoundedTokenizer as BoundedTokenizer,
    ByteTokenizer as ByteTokenizer,
    CharTokenizer as CharTokenizer,
    HFTokenizer as HFTokenizer,
    Tokenizer as Tokenizer,
    load_tokenizer as load_tokenizer,
)
