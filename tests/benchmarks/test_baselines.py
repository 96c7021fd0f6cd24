"""Baselines and checks in the learning benchmarks."""

import numpy as np
import pytest
from benchmarks.learning.arc_demo import canonical_form, hand_written_rule
from benchmarks.learning.arc_program_search import solve
from benchmarks.learning.link_prediction import reverse_in_training
from benchmarks.speed.rule_mining import generate_graph

from phalanx.arc import ArcTask, GridPair
from phalanx.kg import Atom, KnowledgeBase
from tests.helpers.arc_grids import grid


def test_grids_that_differ_by_symmetry_and_colors_have_the_same_form() -> None:
    first = grid("120/340/000")
    assert canonical_form(first) == canonical_form(grid("000/780/560"))
    assert canonical_form(first) == canonical_form(first.T)
    assert canonical_form(first) != canonical_form(grid("121/340/000"))


def test_black_is_not_permuted() -> None:
    assert canonical_form(grid("01")) != canonical_form(grid("21"))


def test_grids_of_different_shapes_have_different_forms() -> None:
    assert canonical_form(grid("111111")) != canonical_form(grid("111/111"))


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        ("fill_rooms", "2050/0050/0050", "2250/2250/2250"),
        ("fill_rooms in rows", "300/555/000", "333/555/000"),
        ("fill_enclosed", "0440/4004/0440", "0440/4444/0440"),
        ("complete_symmetry", "1221/3003/4554", "1221/3003/4554"),
        ("complete_symmetry", "1221/3403/4554", "1221/3443/4554"),
        ("denoise", "171/222/222", "111/222/222"),
        ("denoise in columns", "122/722/122", "122/122/122"),
    ],
)
def test_hand_written_rule(family: str, before: str, after: str) -> None:
    np.testing.assert_array_equal(hand_written_rule(grid(before)), grid(after), err_msg=family)


@pytest.mark.parametrize(
    ("demos", "test", "answer"),
    [
        ([("12/34", "21/43"), ("50/06", "05/60")], "78/90", "87/09"),
        ([("1200/0000", "34"), ("0000/0210", "43")], "0020/0010", "4/3"),
        ([("0110/1001/0110", "0110/1221/0110")], "0111/1001/1111", "0111/1221/1111"),
        ([("12", "1"), ("12", "2")], "12", None),
    ],
    ids=["mirror", "crop-and-recolor", "fill-enclosed", "no-program"],
)
def test_program_search(demos: list[tuple[str, str]], test: str, answer: str | None) -> None:
    pairs = tuple(GridPair(grid(before), grid(after)) for before, after in demos)
    answers = solve(ArcTask("task", pairs, (GridPair(grid(test), None),)))
    if answer is None:
        assert answers is None
    else:
        assert answers is not None
        np.testing.assert_array_equal(answers[0], grid(answer))


def test_reverse_triples_in_the_training_set_are_found() -> None:
    train = (Atom("similar", "a", "b"), Atom("part_of", "a", "c"))
    test = (Atom("similar", "b", "a"), Atom("similar", "c", "a"))
    data = KnowledgeBase(train=train, test=test)
    assert reverse_in_training(data).tolist() == [True, False]


def test_generated_graph_contains_composed_and_inverse_relations() -> None:
    data = generate_graph(400)
    relations = {atom.predicate.rstrip("0123456789") for atom in data.facts}
    assert relations == {"edge", "path", "inverse"} and 300 < len(data.facts) <= 400
