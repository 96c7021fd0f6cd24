"""The example of a family of one's own: what it draws is right, and what it says solves it."""

from collections.abc import Iterator

import pytest

from phalanx.arc import FAMILIES, generate_tasks
from tests.helpers.example_runs import run_example


@pytest.fixture(autouse=True)
def no_family_stays() -> Iterator[None]:
    """The other tests know the built-in families alone."""
    before = dict(FAMILIES)
    yield
    FAMILIES.clear()
    FAMILIES.update(before)


def test_its_tasks_are_as_its_rule_says_and_solved_by_their_solutions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_example("arc/custom_task_family.py", "--updates", 0)
    told = capsys.readouterr().out
    assert "200 tasks, solved by their own solutions: 100%" in told
    for task in generate_tasks(("shadow",), 20, max_height=5, max_width=5):
        for pair, solution in zip(task.pairs, task.solutions, strict=True):
            assert pair.output is not None
            expected = pair.input.copy()
            below = pair.input[:-1]
            expected[1:][below > 0] = below[below > 0]
            assert (pair.output == expected).all() and not pair.input[-1].any()
            assert len(solution) == (pair.input > 0).sum()
