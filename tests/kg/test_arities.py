"""Predicates with one, two and three arguments in files, chaining, proofs and search."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg import (
    Atom,
    KnowledgeBase,
    Prover,
    Rule,
    compute_proof_depths,
    entail,
    mine_rules,
    parse_atom,
    parse_query,
    parse_rule,
    prove,
)
from phalanx.kg.formats import load_table
from phalanx.kg.query_answering import answer_query
from phalanx.proofs import Program, ProofConfig, ProofEnvironment
from phalanx.proofs.search.best_first import BestFirstConfig, best_first_search
from phalanx.proofs.search.heuristics import BreadthFirstHeuristic
from phalanx.proofs.text import ProofText
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers import proof_cases as pc

FACTS = (
    "human(ada). human(bob). gave(ada,book,bob). gave(bob,coin,eve). likes(bob,book). "
    "'is a'(eve,'three headed dog')."
)
RULES = (
    "r0:0.5:gave(X,Y,Z) -> has(Z,Y)\n"
    "r1:0.9:human(X), has(X,Y), likes(X,Y) -> happy(X)\n"
    "r2:1.0:gave(X,_,Y), gave(Y,_,Z) -> chain(X,Y,Z)\n"
    "kind(X) :- chain(X,_,eve).\n"
)
TRUE = {"has(bob,book)": 2, "happy(bob)": 3, "chain(ada,bob,eve)": 3, "kind(ada)": 4, "has(eve,coin)": 2}
FALSE = ("happy(ada)", "chain(bob,eve,ada)", "kind(bob)", "has(ada,book)")


def mixed_base() -> KnowledgeBase:
    atoms = tuple(parse_atom(text) for text in FACTS.split(". "))
    rules = tuple(parse_rule(line, f"r{number}") for number, line in enumerate(RULES.splitlines()))
    return KnowledgeBase(atoms, rules, valid=(parse_atom("happy(bob)"),), test=(parse_atom("kind(ada)"),))


@pytest.fixture(scope="module")
def data() -> KnowledgeBase:
    return mixed_base().replace(name="mixed")


def test_knowledge_base_with_mixed_arities_round_trips(tmp_path):
    base = mixed_base()
    base.save(tmp_path)
    assert KnowledgeBase.load(tmp_path) == base
    assert "gave(ada,book,bob).\n" in (tmp_path / "train.txt").read_text()
    assert pickle.loads(pickle.dumps(base.train)) == base.train


def test_unsupported_number_of_arguments_raises_error():
    for text in ("p(a,b,c,d)", "p()"):
        with pytest.raises(ValueError, match="one to three arguments"):
            parse_atom(text)
    with pytest.raises(ValueError, match="p has 4 arguments"):
        Atom("p", *"abcd")


def test_predicate_with_several_arities_raises_error(data):
    facts = parse_atom("p(a)"), parse_atom("p(a,b)")
    with pytest.raises(ValueError, match=r"p with . arguments and with ., as in p"):
        KnowledgeBase(facts, name="both")
    with pytest.raises(ValueError, match="human has one argument in this knowledge base, but 2 in human"):
        parse_query(data, "human(ada,X)")


def test_tables_with_two_to_four_columns_are_read(tmp_path):
    (tmp_path / "two.csv").write_text("head,relation\nada,human\nbob,human\n")
    (tmp_path / "four.csv").write_text(
        "head,relation,tail,third\nada,gave,book,bob\nbob,likes,book,\neve,human,,\n"
    )
    (tmp_path / "plain.tsv").write_text("a\tp\tb\tc\na\tp\tc\tb\n")
    (tmp_path / "hole.csv").write_text("head,relation,tail,third\nada,gave,,bob\n")
    read = {path.stem: list(map(str, load_table(path))) for path in tmp_path.glob("[tfp]*.?sv")}
    assert read["two"] == ["human(ada)", "human(bob)"]
    assert read["four"] == ["gave(ada,book,bob)", "likes(bob,book)", "human(eve)"]
    assert read["plain"] == ["p(a,b,c)", "p(a,c,b)"]
    with pytest.raises(ValueError, match=r"hole.csv:2: one of the cells 'ada', 'gave', '', 'bob' is empty"):
        load_table(tmp_path / "hole.csv")


def test_encoding_pads_with_the_last_argument(data):
    index = ProofVocabulary(data)
    human, ada = index.predicate_indices["human"], index.constant_indices["ada"]
    assert index.arity == 3 and index.encode_atom(parse_atom("human(ada)")) == (human, ada, ada, ada)
    for atom in data.known:
        assert index.decode_atom(index.encode_atom(atom)) == atom
    variable = index.first_variable
    assert str(index.decode_atom((human, variable, variable, variable))) == "human(_1)"
    assert str(index.decode_atom((index.true_index, 0, 0, 0))) == "True"
    two = KnowledgeBase((parse_atom("p(a)"), parse_atom("q(a,b)")), name="two")
    assert two.vocabulary.arity == 2


def test_proofs_and_depths_with_mixed_arities(data):
    for query, depth in TRUE.items():
        proof = prove(data, query)
        assert proof is not None and proof.depth == depth, query
        proof.check(data.facts, data.rules)
    assert [prove(data, query) for query in FALSE] == [None] * len(FALSE)
    answers = Prover(data.facts, data.rules).answers(parse_query(data, "chain(X,Y,Z)"))
    assert [str(proof.goal) for proof in answers] == ["chain(ada,bob,eve)"]
    index = data.vocabulary
    queries = index.encode([parse_atom(text) for text in (*TRUE, *FALSE)])
    depths = compute_proof_depths(queries, index.encode(data.facts), index.encode_rules(data.rules))
    assert depths.tolist() == [*TRUE.values(), *[-1] * len(FALSE)]


def test_query_answers_have_exact_proofs(data):
    (answer,) = answer_query(data, "happy(X)", explain=True)
    assert str(answer.atom) == "happy(bob)" and answer.probability == pytest.approx(0.45)
    assert [rule.name for rule in answer.rules] == ["r1", "r0"]
    answer.proofs[0].check(data.facts, data.rules)
    assert [str(answer.atom) for answer in answer_query(data, "gave(ada,X,bob)")] == ["gave(ada,book,bob)"]
    assert answer_query(data, "gave(ada,book,bob)", exclude_facts=True) == []
    assert answer_query(data, "happy(ada)") == []
    with pytest.raises(ValueError, match=r"two variables; use one, as in gave\(X,name,name\)"):
        answer_query(data, "gave(X,Y,bob)")


def test_mining_skips_other_arities_with_a_warning(data):
    with pytest.warns(UserWarning, match="4 facts and 4 rules with chain, gave, happy, ... are left out"):
        assert mine_rules(data, max_length=2, num_threads=1).vocabulary.arity == 2


@pytest.mark.parametrize("backend", pc.ENGINES)
def test_environment_samples_negatives_of_each_arity(data, backend):
    env = ProofEnvironment.from_knowledge_base(data, ProofConfig(max_actions=8, backend=backend))
    states, observations = jax.jit(env.batch_reset)(jax.random.split(jax.random.PRNGKey(0), 200))
    assert observations.successors.shape[-1] == 4
    index, known = env.vocabulary, {tuple(row) for row in env.known.triples.tolist()}
    seen: dict[str, set[bool]] = {}
    for query, label in zip(np.asarray(states.query.atom), np.asarray(states.query.label), strict=True):
        atom = index.decode_atom(query)
        assert index.encode_atom(atom) == tuple(query.tolist()), atom
        assert (tuple(query.tolist()) in known) == bool(label)
        seen.setdefault(atom.predicate, set()).add(bool(label))
    assert set(seen) == {"human", "gave", "likes", "is a"}
    assert all(labels == {True, False} for labels in seen.values())
    state, _ = env.reset_to(jnp.array(index.encode_atom(parse_atom("happy(bob)"))), jnp.bool_(True))
    text = ProofText(env)
    assert "Goals: happy(bob)" in text.prompt(state)
    assert "human" not in text.format(jnp.int32(0), state)  # a fact, which is resolved at once
    assert text.format(jnp.int32(0), state) == "has(bob,_1), likes(bob,_1)"


def random_program(seed: int) -> tuple[list[Atom], list[Rule], dict[str, int]]:
    rng = np.random.default_rng(seed)
    arities = {f"p{k}": int(arity) for k, arity in enumerate((1, 2, 3, *rng.integers(1, 4, 2)))}
    names, variables = [f"c{k}" for k in range(3)], [f"X{k}" for k in range(4)]
    names_of = list(arities)

    def atom(terms) -> Atom:
        predicate = names_of[rng.integers(len(names_of))]
        return Atom(predicate, *(terms() for _ in range(arities[predicate])))

    facts = list(dict.fromkeys(atom(lambda: names[rng.integers(3)]) for _ in range(14)))
    rules = []
    while len(rules) < 6:
        body = [atom(lambda: variables[rng.integers(4)]) for _ in range(rng.integers(1, 4))]
        bound = sorted({name for body_atom in body for name in body_atom[1:]})
        head = atom(lambda bound=bound: names[0] if rng.random() < 0.1 else bound[rng.integers(len(bound))])
        constants = frozenset({names[0]}) if names[0] in head[1:] else frozenset()
        rules.append(Rule(f"r{len(rules)}", 1.0, tuple(body), head, constants))
    return facts, rules, arities


def least_model(facts: set[Atom], rules: list[Rule]) -> set[Atom]:
    """Compute the least model by substituting all constants for all variables, without padding or joins."""
    names = sorted({name for fact in facts for name in fact[1:]} | {n for r in rules for n in r.constants})
    model = set(facts)
    while True:
        new = set()
        for rule in rules:
            for values in itertools.product(names, repeat=len(rule.variables)):
                bound = dict(zip(rule.variables, values, strict=True))
                if all(Atom(b[0], *(bound.get(t, t) for t in b[1:])) in model for b in rule.body):
                    new.add(Atom(rule.head[0], *(bound.get(t, t) for t in rule.head[1:])))
        if new <= model:
            return model
        model |= new


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_chaining_prover_and_search_agree_on_random_programs(seed):
    facts, rules, arities = random_program(seed)
    model = least_model(set(facts), rules)
    names = sorted({name for atom in model for name in atom[1:]})
    domains = {"all": tuple(names)}
    data = KnowledgeBase(tuple(facts), tuple(rules), domains=domains, name="random")
    index = data.vocabulary
    encoded, encoded_rules = index.encode(facts), index.encode_rules(rules)
    rows, _ = entail(encoded, encoded_rules)
    assert {index.decode_atom(row) for row in rows} == model

    rng = np.random.default_rng(seed)
    all_atoms = [Atom(p, *terms) for p, n in arities.items() for terms in itertools.product(names, repeat=n)]
    shuffled = [all_atoms[i] for i in rng.permutation(len(all_atoms))]
    # Few of all atoms are in the model, so both groups are sampled separately.
    queries = [*(atom for atom in shuffled if atom in model)][:24] + [
        *(a for a in shuffled if a not in model)
    ][:16]
    depths = compute_proof_depths(index.encode(queries), encoded, encoded_rules, 5)
    prover = Prover(facts, rules)
    for query, depth in zip(queries, depths.tolist(), strict=True):
        proof = next(prover.proofs(parse_query(data, query), 5), None)
        assert (proof.depth if proof else -1) == depth, query
        if proof is not None:
            proof.check(facts, rules)
            assert query in least_model(set(facts) - {query}, rules)

    config = ProofConfig(max_actions=256, max_goals=12)
    vocabulary = ProofVocabulary(data, 12)
    program = Program.from_knowledge_base(data, vocabulary)
    search = BestFirstConfig(max_expansions=400, max_depth=5, num_parallel_queries=8)
    trace = best_first_search(config, program, BreadthFirstHeuristic(), vocabulary.encode(queries), search)
    for query, depth, length, expansions in zip(
        queries, depths.tolist(), trace.length, trace.expansions, strict=True
    ):
        # Breadth-first search finds a shortest proof unless it reaches the expansion limit.
        assert length == depth or (length == -1 and expansions == 400), query
    assert (trace.length > 0).sum() >= (depths > 0).sum() // 2
