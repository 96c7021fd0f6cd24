"""Limit PyTorch to one thread, because its thread pool busy-waits on a machine with other jobs."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
