"""Divide a batch plan among ranks, balance their work, and continue with fewer ranks.

python examples/batching/04_distributed.py
"""

import numpy as np

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder


def samples_of(plan: BatchPlan) -> list[str]:
    """Return the ids of all samples in the first epoch."""
    return [sample for batch in plan.epochs[0] for sample in batch.sample_ids]


def main() -> None:
    rng = np.random.default_rng(0)
    lengths = {f"s{i}": int(n) for i, n in enumerate(rng.integers(10, 2_000, 5_000))}
    config = BatchingConfig.throughput(token_budget=16_384, max_sample_length=2048)
    plan = BatchPlanBuilder(lengths, config).build(num_epochs=1)

    # Every rank makes the same plan from the same lengths and seed, and takes its own part of it.
    shards = [plan.shard(rank, world_size=8, balance=True) for rank in range(8)]
    print(f"batches of each rank: {[shard.num_batches for shard in shards]}")
    everything = sorted(sample for shard in shards for sample in samples_of(shard))
    print(f"disjoint and complete: {everything == sorted(lengths)}")
    for balance in (False, True):
        found = plan.measure_balance(0, world_size=8, balance=balance)
        print(f"balance {balance}: the busiest rank works {found.by_rank:.4f} of the ideal")

    # Eight ranks have each done ten batches; three go on.
    done = [sample for shard in shards for batch in shard.epochs[0][:10] for sample in batch.sample_ids]
    left = plan.remaining(epoch=0, step=10, world_size=8, balance=True)
    rest = [sample for rank in range(3) for sample in samples_of(left.shard(rank, world_size=3))]
    print(f"no sample lost, none repeated: {sorted(done + rest) == sorted(lengths)}")


if __name__ == "__main__":
    main()
