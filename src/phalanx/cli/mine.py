"""`phalanx mine`: rules from triples, written as `rules.txt`, and a split ranked by them or by a network.

Mining is in `phalanx.kg`.
"""

import enum
import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import print_json

app = typer.Typer(add_completion=False)


class Split(enum.StrEnum):
    """Queries to rank."""

    valid = "valid"
    test = "test"


class Aggregation(enum.StrEnum):
    """How the confidences of several rules become one; a network goes by all paths, and by no rules."""

    maximum = "maximum"
    noisy_or = "noisy-or"
    power = "power"
    learned = "learned"
    by_relation = "by-relation"
    network = "network"


@app.command()
def mine(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A knowledge base's folder, or a file of triples.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write the rules.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="When to stop mining.")] = None,
    length: Annotated[int, typer.Option(min=1, max=5, help="Atoms in the body of a path rule.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Changes the time and nothing else.")] = 2,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Other settings of mining, as min_support=5, or of a network."
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Rank by the rules of this file; nothing is mined.")
    ] = None,
    rank: Annotated[
        Split | None, typer.Option("--rank", help="Rank the queries of a split by the rules.")
    ] = None,
    aggregation: Annotated[
        Aggregation, typer.Option(help="What an answer with several rules counts for.")
    ] = Aggregation.maximum,
    kge: Annotated[
        Path | None, typer.Option(help="Rank by an embedding too: a run of `phalanx train kge`.")
    ] = None,
    power: Annotated[
        float, typer.Option(min=1, help="Of `power`: 1 is noisy-or, the higher the nearer to maximum.")
    ] = 2.0,
    network: Annotated[
        Path | None,
        typer.Option(help="Of `network`: the file to read it from, or to write what is learned to."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Mine rules from the training triples, write them, and rank a split by them."""
    from phalanx.cli.eval import load_embedding
    from phalanx.config import load_config
    from phalanx.formatting import format_count
    from phalanx.kg.formats import read_rules
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.rules.config import MiningConfig
    from phalanx.kg.rules.mining import mine_rules as mine_rules
    from phalanx.kg.rules.predictor import rank_by_rules
    from phalanx.kg.rules.ruleset import HEAD_CONSTANT, RuleSet
    from phalanx.kg.time_limit import TimeLimit, to_stderr
    from phalanx.kg.vocabulary import IndexManager

    if rules is not None and (out is not None or rank is None):
        raise UserError("--rules reads rules to rank by: give --rank, and no --out")
    if network is not None and aggregation is not Aggregation.network:
        raise UserError("--network is a file of --aggregation network: give both")
    if aggregation is Aggregation.network:
        if rank is None or rules is not None or out is not None:
            raise UserError("a network ranks without rules: give --rank, and neither --rules nor --out")
        _rank_by_network(data, rank.value, network, settings or [], kge, threads, as_json)
        return
    began = time.process_time()
    given = [f"length={length}", f"threads={threads}", *([f"seconds={seconds}"] if seconds else [])]
    with user_errors():
        config = load_config(MiningConfig, None, (*given, *(settings or ())))
        base = DataHandler(path=data, on_leak="allow").binary()
        if not base.facts:
            raise ValueError(f"{data} has no triples to mine rules from")
        budget = TimeLimit(None, to_stderr)
        if rules is None:
            found = mine_rules(base, config, budget)
        else:
            found, left_out = RuleSet.of_rules(read_rules(rules), IndexManager(base))
            if left_out:
                to_stderr(
                    f"{format_count(len(left_out), 'rule')} of another shape left out, as {left_out[0].name}"
                )
        mined = time.process_time() - began
        if out is not None:
            budget.say(f"writing {format_count(len(found), 'rule')}")
            found.save(out)
    paths = int((found.rows[:, HEAD_CONSTANT] < 0).sum())
    record = {"dataset": base.dataset, "facts": len(base.facts), "rules": len(found), "path_rules": paths}
    record |= {"complete": found.complete, "mining_cpu_seconds": round(mined, 2)}
    if not as_json:
        parts = f"{paths:,} paths and {len(found) - paths:,} with constants"
        cut = "" if found.complete else "; time was up before all was looked at"
        typer.echo(
            f"{format_count(len(found), 'rule')} from {format_count(len(base.facts), 'fact')}: {parts}{cut}"
        )
        for place in range(0 if out or rank else min(10, len(found))):
            typer.echo(f"  {found[place]}")
    if rank is not None:
        budget.say(f"ranking {len(base.queries(rank.value)):,} queries")
        began = time.process_time()
        with user_errors():
            embedding = None if kge is None else load_embedding(kge, found.index)
            ranking = rank_by_rules(
                found,
                base,
                rank.value,
                cast(Any, aggregation.value),
                kge=embedding,
                power=power,
                threads=threads,
                limit=config.limit,
                budget=budget,
            )
        record |= {**ranking.as_record(), "ranking_cpu_seconds": round(time.process_time() - began, 2)}
        if not as_json:
            typer.echo(ranking.describe())
    if as_json:
        print_json(record)


def _rank_by_network(
    data: Path,
    split: str,
    file: Path | None,
    settings: list[str],
    kge: Path | None,
    threads: int,
    as_json: bool,
) -> None:
    """Read a network or learn one, and rank a split by it."""
    from phalanx.cli.eval import load_embedding
    from phalanx.config import load_config
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.path_network import PathNetwork, PathNetworkConfig, fit_path_network, rank_by_network
    from phalanx.kg.time_limit import TimeLimit, to_stderr

    began, budget = time.process_time(), TimeLimit(None, to_stderr)
    with user_errors():
        base = DataHandler(path=data, on_leak="allow").binary()
        if file is not None and file.exists():
            if settings:
                raise ValueError(f"{file} is learned already: --set changes nothing")
            network = PathNetwork.load(file, base, threads)
        else:
            config = load_config(PathNetworkConfig, None, settings)
            network = fit_path_network(base, config, threads=threads, budget=budget)
            if file is not None:
                network.save(file)
        learned = time.process_time()
        budget.say(f"ranking {len(base.queries(split)):,} queries")
        embedding = None if kge is None else load_embedding(kge, network.index)
        ranking = rank_by_network(network, base, split, kge=embedding, budget=budget)
    if not as_json:
        typer.echo(ranking.describe())
        return
    seconds = {"learning_cpu_seconds": learned - began, "ranking_cpu_seconds": time.process_time() - learned}
    record = {"dataset": base.dataset, "facts": len(base.facts), **ranking.as_record()}
    print_json(record | {name: round(value, 2) for name, value in seconds.items()})
