"""`phalanx prove`: shows the shortest proof of a query as a tree or SVG, or explains why there is none."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import print_json
from phalanx.formatting import escape_untrusted, format_count
from phalanx.io.atomic import atomic_write
from phalanx.kg import (
    Atom,
    KnowledgeBase,
    Proof,
    Prover,
    TimeLimit,
    TimeLimitExceeded,
    draw_proof,
    parse_atom,
    parse_query,
)
from phalanx.kg.knowledge_base import GENERATED
from phalanx.kg.time_limit import print_to_stderr

app = typer.Typer(add_completion=False)

ExcludeFacts = Annotated[bool, typer.Option("--exclude-facts", help="Leave out answers that are facts.")]

_DEFAULT_ANSWERS = 10
_MAX_REASONS = 8


@app.command()
def prove(
    query: Annotated[
        str,
        typer.Argument(help="An atom, as in aunt(5,76); one capital letter is a variable, as in aunt(5,X)."),
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", help="Folder of a knowledge base.", show_default="the generated one"),
    ] = None,
    max_depth: Annotated[int, typer.Option(min=1, help="Maximum number of steps in a proof.")] = 6,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw the proof as SVG; further proofs get numbered names."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Number of proofs or answers.", show_default="1 proof, 10 answers"),
    ] = None,
    exclude_facts: ExcludeFacts = False,
    without_fact: Annotated[
        list[str] | None,
        typer.Option("--without-fact", metavar="ATOM", help="Do not use this fact; can be repeated."),
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Time limit in seconds.")] = None,
    heuristic: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Best-first search with a run of `phalanx train heuristic`, on its knowledge base.",
        ),
    ] = None,
    max_expansions: Annotated[
        int, typer.Option(min=1, help="With --heuristic: maximum nodes to expand.")
    ] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove a query from facts and rules. The exit code is 1 if no proof was found.

    A step replaces the first goal with the body of a rule or unifies it with a fact. Proving a goal that has
    no variables and is a fact does not count as a step. A query without variables is never used as a fact in
    its own proof.
    """
    if heuristic is not None:
        if data or out or limit or exclude_facts or without_fact or max_seconds is not None:
            raise UserError(
                "--heuristic can only be combined with --max-depth, --max-expansions and --json, because the "
                "run determines the knowledge base"
            )
        _prove_with_heuristic(query, heuristic, max_depth, max_expansions, as_json=as_json)
        return
    with user_errors():
        base = KnowledgeBase.load(GENERATED if data is None else data, on_leak="allow")
        parsed = parse_query(base, query)
        facts = _remove_facts(base, [parse_atom(text) for text in without_fact or ()])
        prover = Prover(facts, base.rules, TimeLimit(max_seconds, print_to_stderr))
    wanted = limit or (1 if parsed.is_ground else _DEFAULT_ANSWERS)
    found = prover.proofs(parsed, max_depth) if parsed.is_ground else prover.answers(parsed, max_depth)
    proofs: list[Proof] = []
    reasons: list[str] = []
    is_complete = True
    try:
        kept = (proof for proof in found if not exclude_facts or proof.rule is not None)
        for proof in itertools.islice(kept, wanted + 1):
            proofs.append(proof)
        reasons = [] if proofs else prover.explain_failure(parsed, max_depth)
    except TimeLimitExceeded:
        is_complete = False
    has_more, proofs = len(proofs) > wanted, proofs[:wanted]
    drawings = draw_proofs(proofs, out)
    if as_json:
        print_json(
            {
                "query": str(parsed.atom),
                "max_depth": max_depth,
                "complete": is_complete,
                "proofs": [proof_record(proof) for proof in proofs],
                "more": has_more,
                "reasons": reasons,
                "drawings": [str(path) for path in drawings],
            }
        )
    elif proofs:
        is_proved_fact = parsed.is_ground and prover.is_fact(parsed.atom)
        _print_proofs(proofs, f"{parsed.atom} is a fact; proved without it." if is_proved_fact else "")
        if has_more:
            kind = "proofs" if parsed.is_ground else "answers"
            typer.echo(f"There are more {kind}; show them with --limit {2 * len(proofs)}.")
        for path in drawings:
            typer.echo(str(path))
    else:
        within = format_count(max_depth, "step") if is_complete else f"{max_seconds:g} s"
        kind = "proof" if parsed.is_ground else "answer that is not a fact" if exclude_facts else "answer"
        lines = [f"{parsed.atom}: no {kind} within {within}", *(f"  {r}" for r in reasons[:_MAX_REASONS])]
        if len(reasons) > _MAX_REASONS:
            lines.append(f"  and {len(reasons) - _MAX_REASONS} more rules that cannot be applied")
        typer.echo("\n".join(lines))
    if not is_complete:
        typer.echo("The search is incomplete: increase --max-seconds, or decrease --max-depth", err=True)
    if not proofs:
        raise typer.Exit(1)


