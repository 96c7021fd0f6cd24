"""Train, validation and test splits by content hash."""

import zlib
from typing import Literal

Split = Literal["train", "validation", "test"]

_NUM_PARTS = 16


def split_of(content: str) -> Split:
    """Return the split of an episode, given a text that identifies its content.

    Equal content is always in the same split, whichever seed it comes from. One part in 16 is for testing and
    one part in 16 for validation; training uses the rest.

    >>> [split_of(content) for content in ("a", "b", "an", "e")]
    ['train', 'train', 'train', 'train']
    """
    splits: tuple[Split, ...] = ("test", "validation", "train")
    return splits[min(zlib.crc32(content.encode()) % _NUM_PARTS, 2)]
