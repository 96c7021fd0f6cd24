"""Plans without the native extension are exact in every action format."""

import pytest
from benchmarks.speed.arc_planner import measure_plans

from phalanx.arc import Operation, generate_tasks, plan_pair
from tests.helpers.arc_grids import grid

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("selection_format", ["point", "bbox", "mask"])
def test_plans_are_exact_without_native_extension(selection_format, monkeypatch):
    monkeypatch.setenv("PHALANX_NATIVE", "0")
    assert measure_plans(generate_tasks(num_tasks=40, seed=9), selection_format).exact.all()
    filled = plan_pair(grid("000/000/000"), grid("011/011/200"), selection_format=selection_format)
    assert len(filled) == {"point": 5, "bbox": 2, "mask": 2}[selection_format]
    grown = plan_pair(grid("1"), grid("12/00"), selection_format=selection_format)
    assert [int(action.operation) for action in grown] == [Operation.RESIZE, 2]
    with pytest.raises(ValueError, match="its size is 1x2, not 1x1, and Resize is not allowed"):
        plan_pair(grid("1"), grid("11"), allowed_operations=[1])
