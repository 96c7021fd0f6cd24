"""File formats of knowledge bases: quoted names, rules with constants, and tables of triples."""

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.kg.atoms import Atom, Rule, parse_atom, parse_rule
from phalanx.kg.formats import list_knowledge_bases, load_rules
from phalanx.kg.knowledge_base import KnowledgeBase

SPECIAL_NAMES = (
    "New York",
    "U.S. (mainland)",
    "a,b",
    "it's",
    "'tis",
    "C:\\new",
    "two\nlines",
    "tab\there",
    "X",
    "_",
    "?",
)
names = st.one_of(st.sampled_from(SPECIAL_NAMES), st.text(min_size=1, max_size=6))


def triples(*rows: tuple[str, str, str]) -> tuple[Atom, ...]:
    return tuple(Atom(relation, head, tail) for head, relation, tail in rows)


def test_quoted_names_may_contain_any_character():
    assert parse_atom(r"'is in'('New York', 'it\'s (a,b)').") == Atom("is in", "New York", "it's (a,b)")
    assert str(Atom("is in", "New York", "it's (a,b)")) == r"'is in'('New York','it\'s (a,b)')"
    assert str(Atom("in", "o'brien", "Oslo")) == "in(o'brien,Oslo)"
    assert parse_atom("in('it''s',x)").first == "it's"


@given(st.tuples(names, names, names))
def test_atoms_with_any_names_round_trip(parts):
    atom = Atom(*parts)
    assert parse_atom(f"{atom}.") == atom


variables = st.sampled_from(["X", "Y", "_1", "x", "person", "?q", "Z9"])


@given(st.lists(st.tuples(names, *[st.tuples(st.booleans(), names, variables)] * 2), min_size=2, max_size=4))
def test_rules_with_constants_round_trip(parts):
    terms = [term for _, *pair in parts for term in pair]
    constants = {name for constant, name, _ in terms if constant}
    # A name in a rule is either a variable or a constant.
    atoms = [
        Atom(
            predicate,
            *(name if constant or variable in constants else variable for constant, name, variable in pair),
        )
        for predicate, *pair in parts
    ]
    used = {term for atom in atoms for term in atom[1:]}
    free = used & {variable for _, _, variable in terms} - constants
    rule = Rule("r", 0.25, tuple(atoms[1:]), atoms[0], frozenset(used - free))
    assert parse_rule(str(rule)) == rule


def test_case_distinguishes_variables_from_constants():
    rule = parse_rule("r:1:in(X,Y), in(Y,europe) -> european(X,europe)")
    assert (rule.variables, rule.constants) == (("X", "Y"), {"europe"})
    assert parse_rule("r:1:is(X,'Q5') -> human(X,'Q5')").constants == {"Q5"}
    assert parse_rule("r:1:is(X,Q5) -> human(X,Q5)").variables == ("X", "Q5")
    assert parse_rule("r:1:is(?x,_y) -> human(?x,?x)").variables == ("x", "_y")
    assert parse_rule("r:1:is(a,b) -> was(b,a)").variables == ("b", "a")
    assert parse_rule("r:1:is('a',b) -> was(b,'a')").constants == {"a", "b"}
    assert parse_rule("r:1:is(X,_), is(_,X) -> was(X,X)").variables == ("X", "_1", "_2")


def test_name_used_as_variable_and_constant_raises_error():
    with pytest.raises(ValueError, match="rule 'r' uses 'X' as a variable and as a constant"):
        parse_rule("r:1:is(X,'X') -> was(X,X)")
    with pytest.raises(ValueError, match="lists a constant that it does not contain: 'z'"):
        Rule("r", 1.0, (Atom("is", "X", "Y"),), Atom("was", "X", "Y"), frozenset({"z"}))


@pytest.mark.parametrize(
    ("line", "weight"),
    [
        ("european(X,europe) :- in(X,Y), in(Y,europe).", 1.0),
        ("0.75::european(X,europe):-in(X,Y),in(Y,europe).", 0.75),
        ("line2:0.75:european(X,europe) :- in(X,Y), in(Y,europe)", 0.75),
    ],
)
def test_prolog_rules_are_parsed(tmp_path, line, weight):
    (tmp_path / "rules.txt").write_text(f"% places\n{line}\n")
    (rule,) = load_rules(tmp_path / "rules.txt")
    assert rule == parse_rule(f"line2:{weight}:in(X,Y), in(Y,europe) -> european(X,europe)")


def test_malformed_prolog_rules_raise_error():
    with pytest.raises(ValueError, match="is not an atom"):
        parse_rule("in(X,Y), in(Y,X) :- near(X,Y).")
    with pytest.raises(ValueError, match="is not the body of a rule"):
        parse_rule("in(X,Y) :- .")
    with pytest.raises(ValueError, match="weight of rule 'rule' must be a number, got 'much'"):
        parse_rule("much::in(X,Y) :- near(X,Y).")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(names, names, names), min_size=1, max_size=8))
def test_knowledge_base_with_any_names_round_trips(tmp_path_factory, rows):
    atoms = tuple(dict.fromkeys(Atom(*row) for row in rows))
    rules = tuple(
        Rule(
            f"r{n}",
            n / 3,
            (Atom(a.predicate, "X1", a.second),),
            Atom(a.predicate, "X1", a.first),
            frozenset(a[1:]),
        )
        for n, a in enumerate(atoms)
        if "X1" not in a[1:]
    )
    base = KnowledgeBase(
        atoms[:-1] or atoms,
        rules,
        test=atoms[-1:],
        split_depths={"test": {atoms[-1]: 3}},
        domains={"a place": tuple(sorted({name for atom in atoms for name in atom[1:]}))},
    )
    folder = tmp_path_factory.mktemp("kg")
    base.save(folder)
    assert KnowledgeBase.load(folder, on_leak="allow") == base


