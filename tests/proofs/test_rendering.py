"""Drawings of proofs: every goal, rule and value is shown, and nothing overlaps."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg.atoms import Atom, parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proving import Proof, prove
from phalanx.kg.rendering import draw_proof
from phalanx.proofs.rendering import draw_state, proof_frames, query_name
from phalanx.proofs.text import episode_goals
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers.families import ANCESTOR, ANN, DAN, environment, start, take

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def deep_proof():
    """The deepest proof of a few generated families."""
    data = KnowledgeBase.generate(num_families=3)
    query = max(data.test, key=lambda query: data.depths("test")[query])
    return prove(data, query)


def parse(drawing):
    return ElementTree.fromstring(drawing.as_svg())


def boxes(root, name):
    """Return the left, top, right and bottom edges and the text of the boxes of a class."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") == name:
            rect = group.find(f"{SVG}rect")
            x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height, group.find(f"{SVG}text").text))
    return found


def test_proof_shows_every_goal_and_rule(deep_proof):
    root = parse(draw_proof(deep_proof))
    nodes = list(deep_proof.nodes())
    assert sorted(box[-1] for box in boxes(root, "goal")) == sorted(str(n.goal) for n in nodes if n.rule)
    assert sorted(box[-1] for box in boxes(root, "fact")) == sorted(str(n.goal) for n in nodes if not n.rule)
    assert sorted(box[-1] for box in boxes(root, "rule")) == sorted(n.rule.name for n in nodes if n.rule)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert f"proved in {deep_proof.depth} steps" in texts
    values = ", ".join(f"{name} = {term}" for name, term in deep_proof.substitution)
    assert values in texts
    assert f"{', '.join(map(str, deep_proof.rule.body))} → {deep_proof.rule.head}" in texts


def test_boxes_do_not_overlap_and_are_inside_the_drawing(deep_proof):
    wide = Proof(
        Atom("p", "a", "b"), ("", ""), parse_rule("r:1:p(X,Y), p(X,Y), p(X,Y) -> p(X,Y)"),
        (("X", "a"), ("Y", "b")), (deep_proof, deep_proof, deep_proof),
    )  # fmt: skip
    for proof in (deep_proof, wide):
        root = parse(draw_proof(proof))
        width, height = float(root.get("width")), float(root.get("height"))
        all_boxes = [box for name in ("goal", "fact", "rule") for box in boxes(root, name)]
        for left, top, right, bottom, _ in all_boxes:
            assert left > 0 and right < width and top > 0 and bottom < height
        for one, other in itertools.combinations(all_boxes, 2):
            disjoint = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert disjoint, f"{one} and {other}"


def test_query_is_at_the_top_and_facts_are_green(deep_proof):
    text = draw_proof(deep_proof).as_svg()
    root = parse(draw_proof(deep_proof))
    top = min((box for name in ("goal", "fact") for box in boxes(root, name)), key=lambda box: box[1])
    assert top[-1] == str(deep_proof.goal)
    assert all("#E3F5EE" in group for group in re.findall(r'<g class="fact">.*?</g>', text, re.DOTALL))


def test_special_characters_in_names_are_drawn_as_text():
    rule = parse_rule("r<0>:1:a&b(X,Y) -> b<c(X,Y)")
    facts = (Atom("a&b", '"q"', "x" * 90),)
    data = KnowledgeBase(facts, (rule,))
    proof = prove(data, Atom("b<c", '"q"', "x" * 90))
    root = parse(draw_proof(proof))
    assert boxes(root, "rule")[0][-1] == "r<0>"
    assert boxes(root, "fact")[0][-1] == f'a&b("q",{"x" * 55}…'


def test_single_fact_is_drawn():
    assert boxes(parse(draw_proof(Proof(parse_atom("wife(a,b)")))), "fact")[0][-1] == "wife(a,b)"


@pytest.fixture(scope="module")
def episode():
    """The states of three steps of a proof of ancestor(ann,dan)."""
    base = KnowledgeBase(
        (Atom("parent", "ann", "bob"), Atom("ancestor", "cat", "dan"), Atom("sibling", "eve", "ann"))
    )
    index = ProofVocabulary(base, max_goals=3)
    # Use the indices of tests.helpers.families, where parent, ancestor and sibling are 1 to 3.
    index.kg.predicates = ("parent", "ancestor", "sibling")
    names = ["parent", "ancestor", "sibling", "True", "False", "End"]
    index.predicate_indices = {name: number for number, name in enumerate(names, 1)}
    env = environment()
    state = start(env, (ANCESTOR, ANN, DAN))
    states = [state]
    for successor in (
        ((1, 1, 6), (2, 6, 4)),
        ((2, 2, 4),),
        ((1, 2, 6), (2, 6, 4)),
    ):
        states.append(take(env, states[-1], successor)[0])
    return states, index


def test_frames_of_an_episode_grow_line_by_line(episode):
    states, index = episode
    assert episode_goals(states, index) == [
        "ancestor(ann,dan)",
        "parent(ann,_1), ancestor(_1,dan)",
        "ancestor(bob,dan)",
        "parent(bob,_1), ancestor(_1,dan)",
    ]
    frames = proof_frames(states, index)
    pictures = [ElementTree.fromstring(frame._repr_svg_()) for frame in frames]
    counts = [len(boxes(picture, "goal next")) + len(boxes(picture, "goal")) for picture in pictures]
    assert counts == [1, 3, 4, 6]
    assert len({picture.get("viewBox") for picture in pictures}) == 1
    assert {frame.status for frame in frames} == {"running"}
    assert np.array_equal(frames[1].goals, states[1].goals)


def test_single_state_shows_its_step_and_number_of_choices(episode):
    states, index = episode
    texts = [element.text for element in parse(draw_state(states[2], index)).iter(f"{SVG}text")]
    assert texts == [
        "ancestor(ann,dan)",
        f"true · {int(states[2].num_actions)} choices",
        "step 2",
        "2",
        "ancestor(bob,dan)",
    ]  # fmt: skip


def test_false_query_is_shown_as_negated(episode):
    states, index = episode
    assert query_name(states[0], index) == "ancestor(ann,dan)"
    env = environment()
    false = start(env, (ANCESTOR, DAN, ANN), label=False)
    assert query_name(false, index) == "not ancestor(dan,ann)"
    end = env.step(false, jnp.int32(int(false.num_actions) - 1))[0]
    assert [frame.status for frame in proof_frames([false, end], index)] == ["running", "given up"]


def test_proof_without_successors_has_the_status_failed(episode):
    _, index = episode
    env = environment(end_proof_action=False)
    state = start(env, (3, DAN, ANN))
    states = [state]
    while not bool(states[-1].episode_done):
        states.append(env.step(states[-1], jnp.int32(0))[0])
    assert proof_frames(states, index)[-1].status == "failed"
