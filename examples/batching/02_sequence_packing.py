"""Packing: several samples in one row, told apart by segments, and how full each way of packing gets.

python examples/batching/02_sequence_packing.py
"""

import numpy as np

from phalanx.compat.chuk_lazarus.data.batching.planning import (
    SequenceToPack,
    compute_packing_metrics,
    pack_sequences,
)
from phalanx.data import PackingConfig, PackingMode, create_segment_attention_mask, pack_lengths


def main() -> None:
    sequences = [
        SequenceToPack(sample_id="a", input_ids=[1, 2, 3], loss_mask=[0, 1, 1]),
        SequenceToPack(sample_id="b", input_ids=[4, 5, 6, 7], loss_mask=[0, 0, 1, 1]),
        SequenceToPack(sample_id="c", input_ids=[8], loss_mask=[1]),
    ]
    packed = pack_sequences(sequences, PackingConfig(max_length=6), pad_id=0)
    for row in packed:
        print(f"samples {row.sample_ids}: {row.efficiency:.0%} real")
        print(f"  tokens    {row.input_ids.tolist()}")
        print(f"  segments  {row.segment_ids.tolist()}")
        print(f"  positions {row.position_ids.tolist()}")
        print(f"  cu_seqlens {row.cu_seqlens.tolist()}, for kernels that take no mask")
    mask = create_segment_attention_mask(packed[0].segment_ids)
    print("who sees whom in the first row:")
    for line in mask.astype(int):
        print(f"  {line.tolist()}")
    print(f"packing ratio {compute_packing_metrics(packed).packing_ratio:.2f}")

    lengths = np.random.default_rng(0).integers(300, 1301, 20_000).astype(np.int32)
    least = -(-int(lengths.sum()) // 2048)
    print(f"{len(lengths):,} samples of 300 to 1,300 tokens need at least {least:,} rows of 2,048:")
    for mode in PackingMode:
        rows = int(pack_lengths(lengths, 2048, mode).max()) + 1
        print(f"  {mode:>19}: {rows:,} rows, {lengths.sum() / (rows * 2048):.2%} full")


if __name__ == "__main__":
    main()
