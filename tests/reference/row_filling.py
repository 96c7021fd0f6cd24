"""Reference implementation of filling rows with packed samples, token by token."""

import numpy as np

from phalanx.data.packing import PackLayout


def fill_rows(
    tokens: np.ndarray,
    loss_mask: np.ndarray | None,
    starts: np.ndarray,
    layout: PackLayout,
    pad_id: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return input_ids, loss_mask, segment_ids and position_ids of the rows of a layout."""
    shape = (len(layout), layout.width)
    input_ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int8)
    segment_ids, position_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row in range(len(layout)):
        column = 0
        segments = range(int(layout.offsets[row]), int(layout.offsets[row + 1]))
        for number, segment in enumerate(segments, 1):
            for position in range(int(layout.lengths[segment])):
                source = int(starts[segment]) + position
                input_ids[row, column] = tokens[source]
                mask[row, column] = 1 if loss_mask is None else loss_mask[source]
                segment_ids[row, column], position_ids[row, column] = number, position
                column += 1
            if layout.separator_token_id is not None and segment != segments[-1]:
                input_ids[row, column] = layout.separator_token_id
                mask[row, column] = mask[row, column - 1] if layout.separator_loss else 0
                segment_ids[row, column] = number
                position_ids[row, column] = int(layout.lengths[segment])
                column += 1
    return input_ids, mask, segment_ids, position_ids
