"""Pack several samples into each row, and compare the packing algorithms.

python examples/batching/02_sequence_packing.py
"""

import numpy as np

from phalanx.data import (
    BatchSpec,
    PackingConfig,
    PackingMode,
    Sample,
    assign_packs,
    collate,
    create_segment_attention_mask,
    pack_lengths,
)


def main() -> None:
    samples = [
        Sample("a", input_ids=[1, 2, 3], loss_mask=[0, 1, 1]),
        Sample("b", input_ids=[4, 5, 6, 7], loss_mask=[0, 0, 1, 1]),
        Sample("c", input_ids=[8], loss_mask=[1]),
    ]
    layout = assign_packs([sample.length for sample in samples], PackingConfig(max_length=6))
    spec = BatchSpec(epoch=0, index=0, bucket_id=0, packed=True, layout=layout, samples=samples)
    batch = collate(spec)
    assert spec.packs is not None
    for row, sample_ids in enumerate(spec.packs):
        print(f"row {row} has the samples {sample_ids}")
        print(f"  tokens    {batch.input_ids[row].tolist()}")
        print(f"  segments  {batch.segment_ids[row].tolist()}")
        print(f"  positions {batch.position_ids[row].tolist()}")
        print(f"  cu_seqlens {batch.cu_seqlens(row).tolist()}, for kernels that take no mask")
    mask = create_segment_attention_mask(batch.segment_ids[0])
    print("attention mask of the first row:")
    for line in mask.astype(int):
        print(f"  {line.tolist()}")
    print(f"{batch.real_tokens} of {batch.padded_tokens} tokens are not padding")

    lengths = np.random.default_rng(0).integers(300, 1301, 20_000).astype(np.int32)
    least = -(-int(lengths.sum()) // 2048)
    print(f"{len(lengths):,} samples of 300 to 1,300 tokens need at least {least:,} rows of 2,048:")
    for mode in PackingMode:
        rows = int(pack_lengths(lengths, 2048, mode).max()) + 1
        print(f"  {mode:>19}: {rows:,} rows, {lengths.sum() / (rows * 2048):.2%} full")


if __name__ == "__main__":
    main()
