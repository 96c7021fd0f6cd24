"""What examples change in their own process, put back after they ran in the tests'."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """Scripts set the number of torch's threads."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
