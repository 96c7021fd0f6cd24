"""Functions for worker processes. Each worker imports this module, so it imports little."""

import os
import signal
from typing import Any

from phalanx.data import ByteTokenizer
from phalanx.data.corpus import FilePart


class DyingTokenizer(ByteTokenizer):
    """End the process abruptly, as if it had run out of memory."""

    def count_many(self, texts: Any) -> list[int]:
        if "deadly" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().count_many(texts)


class FaultyTokenizer(ByteTokenizer):
    """Raise an unexpected error."""

    def count_many(self, texts: Any) -> list[int]:
        raise TypeError("texts must be singing")


def pid_of(part: FilePart) -> int:
    if part.begin == 7:
        raise RuntimeError("seven")
    return os.getpid()
