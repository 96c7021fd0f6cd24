"""`phalanx prove`: the shortest proof of a query as a tree and as a picture, or why there is none.

The search is in `phalanx.kg.proving`, the pictures are in `phalanx.proofs.rendering`.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import print_json

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from phalanx.kg.atoms import Atom
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.proving import Proof, ProofQuery, Prover

app = typer.Typer(add_completion=False)

_ANSWERS = 10
"""Answers that are shown of a query with variables, unless more are asked for."""
_REASONS = 8


@app.command()
def prove(
    query: Annotated[
        str,
        typer.Argument(help="An atom, as in aunt(5,76); one capital letter is a variable, as in aunt(5,X)."),
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", help="The folder of a knowledge base [default: the generated one]."),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Steps that a proof may take.")] = 6,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw the proof as SVG; further ones get numbers in their names."),
    ] = None,
    all_: Annotated[
        int | None,
        typer.Option("--all", min=1, help="Show so many proofs, or answers [default: 1 proof, 10 answers]."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Only answers that are not facts already.")] = False,
    without_fact: Annotated[
        list[str] | None,
        typer.Option("--without-fact", metavar="ATOM", help="Do without this fact; may be given again."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop searching after this time.")] = None,
    guide: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Search best-first by a run of `phalanx train guide`, in its data."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="With --guide: nodes that are expanded at most.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove a query by facts and rules; exit code 1 if it has no proof.

    A step replaces the first goal by a rule's body or unifies it with a fact; ground goals that are facts
    cost nothing. A query never serves as its own fact.
    """
    if guide is not None:
        if data or out or all_ or new or without_fact or seconds is not None:
            raise UserError("--guide goes with --depth, --nodes and --json: its run names the knowledge base")
        prove_guided(query, guide, depth, nodes, as_json=as_json)
        return
    from phalanx.formatting import format_count
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.proving import Prover, parse_query
    from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded, to_stderr

    with user_errors():
        base = DataHandler(path=data, on_leak="allow")
        asked = parse_query(base, query)
        prover = Prover(_facts(base, without_fact or []), base.rules, TimeLimit(seconds, to_stderr))
    wanted = all_ or (1 if asked.ground else _ANSWERS)
    found = prover.proofs(asked, depth) if asked.ground else prover.answers(asked, depth)
    proofs: list[Proof] = []
    why: list[str] = []
    complete = True
    try:
        for proof in itertools.islice((p for p in found if not new or p.rule is not None), wanted + 1):
            proofs.append(proof)
        why = [] if proofs else prover.why_not(asked, depth)
    except TimeLimitExceeded:
        complete = False
    more, proofs = len(proofs) > wanted, proofs[:wanted]
    pictures = draw_all(proofs, out)
    if as_json:
        print_json(
            {
                "query": str(asked.atom),
                "max_depth": depth,
                "complete": complete,
                "proofs": [proof_record(proof) for proof in proofs],
                "more": more,
                "why_not": why,
                "pictures": [str(path) for path in pictures],
            }
        )
    elif proofs:
        _show(proofs, asked, prover, more=more)
        for path in pictures:
            typer.echo(str(path))
    else:
        _say_why_not(why, asked, f"{seconds:g} s" if not complete else format_count(depth, "step"), new=new)
    if not complete:
        typer.echo("The search was not complete: give it more --seconds, or a smaller --depth", err=True)
    if not proofs:
        raise typer.Exit(1)


def prove_guided(query: str, run: Path, depth: int, nodes: int, *, as_json: bool) -> None:
    """Search for a proof by a learned guide, and show the goals on the way to it; see `phalanx prove`."""
    import numpy as np

    from phalanx.formatting import escape_untrusted, format_count
    from phalanx.kg.proving import parse_query
    from phalanx.training.search_heuristic import load_heuristic

    with user_errors():
        training, guide = load_heuristic(run)
        asked = parse_query(training.data.handler, query)
        if not asked.ground:
            raise ValueError(f"{asked.atom} has variables; a guided search is for one without")
        names = training.data.names
        encoded = np.array([names.encode_atom(asked.atom)], np.int32)
        tried = training.search(guide, encoded, nodes, depth)
    proved, expanded = bool(tried.proved[0]), int(tried.expansions[0])
    way = [", ".join(map(str, names.decode_state(goals))) for goals in tried.ways.get(0, ())]
    if as_json:
        length = int(tried.length[0]) if proved else None
        print_json(
            {"query": str(asked.atom), "proved": proved, "steps": length, "expanded": expanded, "goals": way}
        )
    elif proved:
        for number, goals in enumerate(way):
            typer.echo(f"{number:3}  {escape_untrusted(goals)}")
        typer.echo(f"{len(way):3}  True")
        typer.echo(f"{format_count(len(way), 'step')}, {format_count(expanded, 'node')} expanded")
    else:
        typer.echo(
            f"{escape_untrusted(asked.atom)}: no proof within {format_count(expanded, 'node')} "
            f"and {depth} steps"
        )
        if tried.overflow[0]:
            typer.echo("  some nodes had more successors than environment.padding_states")
    if not proved:
        raise typer.Exit(1)


