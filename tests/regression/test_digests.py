"""Check that numerical behavior is unchanged: compare the digests of all workloads with the recorded ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .workloads import WORKLOADS

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
RECORD_COMMAND = "python scripts/record_digests.py"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Read the recorded digests."""
    return json.loads((HERE / "digests.json").read_text())


@pytest.fixture(scope="module")
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run all selected workloads in one new process, which sets its own compiler flags."""
    selected = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_digests_are_unchanged"
    ]
    output = tmp_path_factory.mktemp("digests") / "computed.json"
    names = [name for name in selected if not WORKLOADS[name].missing_data]
    subprocess.run([sys.executable, HERE / "workloads.py", "--output", output, *names], check=True)
    return json.loads(output.read_text())


@pytest.mark.parametrize("name", WORKLOADS)
def test_digests_are_unchanged(name: str, recorded: dict[str, Any], computed: dict[str, Any]) -> None:
    workload = WORKLOADS[name]
    if workload.missing_data:
        pytest.skip(f"needs {workload.data}")
    if name in computed["errors"]:
        pytest.fail(computed["errors"][name], pytrace=False)
    expected = recorded["integers"]
    if workload.kind == "floats":
        machine = computed["machine"]
        if machine not in recorded["floats"]:
            pytest.skip(f"no digests for this machine ({machine}); record them with `{RECORD_COMMAND}`")
        expected = recorded["floats"][machine]
    assert computed["digests"][name] == expected.get(name)
