"""`phalanx eval`: what a training run has learned, measured; what is measured depends on the run's kind.

Policies on ARC are measured by `phalanx.agents.arc_evaluation`, provers and embeddings in `evaluate_proofs`.
"""

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(add_completion=False)


class Split(enum.StrEnum):
    """Tasks or queries to measure on."""

    held_out = "held-out"
    valid = "valid"
    training = "training"


class Mode(enum.StrEnum):
    """What a true triple is ranked by."""

    rl = "rl"
    kge = "kge"
    hybrid = "hybrid"
    learned = "learned"
    exact = "exact"


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a training run.")],
    split: Annotated[Split, typer.Option(help="Tasks it never saw, or those it was trained on.")] = (
        Split.held_out
    ),
    attempts: Annotated[
        int, typer.Option(min=0, help="ARC: sampled attempts at each pair, beside the greedy one.")
    ] = 8,
    tasks: Annotated[bool, typer.Option("--tasks", help="ARC: tell every task, too.")] = False,
    mode: Annotated[
        Mode | None,
        typer.Option(help="Proofs: rank by the policy's search, an embedding, or both.", show_default="rl"),
    ] = None,
    kge: Annotated[
        Path | None, typer.Option(help="Proofs: the run of `phalanx train kge` for kge, hybrid and learned.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Proofs: the policy as it was before training.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Proofs: ranking settings, as search.width=32."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampled attempts, or of the corruptions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each evaluation.")] = False,
) -> None:
    """ARC: success, similarity and steps by family, with pass@k. Proofs: MRR and hits among corruptions."""
    from phalanx.agents.runs import read_facts

    with user_errors():
        kind = read_facts(run).get("kind")
    if kind == "arc":
        _arc(run, split, attempts, tasks, seed, as_json)
    elif kind in ("proofs", "kge"):
        from phalanx.cli.evaluate_proofs import evaluate_run

        chosen = (Mode.rl if kind == "proofs" else Mode.kge) if mode is None else mode
        evaluate_run(
            run,
            kind,
            chosen.value,
            kge=kge,
            untrained=untrained,
            split={Split.held_out: "test", Split.valid: "valid", Split.training: "train"}[split],
            settings=(*(settings or ()), f"seed={seed}"),
            as_json=as_json,
        )
    else:
        raise UserError(f"{run} is a run of kind {kind!r}, which this command cannot evaluate")


def _arc(run: Path, split: Split, attempts: int, tasks: bool, seed: int, as_json: bool) -> None:
    if split is Split.valid:
        raise UserError("ARC tasks are held-out or training; there is no split 'valid' of them")
    from phalanx.agents.arc_evaluation import evaluate_arc
    from phalanx.agents.arc_training import arc_game, held_out, load_arc_policy, sampled
    from phalanx.arc.environment import ArcEnvironment

    with user_errors():
        config, network = load_arc_policy(run)
    environment = held_out(config) if split is Split.held_out else ArcEnvironment.create(config.arc)
    game = arc_game(environment)
    results = [evaluate_arc(environment, game.distribution, network)]
    if attempts:
        attempted = config.evaluation.model_copy(update={"attempts": attempts})
        results.append(sampled(environment, game, network, attempted, seed))
    for result in results:
        if as_json:
            typer.echo(json.dumps(result.as_record(0, 0, split.value, with_tasks=tasks)))
            continue
        typer.echo(result.describe())
        if tasks:
            for name, score in result.tasks.items():
                typer.echo(f"  {name}: {score['success_rate']:.0%}, similarity {score['similarity']:.3f}")
