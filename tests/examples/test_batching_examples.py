"""The token batching examples run from top to bottom and say what they promise."""

from collections.abc import Iterator

import pytest

from tests.helpers import puzzle_server
from tests.helpers.example_runs import EXAMPLES, run_example

FOLDER = EXAMPLES / "batching"

PROMISES = {
    "01_basic_batching.py": ["length 150 is in bucket 1: (129, 256)", "longer than max_sample_length 2048"],
    "02_sequence_packing.py": ["segments  [1, 1, 1, 1, 2, 0]", "best_fit_decreasing: 7,896 rows"],
    "03_batch_plan.py": ["the difference is None", "the rest are the whole run: True"],
    "04_distributed.py": ["disjoint and complete: True", "no sample lost, none repeated: True"],
    "05_e2e_pipeline.py": ["of this plan: True", "'What is "],
    "06_analyze.py": ["Recommendations", "waste: edges"],
    "07_replay_buffer.py": ["500 of 800 samples are held", "the same samples is True", "window 2: from s600"],
    "08_online_learning.py": ["200 samples in the buffer", "below half: True"],
    "09_puzzle_arcade_integration.py": ["accepted is True", "8 episodes, solved: 100%"],
}


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(PROMISES)


@pytest.fixture(scope="module")
def server() -> Iterator[puzzle_server.RealServer]:
    """A real puzzle server on a free port."""
    package = puzzle_server.installed_server()
    if package is None:
        pytest.skip(puzzle_server.MISSING)
    server = puzzle_server.RealServer(package)
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_runs_and_keeps_its_promises(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = []
    if name.startswith("09"):
        arguments = ["127.0.0.1", str(request.getfixturevalue("server").port)]
    run_example(f"batching/{name}", *arguments)
    said = capsys.readouterr().out
    for promise in PROMISES[name]:
        assert promise in said
