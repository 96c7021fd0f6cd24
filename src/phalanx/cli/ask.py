"""`phalanx ask`: the answers to a query by rules, the likeliest first, and why.

How they are found is in `phalanx.kg.query_answering`; `phalanx prove` proves by exact search.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors
from phalanx.cli.output import print_json
from phalanx.cli.prove import draw_all, proof_record, tree_of

app = typer.Typer(add_completion=False)


@app.command()
def ask(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A knowledge base's folder, or a file of triples.")
    ],
    query: Annotated[
        str, typer.Argument(help="An atom with one variable, as in nephew(X,bob), or with none.")
    ],
    top: Annotated[int, typer.Option(min=1, help="Answers to show.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show the best proofs of each.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Only answers that are not facts already.")] = False,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="Rules to answer by [default: those of DATA, or mined now]."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="When to stop mining, where rules are mined.")
    ] = 30.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the best proof of each answer as SVG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Answer a query by rules, whose bodies hold by facts; exit code 1 if there is no answer."""
    from phalanx.formatting import escape_untrusted, format_count, format_percent
    from phalanx.kg.formats import read_rules
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.proving import parse_query
    from phalanx.kg.query_answering import QueryAnswerer
    from phalanx.kg.rules.mining import mine_rules
    from phalanx.kg.rules.ruleset import RuleSet
    from phalanx.kg.time_limit import TimeLimit, to_stderr
    from phalanx.kg.vocabulary import IndexManager

    with user_errors():
        base = DataHandler(path=data, on_leak="allow")
        given = None
        if rules is not None and set(base.arities.values()) != {2}:
            # Rules of any shape, for the exact proofs that such a knowledge base is asked by.
            own = dataclasses.replace(base.base, rules=read_rules(rules))
            base = DataHandler.from_knowledge(own, base.dataset, on_leak="allow")
        elif rules is not None:
            given = RuleSet.of_rules(read_rules(rules), IndexManager(base)).rules
        asked = parse_query(base, query)
        if rules is None and not base.rules and len(asked.free) == 2:
            to_stderr(f"{base.dataset} has no rules.txt: mining rules, for {seconds:g} s at most")
            given = mine_rules(base, budget=TimeLimit(None, to_stderr), seconds=seconds)
        asker = QueryAnswerer(base, given)
        if asker.left_out:
            first = asker.left_out[0].name
            to_stderr(f"{format_count(len(asker.left_out), 'rule')} of another shape left out, as {first}")
        answers = asker.ask(query, top, explain=explain or out is not None, new=new)
    pictures = draw_all([proof for answer in answers for proof in answer.proofs[:1]], out)
    if as_json:
        print_json(
            {
                "query": query,
                "answers": [
                    {
                        "atom": str(answer.atom),
                        "probability": answer.probability,
                        "confidence": answer.confidence,
                        "fact": answer.fact,
                        "rules": [str(rule) for rule in answer.rules],
                        "proofs": [proof_record(proof) for proof in answer.proofs],
                    }
                    for answer in answers
                ],
                "pictures": [str(path) for path in pictures],
            }
        )
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        for answer in answers:
            note = "fact" if answer.fact else f"confidence {answer.confidence:.3f}"
            console.print(
                f"{format_percent(answer.probability):>6}  {escape_untrusted(answer.atom)}  {note}",
                markup=False,
            )
            for proof in answer.proofs if explain else ():
                console.print(tree_of(proof))
            for rule in answer.rules[: len(answer.proofs)] if explain else ():
                console.print(f"        {escape_untrusted(rule)}", markup=False)
        for path in pictures:
            typer.echo(str(path))
        if not answers:
            typer.echo(f"{escape_untrusted(query)}: no rule has an answer")
    if not answers:
        raise typer.Exit(1)
