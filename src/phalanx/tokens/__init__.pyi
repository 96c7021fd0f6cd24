# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .analysis.charts import (
    draw_bucket_efficiency as draw_bucket_efficiency,
    draw_bucketing_vs_packing as draw_bucketing_vs_packing,
    draw_length_histogram as draw_length_histogram,
    save_chart as save_chart,
)
from .analysis.efficiency import (
    BucketAnalysis as BucketAnalysis,
    BucketEfficiency as BucketEfficiency,
    BucketSuggestion as BucketSuggestion,
    OptimizationGoal as OptimizationGoal,
    analyze_bucket_efficiency as analyze_bucket_efficiency,
    suggest_bucket_edges as suggest_bucket_edges,
    visualize_buckets as visualize_buckets,
)
from .analysis.histogram import (
    HistogramBin as HistogramBin,
    LengthHistogram as LengthHistogram,
    compute_length_histogram as compute_length_histogram,
)
from .analysis.report import (
    BatchingEfficiencyReport as BatchingEfficiencyReport,
    PackingEstimate as PackingEstimate,
    create_efficiency_report as create_efficiency_report,
)
from .batches.collation import (
    CollatedBatch as CollatedBatch,
    collate_microbatch as collate_microbatch,
    default_collate as default_collate,
    pad_sequences as pad_sequences,
)
from .batches.files import BatchReader as BatchReader, BatchWriter as BatchWriter
from .finetuning.chat import ChatTemplate as ChatTemplate, load_chat_template as load_chat_template
from .finetuning.rows import tokenize_rows as tokenize_rows
from .finetuning.samples import (
    FinetuningConfig as FinetuningConfig,
    FinetuningCounts as FinetuningCounts,
)
from .lengths.cache import LengthCache as LengthCache, LengthEntry as LengthEntry
from .lengths.corpus import LengthWorkerError as LengthWorkerError
from .lengths.processes import iterate_lengths_in_processes as iterate_lengths_in_processes
from .lengths.ray import (
    RayWorkerError as RayWorkerError,
    iterate_lengths_on_ray as iterate_lengths_on_ray,
)
from .lengths.sources import (
    SourceSample as SourceSample,
    TokenizedSample as TokenizedSample,
    iterate_lengths as iterate_lengths,
    iterate_samples as iterate_samples,
    tokenize_samples as tokenize_samples,
)
from .lengths.table import (
    Lengths as Lengths,
    LengthTable as LengthTable,
    SkippedSample as SkippedSample,
)
from .lengths.tokenizers import (
    BoundedTokenizer as BoundedTokenizer,
    ByteTokenizer as ByteTokenizer,
    CharacterTokenizer as CharacterTokenizer,
    FileTokenizer as FileTokenizer,
    Tokenizer as Tokenizer,
    load_tokenizer as load_tokenizer,
)
from .live.mixture import Mixture as Mixture, MixturePoint as MixturePoint
from .live.plan import (
    LiveBatch as LiveBatch,
    LivePlan as LivePlan,
    LivePlanConfig as LivePlanConfig,
    LiveState as LiveState,
)
from .live.sources import (
    IterableSource as IterableSource,
    LiveSource as LiveSource,
    SimulatedSource as SimulatedSource,
    TableSource as TableSource,
)
from .packing.config import (
    OverlongPolicy as OverlongPolicy,
    PackingConfig as PackingConfig,
    PackingMode as PackingMode,
)
from .packing.layout import (
    PackLayout as PackLayout,
    lay_out_packs as lay_out_packs,
    pack_lengths as pack_lengths,
)
from .packing.packed_batch import (
    PackedBatch as PackedBatch,
    create_segment_attention_mask as create_segment_attention_mask,
    cu_seqlens_of as cu_seqlens_of,
    iter_packed_batches as iter_packed_batches,
    pack_tokens as pack_tokens,
)
from .packing.sequences import (
    PackedSequence as PackedSequence,
    PackedSequences as PackedSequences,
    PackingMetrics as PackingMetrics,
    SequenceToPack as SequenceToPack,
    compute_packing_metrics as compute_packing_metrics,
    pack_sequences as pack_sequences,
)
from .plans.arrays import BatchArrays as BatchArrays, MicrobatchSpec as MicrobatchSpec
from .plans.buckets import BucketId as BucketId, BucketSpec as BucketSpec, BucketStats as BucketStats
from .plans.builder import (
    BatchPlanBuilder as BatchPlanBuilder,
    PlanDifference as PlanDifference,
    compare_plans as compare_plans,
    verify_batch_plan as verify_batch_plan,
)
from .plans.config import (
    BatchingConfig as BatchingConfig,
    BatchingMode as BatchingMode,
    PadPolicy as PadPolicy,
)
from .plans.epoch import EpochPlan as EpochPlan
from .plans.files import (
    load_batch_plan as load_batch_plan,
    load_batch_plan_async as load_batch_plan_async,
    save_batch_plan as save_batch_plan,
    save_batch_plan_async as save_batch_plan_async,
)
from .plans.fingerprint import (
    BatchFingerprint as BatchFingerprint,
    compute_batch_fingerprint as compute_batch_fingerprint,
    compute_batch_fingerprint_async as compute_batch_fingerprint_async,
    load_fingerprint as load_fingerprint,
    load_fingerprint_async as load_fingerprint_async,
    save_fingerprint as save_fingerprint,
    save_fingerprint_async as save_fingerprint_async,
    verify_batch_fingerprint as verify_batch_fingerprint,
)
from .plans.metrics import BatchMetrics as BatchMetrics, BatchShapeHistogram as BatchShapeHistogram
from .plans.plan import (
    BatchPlan as BatchPlan,
    BatchPlanMeta as BatchPlanMeta,
    MissingEpochError as MissingEpochError,
)
from .plans.sampler import BatchSpec as BatchSpec, TokenBudgetBatchSampler as TokenBudgetBatchSampler
from .plans.sharding import (
    ShardBalance as ShardBalance,
    ShardInfo as ShardInfo,
    ShardPolicy as ShardPolicy,
    ShardSpec as ShardSpec,
)
