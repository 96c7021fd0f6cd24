"""One epoch's batches of packs: each pool of the shuffle is packed by itself, and the packs are shuffled.

So packs are mixed anew in every epoch. How samples choose their packs lives in `assignment`.
"""

import numpy as np
from jaxtyping import Bool, Int32

from phalanx.tokens.admission import Admission
from phalanx.tokens.arrays import BatchArrays, batch_offsets, ragged_take
from phalanx.tokens.ordering import pool_samples, random_order
from phalanx.tokens.pack_layout import lay_out_packs
from phalanx.tokens.packing_config import PackingConfig


def pack_batches(
    admission: Admission,
    packing: PackingConfig,
    shuffled: Int32[np.ndarray, " samples"],
    bits: np.random.PCG64,
) -> tuple[BatchArrays, Bool[np.ndarray, " batches"]]:
    """As many packs to a batch as the budget allows, and which batches are full."""
    config = admission.config
    lengths = admission.lengths[shuffled]
    places, counts, fills = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    pool = pool_samples(config, lengths)
    for start in range(0, len(lengths), pool):
        layout = lay_out_packs(lengths[start : start + pool], packing)
        places.append(layout.samples.astype(np.int64) + start)
        counts.append(np.diff(layout.offsets))
        fills.append(layout.sums(layout.spans))
    offsets = batch_offsets(np.concatenate(counts))
    packs = random_order(len(offsets) - 1, bits)
    members, pack_offsets = ragged_take(offsets, packs)
    capacity = config.token_budget // packing.max_length
    starts = np.arange(0, len(packs), capacity)
    if packing.pad_to_max or not len(packs):
        widths = np.full(len(starts), packing.max_length, np.int32)
    else:
        widths = np.maximum.reduceat(np.concatenate(fills)[packs], starts).astype(np.int32)
    batches = BatchArrays(
        admission.rows[shuffled[np.concatenate(places)[members]]],
        np.append(pack_offsets[starts], pack_offsets[-1]),
        config.bucket_spec.get_bucket_ids(widths),
        widths,
        pack_offsets,
    )
    return batches, starts + capacity <= len(packs)
