"""`phalanx eval`: the policy of a training run, measured.

How is in `phalanx.agents.arc_evaluation`.
"""

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(add_completion=False)


class Split(enum.StrEnum):
    """Tasks to measure on."""

    held_out = "held-out"
    training = "training"


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a training run.")],
    split: Annotated[Split, typer.Option(help="Tasks it never saw, or those it was trained on.")] = (
        Split.held_out
    ),
    attempts: Annotated[
        int, typer.Option(min=0, help="Sampled attempts at each pair, beside the greedy one.")
    ] = 8,
    tasks: Annotated[bool, typer.Option("--tasks", help="Tell every task, too.")] = False,
    seed: Annotated[int, typer.Option(help="Of the sampled attempts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each evaluation.")] = False,
) -> None:
    """Success, similarity and steps to solve, by family, greedy and sampled with pass@k."""
    from phalanx.agents.runs import read_facts

    with user_errors():
        kind = read_facts(run).get("kind")
    if kind != "arc":
        raise UserError(f"{run} is a run of kind {kind!r}, which this command cannot evaluate")

    from phalanx.agents.arc_evaluation import evaluate_arc
    from phalanx.agents.arc_training import arc_game, held_out, load_arc_policy, sampled
    from phalanx.arc.environment import ArcEnvironment

    with user_errors():
        config, network = load_arc_policy(run)
    environment = held_out(config) if split is Split.held_out else ArcEnvironment.create(config.arc)
    game = arc_game(environment)
    results = [evaluate_arc(environment, game.distribution, network)]
    if attempts:
        settings = config.evaluation.model_copy(update={"attempts": attempts})
        results.append(sampled(environment, game, network, settings, seed))
    for result in results:
        if as_json:
            typer.echo(json.dumps(result.as_record(0, 0, split.value, with_tasks=tasks)))
            continue
        typer.echo(result.describe())
        if tasks:
            for name, score in result.tasks.items():
                typer.echo(f"  {name}: {score['success_rate']:.0%}, similarity {score['similarity']:.3f}")
