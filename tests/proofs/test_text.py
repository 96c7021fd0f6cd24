"""Proof search as text: goals and choices with names, and answers by number or by goals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg import KnowledgeBase, parse_atom, parse_rule
from phalanx.proofs import ProofConfig, ProofEnvironment
from phalanx.proofs.spec import task_name
from phalanx.proofs.text import ProofText
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers import families as f

DATA = KnowledgeBase(
    train=tuple(map(parse_atom, ("parent(a,b)", "parent(a,B)", "aged(b,c)"))),
    valid=(parse_atom("wise(a,c)"),),
    test=(),
    rules=(
        parse_rule("r0:1.0:parent(x,y), old(y,z) -> wise(x,z)"),
        parse_rule("r1:1.0:aged(x,y) -> old(x,y)"),
    ),
)
ENV = ProofEnvironment.from_knowledge_base(
    DATA, ProofConfig(max_actions=6, max_goals=3, max_episode_steps=4, queries={"negative_ratio": 0}), "valid"
)
TEXT = ProofText(ENV)
STATE = ENV.reset(jax.random.PRNGKey(0))[0]
PARENTS = ENV.step(STATE, jnp.int32(0))[0]
"""A state in which the names of two choices differ only by case."""


def test_prompt_has_the_query_goals_and_numbered_choices() -> None:
    text = TEXT.prompt(PARENTS)
    assert "Query: wise(a,c)\nGoals: parent(a,_1), old(_1,c)\nStep 1 of at most 4." in text
    assert "Choices:\n0: old(B,c)\n1: old(b,c)\n2: give up\n" in text
    assert "label" not in text and "not wise" not in text, (
        "the text must not reveal whether the query is true"
    )


def test_answers_lead_to_a_proof() -> None:
    state = PARENTS
    for answer in ("old(b,c)", "True"):
        state, _, _, _, info = ENV.step(state, TEXT.parse(answer, state))
    assert bool(info.proved)


def test_names_that_differ_only_by_case_are_distinguished() -> None:
    assert int(TEXT.parse("old(b,c)", PARENTS)) == 1
    assert int(TEXT.parse("old(B,c)", PARENTS)) == 0
    with pytest.raises(ValueError, match=r"'OLD.b,c.' is not among the choices"):
        TEXT.parse("OLD(b,c)", PARENTS)


@pytest.mark.parametrize("text", ["0", " 0 ", "parent(a,_1), old(_1,c)", "PARENT(a,_1),Old(_1,c)"])
def test_answer_can_be_a_number_or_the_goals_of_a_choice(text: str) -> None:
    assert int(TEXT.parse(text, STATE)) == 0
    assert int(TEXT.parse("Give up", STATE)) == 1
    assert TEXT.format(jnp.int32(1), STATE) == "give up"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "there is no choice 2; they are numbered from 0 to 1"),
        ("", "'' is not among the choices; answer with a number from 0 to 1"),
        ("parent(a,_1), old(_1,b)", "the nearest is 'parent(a,_1), old(_1,c)'"),
        ("-1", "'-1' is not among the choices"),
    ],
)
def test_invalid_answer_is_rejected_with_an_explanation(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        TEXT.parse(text, STATE)
    assert message in str(caught.value)


def test_text_and_rendering_require_a_vocabulary() -> None:
    assert task_name(ENV, STATE) == "wise(a,c)"
    assert ENV.render_modes == ("svg", "ansi") and "<svg" in ENV.render(STATE)
    with pytest.raises(ValueError, match="mode must be svg or ansi, got 'human'"):
        ENV.render(STATE, "human")
    bare = ProofEnvironment.create(ENV.config, ENV.program, ENV.queries.positives)
    assert bare.render_modes == () and bare.render(STATE) is None
    assert task_name(bare, STATE) == ""
    with pytest.raises(ValueError, match=r"has no names and therefore no text"):
        ProofText(bare)


def test_environments_that_differ_only_in_names_share_compiled_programs() -> None:
    named = ProofEnvironment.create(
        ENV.config, ENV.program, ENV.queries.positives, vocabulary=ProofVocabulary(DATA, 3)
    )
    bare = ProofEnvironment.create(ENV.config, ENV.program, ENV.queries.positives)
    reset = jax.jit(lambda environment, key: environment.reset(key)[0].goals)
    for environment in (named, bare):
        reset(environment, jax.random.key(0))
    assert reset._cache_size() == 1
    assert named != bare


def test_legal_actions_are_the_action_mask_for_one_state_and_a_batch() -> None:
    env = f.environment()
    states = jax.device_get(jax.jit(env.batch_reset)(jax.random.split(jax.random.PRNGKey(0), 3))[0])
    assert (np.asarray(env.legal_actions(states)) == np.asarray(states.action_mask)).all()
    assert env.legal_actions(states[0]).shape == (env.config.max_actions,)