def _facts(data: "DataHandler", without: Sequence[str]) -> list["Atom"]:
    from phalanx.kg.atoms import parse_atom

    left_out = {parse_atom(text) for text in without}
    known = frozenset(data.facts)
    if strange := [atom for atom in left_out if atom not in known]:
        raise UserError(f"--without-fact {strange[0]}: this is not a fact of {data.dataset}")
    return [atom for atom in data.facts if atom not in left_out]


def draw_all(proofs: Sequence["Proof"], out: Path | None) -> list[Path]:
    """The pictures that were drawn: `out`, and with numbers in their names the further ones."""
    if out is None:
        return []
    from phalanx.io.atomic import atomic_write
    from phalanx.proofs.rendering import draw_proof

    paths = []
    for number, proof in enumerate(proofs, 1):
        paths.append(out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}"))
        with user_errors(), atomic_write(paths[-1], "w") as file:
            file.write(draw_proof(proof).as_svg())
    return paths


def _show(proofs: Sequence["Proof"], query: "ProofQuery", prover: "Prover", *, more: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if query.ground and prover.is_fact(query.atom):
        console.print(f"{query.atom} is a fact; proved without it.", markup=False)
    for proof in proofs:
        console.print(tree_of(proof))
    if rules := {node.rule.name: node.rule for proof in proofs for node in proof.nodes() if node.rule}:
        console.print()
        width = max(map(len, rules))
        for name, rule in rules.items():
            body = ", ".join(map(rule.write, rule.body))
            console.print(f"{name.ljust(width)}  {body} -> {rule.write(rule.head)}", markup=False)
    if more:
        kind = "proofs" if query.ground else "answers"
        console.print(f"There are more {kind}: --all {2 * len(proofs)} shows some of them.")


def tree_of(proof: "Proof") -> "Tree":
    """A proof as a terminal shows it."""
    from rich.tree import Tree

    from phalanx.formatting import format_count

    tree = Tree(_goal(proof, format_count(proof.depth, "step")), guide_style="dim")
    _grow(tree, proof)
    return tree


def _grow(tree: "Tree", proof: "Proof") -> None:
    from rich.text import Text

    if proof.rule is None:
        return
    values = ", ".join(f"{name} = {term}" for name, term in proof.substitution)
    branch = tree.add(Text.assemble("by ", (proof.rule.name, "cyan"), " with ", values))
    for child in proof.children:
        _grow(branch.add(_goal(child, "")), child)


def _goal(proof: "Proof", note: str) -> "Text":
    from rich.text import Text

    label = Text(str(proof.goal), "green" if proof.rule is None else "bold")
    notes = [*(["fact"] if proof.rule is None else []), *([note] if note else [])]
    return label.append(f"  {', '.join(notes)}", "dim") if notes else label


def _say_why_not(reasons: Sequence[str], query: "ProofQuery", limit: str, *, new: bool) -> None:
    kind = "proof" if query.ground else "answer that is no fact" if new else "answer"
    typer.echo(f"{query.atom}: no {kind} within {limit}")
    for reason in reasons[:_REASONS]:
        typer.echo(f"  {reason}")
    if len(reasons) > _REASONS:
        typer.echo(f"  and {len(reasons) - _REASONS} more rules that lead nowhere")


def proof_record(proof: "Proof") -> dict[str, Any]:
    """A proof as JSON has it."""
    found: dict[str, Any] = {"goal": str(proof.goal), "asked": str(proof.asked), "depth": proof.depth}
    if proof.rule is None:
        return found | {"fact": True}
    return found | {
        "rule": proof.rule.name,
        "substitution": dict(proof.substitution),
        "body": [proof_record(child) for child in proof.children],
    }
