"""The committed result files can be traced to a commit of this repository."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks.suite import RESULTS


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(RESULTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def full_history() -> None:
    """Skip the test if commits may be missing."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.returncode != 0:
        pytest.skip("not a git repository")
    if shallow.stdout.strip() == "true":
        pytest.skip("the checkout is shallow, so older commits are missing")


@pytest.mark.usefixtures("full_history")
@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_were_measured_at_a_commit_of_this_repository(path: Path) -> None:
    commit = json.loads(path.read_text())["commit"]
    found = git("cat-file", "-e", f"{commit}^{{commit}}")
    assert found.returncode == 0, f"{path.name}: {commit} is not a commit; measure the suite again"
