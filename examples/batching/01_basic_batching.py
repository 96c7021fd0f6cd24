"""Form batches under a token budget, and compare the padding of the two batching modes.

python examples/batching/01_basic_batching.py
"""

import numpy as np

from phalanx.data import BatchingConfig, BucketSpec, TokenBudgetBatchSampler


def draw_lengths(samples: int = 2_000) -> dict[str, int]:
    """Draw log-normal lengths, with many short and a few long samples, as in most texts."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.rint(rng.lognormal(5.2, 1.0, samples)), 1, 2_500).astype(int)
    return {f"sample-{row}": int(length) for row, length in enumerate(lengths)}


def first_batches(sampler: TokenBudgetBatchSampler, count: int) -> None:
    """Print the first batches, which consist of sample ids."""
    for batch in sampler.iter_batches(epoch=0):
        print(
            f"  {batch.num_samples:>3} samples, padded to {batch.max_length:>4}: {batch.sample_ids[0]}, ..."
        )
        count -= 1
        if count == 0:
            return


def main() -> None:
    lengths = draw_lengths()
    buckets = BucketSpec(edges=(128, 256, 512, 1024), max_sample_length=2048)
    print(f"length 150 is in bucket {buckets.get_bucket(150)}: {buckets.get_bucket_range(1)}")

    sampler = TokenBudgetBatchSampler(lengths=lengths, bucket_spec=buckets, token_budget=16_384, seed=42)
    print(f"{sampler.num_samples} samples in {sampler.estimate_batches_per_epoch()} batches")
    first_batches(sampler, 3)
    for sample in sampler.skipped[:2]:
        print(f"  skipped {sample.sample_id}: {sample.length} tokens, {sample.reason}")

    for name, make in (
        ("predictable", BatchingConfig.predictable),
        ("throughput", BatchingConfig.throughput),
    ):
        config = make(
            token_budget=16_384, bucket_edges=buckets.edges, max_sample_length=buckets.max_sample_length
        )
        metrics = TokenBudgetBatchSampler.from_config(lengths, config).compute_metrics()
        shapes = len(metrics.shapes)
        print(f"{name}: {metrics.efficiency:.3f} of all tokens are real, {shapes} shapes")
    for bucket in sampler.compute_metrics().buckets:
        print(
            f"  up to {bucket.max_length:>4}: {bucket.num_samples:>4} samples, {bucket.efficiency:.3f} real"
        )


if __name__ == "__main__":
    main()
