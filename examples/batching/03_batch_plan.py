"""Build, save, load, verify and resume a batch plan.

python examples/batching/03_batch_plan.py
"""

import pathlib
import tempfile

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    PackingConfig,
    load_batch_plan,
    save_batch_plan,
    verify_batch_plan,
)


def main() -> None:
    lengths = {f"s{i}": 20 + (i * 37) % 500 for i in range(1_000)}
    config = BatchingConfig.throughput(
        token_budget=8192, bucket_edges=(96, 224), max_sample_length=520, seed=7
    )
    builder = BatchPlanBuilder(lengths, config, dataset_hash="corpus-v1", tokenizer_hash="bytes")
    plan = builder.build(num_epochs=3)
    print(f"{plan.num_batches} batches in {plan.num_epochs} epochs, fingerprint {plan.fingerprint}")

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "plan")
        save_batch_plan(plan, path)
        loaded = load_batch_plan(path, expected_tokenizer_hash="bytes")
        print(f"loaded again: the same fingerprint is {loaded.fingerprint == plan.fingerprint}")
        print(f"planned again: the difference is {verify_batch_plan(loaded, lengths)}")
        difference = verify_batch_plan(loaded, lengths | {"s3": 400})
        assert difference is not None
        print(f"with another length: {difference.cause} changed, first in batch {difference.batch}")

    batches = plan.batches()
    done = [next(batches).sample_ids for _ in range(5)]
    state = batches.state_dict()
    resumed = plan.batches()
    resumed.load_state_dict(state)
    rest = [batch.sample_ids for batch in resumed]
    everything = [batch.sample_ids for batch in plan.batches()]
    print(f"five batches, a crash, and the rest are the whole run: {done + rest == everything}")

    packing = PackingConfig(max_length=520)
    packed = BatchPlanBuilder(lengths, config, packing=packing).build(num_epochs=1)
    first = packed.get_epoch(0)[0]
    assert first.packs is not None
    print(f"packed: {packed.compute_metrics().efficiency:.3f} real; first row holds {first.packs[0]}")


if __name__ == "__main__":
    main()
