"""What workers are given in the tests: each of them imports this, so that it imports little."""

import os
import signal
from typing import Any

from phalanx.data.corpus import FilePart

from phalanx.data import ByteTokenizer


class DyingTokenizer(ByteTokenizer):
    """Takes its whole process down, as running out of memory does."""

    def count_batch(self, texts: Any) -> list[int]:
        if "deadly" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().count_batch(texts)


class FaultyTokenizer(ByteTokenizer):
    """Has a fault that nobody foresaw."""

    def count_batch(self, texts: Any) -> list[int]:
        raise TypeError("texts must be singing")


def pid_of(part: FilePart) -> int:
    if part.begin == 7:
        raise RuntimeError("seven")
    return os.getpid()
