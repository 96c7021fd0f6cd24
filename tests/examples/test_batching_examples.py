"""The token batching examples run from top to bottom and say what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "batching"

PROMISES = {
    "01_basic_batching.py": ["length 150 is in bucket 1: (129, 256)", "longer than overflow_max 2048"],
    "02_sequence_packing.py": ["segments  [1, 1, 1, 1, 2, 0]", "best_fit_decreasing: 7,896 rows"],
    "03_batch_plan.py": ["the difference is None", "the rest are the whole run: True"],
    "04_distributed.py": ["disjoint and complete: True", "no sample lost, none repeated: True"],
    "05_e2e_pipeline.py": ["of this plan: True", "'What is "],
    "06_analyze.py": ["Recommendations", "waste: edges"],
}


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_runs_and_keeps_its_promises(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for promise in PROMISES[name]:
        assert promise in result.stdout


def test_the_analysis_draws_charts_where_it_is_told(tmp_path: Path) -> None:
    script = FOLDER / "06_analyze.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "charts")], check=True, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "charts").iterdir()) == [
        "bucketing_vs_packing.svg",
        "lengths.svg",
    ]
