"""Planning and packing with `phalanx.data` do not import JAX, PyTorch or PyArrow."""

import subprocess
import sys

WITHOUT_JAX = """
import sys
from pathlib import Path

import numpy as np

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchReader,
    BatchWriter,
    ByteTokenizer,
    LengthCache,
    PackingConfig,
    create_efficiency_report,
    create_segment_attention_mask,
    load_batch_plan,
    pack_tokens,
    save_batch_plan,
    verify_batch_plan,
)

folder = Path(sys.argv[1])
lengths = {f"s{i}": 1 + i % 50 for i in range(200)}
samples = {name: {"input_ids": [1] * length} for name, length in lengths.items()}
for name, packing in (("padded", None), ("packed", PackingConfig(max_length=64))):
    config = BatchingConfig.throughput(256)
    plan = BatchPlanBuilder(lengths, config, packing=packing).build(2)
    save_batch_plan(plan, folder / name)
    loaded = load_batch_plan(folder / name, verify=True)
    assert verify_batch_plan(loaded, lengths) is None
    save_batch_plan(loaded.shard(0, 3, balance=True, d_model=64), folder / f"{name}-shard")
    BatchWriter(plan, samples, folder / f"{name}-batches").write_all()
    assert BatchReader(folder / f"{name}-batches").verify() == plan.num_batches
batch = pack_tokens(np.arange(8), [0, 3, 7, 8], PackingConfig(max_length=4))
create_segment_attention_mask(batch.segment_ids, causal=True)
print(create_efficiency_report(lengths, config.bucket_spec).to_ascii()[:7])
print(sorted({"jax", "jaxlib", "torch", "pyarrow"} & set(sys.modules)))
"""


def test_planning_and_packing_do_not_import_jax(tmp_path):
    command = [sys.executable, "-c", WITHOUT_JAX, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["Lengths", "[]"], result.stderr