def _prove_with_heuristic(
    query: str, run: Path, max_depth: int, max_expansions: int, *, as_json: bool
) -> None:
    import numpy as np

    from phalanx.training.search_heuristic import load_heuristic  # imports JAX

    with user_errors():
        trainer, heuristic = load_heuristic(run)
        base, vocabulary = trainer.data.knowledge_base, trainer.data.vocabulary
        assert base is not None
        assert vocabulary is not None
        parsed = parse_query(base, query)
        if not parsed.is_ground:
            raise ValueError(f"{parsed.atom} has variables; a search with a heuristic needs a ground query")
        encoded = np.array([vocabulary.encode_atom(parsed.atom)], np.int32)
        result = trainer.search(heuristic, encoded, max_expansions=max_expansions, max_depth=max_depth)
    assert result.trace is not None
    proved, expansions = bool(result.proved[0]), int(result.expansions[0])
    path = [", ".join(map(str, vocabulary.decode_state(goals))) for goals in result.trace.paths.get(0, ())]
    if as_json:
        length = int(result.length[0]) if proved else None
        record = {"query": str(parsed.atom), "proved": proved, "length": length, "expansions": expansions}
        print_json(record | {"goals": path})
    elif proved:
        for number, goals in enumerate([*path, "True"]):
            typer.echo(f"{number:3}  {escape_untrusted(goals)}")
        typer.echo(f"{format_count(len(path), 'step')}, {format_count(expansions, 'node')} expanded")
    else:
        nodes = format_count(expansions, "node")
        typer.echo(f"{escape_untrusted(parsed.atom)}: no proof within {nodes} and {max_depth} steps")
        if result.overflow[0]:
            typer.echo("  some nodes had more successors than max_actions")
    if not proved:
        raise typer.Exit(1)


def _remove_facts(base: KnowledgeBase, removed: Sequence[Atom]) -> list[Atom]:
    if unknown := set(removed).difference(base.facts):
        raise UserError(f"--without-fact {min(unknown)}: this is not a fact of {base.name}")
    return [atom for atom in base.facts if atom not in removed]


def draw_proofs(proofs: Sequence[Proof], out: Path | None) -> list[Path]:
    """Draw proofs as SVG files and return their paths.

    The first proof is written to `out`, and each further proof to a file with a numbered name, such as
    `proof-2.svg`. If `out` is None, nothing is drawn.
    """
    if out is None:
        return []
    paths = []
    for number, proof in enumerate(proofs, 1):
        paths.append(out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}"))
        with user_errors(), atomic_write(paths[-1], "w") as file:
            file.write(draw_proof(proof).as_svg())
    return paths


def _print_proofs(proofs: Sequence[Proof], note: str) -> None:
    """Print a note (if it is not empty), the proofs as trees, and the rules that the proofs use."""
    console = Console(highlight=False, soft_wrap=True)
    if note:
        console.print(note, markup=False)
    for proof in proofs:
        console.print(proof_tree(proof))
    if rules := {node.rule.name: node.rule for proof in proofs for node in proof.nodes() if node.rule}:
        console.print()
        width = max(map(len, rules))
        for name, rule in rules.items():
            console.print(f"{name.ljust(width)}  {rule.format_clause()}", markup=False)


def proof_tree(proof: Proof) -> Tree:
    """Return a proof as a Rich tree for the terminal."""
    tree = Tree(_goal_text(proof, format_count(proof.depth, "step")), guide_style="dim")
    _add_children(tree, proof)
    return tree


def _add_children(tree: Tree, proof: Proof) -> None:
    if proof.rule is None:
        return
    branch = tree.add(Text.assemble("by ", (proof.rule.name, "cyan"), " with ", proof.format_substitution()))
    for child in proof.children:
        _add_children(branch.add(_goal_text(child)), child)


def _goal_text(proof: Proof, *notes: str) -> Text:
    label = Text(str(proof.goal), "green" if proof.rule is None else "bold")
    notes = (("fact",) if proof.rule is None else ()) + notes
    return label.append(f"  {', '.join(notes)}", "dim") if notes else label


def proof_record(proof: Proof) -> dict[str, Any]:
    """Return a proof as a dictionary of JSON values."""
    goal, selected_goal = str(proof.goal), str(proof.selected_goal)
    record = {"goal": goal, "selected_goal": selected_goal, "depth": proof.depth}
    if proof.rule is None:
        return record | {"fact": True}
    body = [proof_record(child) for child in proof.children]
    return record | {"rule": proof.rule.name, "substitution": dict(proof.substitution), "body": body}