def test_rule_weights_round_trip(tmp_path):
    rules = (parse_rule("r0:23498.557678762823:p(x,y) -> p(y,x)"), parse_rule("r1:1e-07:q(X,Y) -> p(X,Y)"))
    KnowledgeBase((Atom("p", "1", "2"), Atom("q", "1", "2")), rules).save(tmp_path)
    assert [rule.weight for rule in KnowledgeBase.load(tmp_path).rules] == [23498.557678762823, 1e-07]


FACTS = "in(oslo,norway).\nin(norway,europe).\nin(tokyo,japan).\nin(japan,asia).\nis(X,Q5).\n"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "in(X,Y), in(Y,europa) -> in(X,europa)",
            r"no constant 'europa' .* did you mean 'europe'\? In rule 'r', ",
        ),
        ("in(x,y), in(y,europe) -> in(x,europe)", r"no constant '[xy]' in this knowledge base"),
        (
            "is(Y,Q5) -> is(Q5,Y)",
            "rule 'r' has a variable 'Q5', which is also a constant of",
        ),
        (
            "in(Y,Europe) -> in(Y,Y)",
            "rule 'r' contains 'Europe' once, which is parsed as a variable.*'europe'",
        ),
    ],
)
def test_ambiguous_names_in_rules_raise_error(tmp_path, rule, message):
    (tmp_path / "train.txt").write_text(FACTS)
    (tmp_path / "rules.txt").write_text(f"r:1:{rule}\n")
    with pytest.raises(ValueError, match=message):
        KnowledgeBase.load(tmp_path)


def test_long_variable_names_are_accepted(tmp_path):
    (tmp_path / "train.txt").write_text(FACTS)
    lines = ("a:1:in(Town,Land), in(Land,Part) -> in(Town,Part)", "b:1:in(Town,_Europe) -> in(Town,Town)")
    (tmp_path / "rules.txt").write_text("\n".join(lines))
    assert len(KnowledgeBase.load(tmp_path).rules) == 2


ROWS = (("New York", "in", "U.S. (mainland)"), ('say "hi"', "in", "a,b"), ("oslo", "in", "norway"))


def write_table(path: Path, header: tuple[str, ...] = (), rows=ROWS) -> Path:
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        columns = list(zip(*rows, strict=True))
        pq.write_table(pa.table(dict(zip(header or ("a", "b", "c"), columns, strict=True))), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([header, *rows] if header else rows)
        else:
            file.writelines("\t".join(row) + "\n" for row in ([header, *rows] if header else rows))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_of_triples_are_read(tmp_path, suffix):
    write_table(tmp_path / f"train{suffix}")
    write_table(tmp_path / f"test{suffix}", rows=ROWS[:1])
    data = KnowledgeBase.load(tmp_path, on_leak="allow")
    assert data.facts == triples(*ROWS) and data.test == triples(ROWS[0])
    assert list_knowledge_bases(tmp_path) == [tmp_path]
    assert KnowledgeBase.load(tmp_path / f"train{suffix}").facts == data.facts
    data.save(tmp_path / "copy")
    assert KnowledgeBase.load(tmp_path / "copy", on_leak="allow") == data


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_header_determines_column_order(tmp_path, suffix):
    rows = [(relation, tail, head) for head, relation, tail in ROWS]
    path = write_table(tmp_path / f"graph{suffix}", ("Predicate", "Object", "Subject"), rows)
    data = KnowledgeBase.load(path)
    assert data.facts == triples(*ROWS) and data.name == "graph"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,in,b,c,d\n", "has 5 columns, a, in, b, c, d; name the columns head, relation, tail"),
        ("a,in,b\nc,in\n", "train.csv:2: 2 cells, but the first line has 3"),
        ("a,in,b\nc,in,\n", "train.csv:2: one of the cells 'c', 'in', '' is empty"),
        (
            "from,kind,to\na,in,b\nc,in,d\nd,in,e\n",
            "train.csv:1: from, kind, to shares no name",
        ),
        ('a,in,"b\n', "train.csv:"),
    ],
)
def test_malformed_table_raises_error_with_row(tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        KnowledgeBase.load(tmp_path)


def test_split_in_two_files_raises_error(tmp_path):
    (tmp_path / "train.txt").write_text("in(a,b).")
    (tmp_path / "train.csv").write_text("a,in,b\n")
    with pytest.raises(ValueError, match=r"has train\.txt and train\.csv; keep one of them"):
        KnowledgeBase.load(tmp_path)


def test_facts_file_is_added_to_the_training_file(tmp_path):
    (tmp_path / "facts.txt").write_text("a\tin\tb\n")
    (tmp_path / "train.txt").write_text("b\tin\tc\n")
    assert KnowledgeBase.load(tmp_path).facts == triples(("a", "in", "b"), ("b", "in", "c"))
    with pytest.raises(ValueError, match=r"facts\.txt would be read together with the new files"):
        KnowledgeBase(triples(("a", "in", "c"))).save(tmp_path)
