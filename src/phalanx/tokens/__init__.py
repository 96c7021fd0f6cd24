"""Token batches: lengths, buckets, budgets, packing, plans, fingerprints, batch files and their analysis.

All public names are here; streams of samples that are still being made live in `phalanx.streams`.
"""

from phalanx.tokens.admission import SkippedSample
from phalanx.tokens.arrays import BatchArrays
from phalanx.tokens.assignment import pack_lengths
from phalanx.tokens.attention import create_segment_attention_mask, cu_seqlens_of
from phalanx.tokens.batch_files import BatchReader, BatchWriter
from phalanx.tokens.buckets import BucketId, BucketSpec, BucketStats
from phalanx.tokens.charts import (
    draw_bucket_efficiency,
    draw_bucketing_vs_packing,
    draw_length_histogram,
    save_chart,
)
from phalanx.tokens.collation import CollatedBatch, default_collate, pad_sequences
from phalanx.tokens.config import BatchingConfig, BatchingMode, PadPolicy
from phalanx.tokens.efficiency import (
    BucketAnalysis,
    BucketEfficiency,
    analyze_bucket_efficiency,
    visualize_buckets,
)
from phalanx.tokens.fingerprint import (
    BatchFingerprint,
    compute_batch_fingerprint,
    load_fingerprint,
    load_fingerprint_async,
    save_fingerprint,
    save_fingerprint_async,
    verify_batch_fingerprint,
)
from phalanx.tokens.histogram import LengthHistogram, compute_length_histogram
from phalanx.tokens.length_cache import LengthCache, LengthEntry
from phalanx.tokens.lengths import Lengths, LengthTable
from phalanx.tokens.metrics import BatchMetrics, BatchShapeHistogram
from phalanx.tokens.microbatch import MicrobatchSpec
from phalanx.tokens.packed_batch import iter_packed_batches
from phalanx.tokens.packing import (
    OverlongPolicy,
    PackedBatch,
    PackedSequence,
    PackedSequences,
    PackingConfig,
    PackingMetrics,
    PackingMode,
    PackLayout,
    SequenceToPack,
    compute_packing_metrics,
    lay_out_packs,
    pack_sequences,
    pack_tokens,
)
from phalanx.tokens.plan import BatchPlan, BatchPlanMeta, EpochPlan
from phalanx.tokens.plan_builder import BatchPlanBuilder, verify_batch_plan
from phalanx.tokens.plan_comparison import PlanDifference, compare_plans
from phalanx.tokens.plan_files import (
    load_batch_plan,
    load_batch_plan_async,
    save_batch_plan,
    save_batch_plan_async,
)
from phalanx.tokens.report import BatchingEfficiencyReport, PackingEstimate, create_efficiency_report
from phalanx.tokens.sampler import BatchSpec, TokenBudgetBatchSampler
from phalanx.tokens.sharding import ShardBalance, ShardInfo, ShardPolicy
from phalanx.tokens.sources import (
    SourceSample,
    TokenizedSample,
    iterate_lengths,
    iterate_samples,
    tokenize_samples,
)
from phalanx.tokens.suggestion import BucketSuggestion, OptimizationGoal, suggest_bucket_edges
from phalanx.tokens.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "BatchArrays",
    "BatchFingerprint",
    "BatchMetrics",
    "BatchPlan",
    "BatchPlanBuilder",
    "BatchPlanMeta",
    "BatchReader",
    "BatchShapeHistogram",
    "BatchSpec",
    "BatchWriter",
    "BatchingConfig",
    "BatchingEfficiencyReport",
    "BatchingMode",
    "BucketAnalysis",
    "BucketEfficiency",
    "BucketId",
    "BucketSpec",
    "BucketStats",
    "BucketSuggestion",
    "ByteTokenizer",
    "CollatedBatch",
    "EpochPlan",
    "FileTokenizer",
    "LengthCache",
    "LengthEntry",
    "LengthHistogram",
    "LengthTable",
    "Lengths",
    "MicrobatchSpec",
    "OptimizationGoal",
    "OverlongPolicy",
    "PackLayout",
    "PackedBatch",
    "PackedSequence",
    "PackedSequences",
    "PackingConfig",
    "PackingEstimate",
    "PackingMetrics",
    "PackingMode",
    "PadPolicy",
    "PlanDifference",
    "SequenceToPack",
    "ShardBalance",
    "ShardInfo",
    "ShardPolicy",
    "SkippedSample",
    "SourceSample",
    "TokenBudgetBatchSampler",
    "TokenizedSample",
    "Tokenizer",
    "analyze_bucket_efficiency",
    "compare_plans",
    "compute_batch_fingerprint",
    "compute_length_histogram",
    "compute_packing_metrics",
    "create_efficiency_report",
    "create_segment_attention_mask",
    "cu_seqlens_of",
    "default_collate",
    "draw_bucket_efficiency",
    "draw_bucketing_vs_packing",
    "draw_length_histogram",
    "iter_packed_batches",
    "iterate_lengths",
    "iterate_samples",
    "lay_out_packs",
    "load_batch_plan",
    "load_batch_plan_async",
    "load_fingerprint",
    "load_fingerprint_async",
    "load_tokenizer",
    "pack_lengths",
    "pack_sequences",
    "pack_tokens",
    "pad_sequences",
    "save_batch_plan",
    "save_batch_plan_async",
    "save_chart",
    "save_fingerprint",
    "save_fingerprint_async",
    "suggest_bucket_edges",
    "tokenize_samples",
    "verify_batch_fingerprint",
    "verify_batch_plan",
    "visualize_buckets",
]
