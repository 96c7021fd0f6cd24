"""Assigns episodes to the train, validation and test splits, based on a hash of their content."""

import zlib
from typing import Literal, cast, get_args

Split = Literal["train", "validation", "test"]

_NUM_PARTS = 16


def validate_split(split: str) -> Split:
    """Validate the name of a split and return it. Raises `ValueError` if there is no such split."""
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}; choose from {', '.join(get_args(Split))}")
    return cast(Split, split)


def split_of(content: str) -> Split:
    """Return the split of an episode, given a string that identifies its content.

    Equal content is always in the same split, even if different seeds generate it. On average, 1/16 of the
    episodes are in the test split, 1/16 in the validation split, and the rest in the train split.

    >>> [split_of(content) for content in ("a", "one", "f")]
    ['train', 'validation', 'test']
    """
    splits: tuple[Split, ...] = ("test", "validation", "train")
    return splits[min(zlib.crc32(content.encode()) % _NUM_PARTS, 2)]
