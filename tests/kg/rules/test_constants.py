"""Rules with constants in files, forward chaining, the prover and both backends of the environment."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from phalanx.kg import KnowledgeBase, Prover, compute_proof_depths, parse_query, prove
from phalanx.kg.atoms import parse_atom
from phalanx.proofs import ProofConfig, ProofEnvironment, ProofVocabulary
from tests.helpers import proof_cases as pc

FACTS = "in(oslo,norway).\nin(norway,europe).\nin(tokyo,japan).\nin(japan,asia).\nis(ada,'Q5').\n"
RULES = (
    "r0:1:in(X,Y), in(Y,europe) -> european(X,europe)\n"
    "european_city(X,X) :- european(X,europe).\n"
    "human(X,'Q5') :- is(X,'Q5').\n"
)
TRUE = {"european(oslo,europe)": 2, "european_city(oslo,oslo)": 3, "human(ada,'Q5')": 1}
FALSE = (
    "european(tokyo,asia)",
    "european(tokyo,europe)",
    "european(oslo,asia)",
    "european_city(tokyo,tokyo)",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> KnowledgeBase:
    folder = tmp_path_factory.mktemp("places")
    (folder / "train.txt").write_text(FACTS)
    (folder / "rules.txt").write_text(RULES)
    return KnowledgeBase.load(folder)


def test_prover_finds_exactly_the_true_queries(data):
    for query, depth in TRUE.items():
        proof = prove(data, query)
        assert proof is not None and proof.depth == depth
        proof.check(data.facts, data.rules)
    assert [prove(data, query) for query in FALSE] == [None] * len(FALSE)
    answers = Prover(data.facts, data.rules).answers(parse_query(data, "european(X,Y)"))
    assert [str(proof.goal) for proof in answers] == ["european(oslo,europe)"]


def test_proof_depths_with_constants(data):
    index = data.vocabulary
    queries = index.encode([parse_atom(text) for text in (*TRUE, *FALSE)])
    depths = compute_proof_depths(queries, index.encode(data.facts), index.encode_rules(data.rules))
    assert depths.tolist() == [*TRUE.values(), *[-1] * len(FALSE)]


@pytest.mark.parametrize("backend", pc.ENGINES)
def test_environment_proves_exactly_the_true_queries(data, backend):
    index = ProofVocabulary(data)
    env = ProofEnvironment.from_knowledge_base(
        data, ProofConfig(max_actions=8, backend=backend), "train", vocabulary=index
    )
    queries = index.encode([parse_atom(text) for text in (*TRUE, *FALSE)])
    paths = jnp.asarray(list(itertools.product(range(2), repeat=3)), jnp.int32)

    def proved(query, path):
        state, _ = env.reset_to(query, jnp.bool_(True))
        return jax.lax.scan(lambda now, action: (env.step(now, action)[0], None), state, path)[0]

    ends = jax.jit(jax.vmap(jax.vmap(proved, (None, 0)), (0, None)))(jnp.asarray(queries), paths)
    found = (ends.goals[..., 0, 0] == index.true_index).any(axis=1)
    assert found.tolist() == [True] * len(TRUE) + [False] * len(FALSE)
