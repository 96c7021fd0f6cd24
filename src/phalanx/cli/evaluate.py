"""`phalanx eval` of a prover or an embedding: how well it ranks true triples among corruptions.

How is in `phalanx.agents.search.ranking`.
"""

import enum
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.agents.proof_training import ProofTrainingConfig
    from phalanx.agents.search.ranking import RankingMode
    from phalanx.proofs.knowledge.vocabulary import IndexManager


def evaluate_run(
    run: Path,
    kind: str,
    mode: "RankingMode",
    *,
    kge: Path | None,
    untrained: bool,
    split: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Rank a split's queries and print what came of it."""
    from phalanx.agents.proof_training import read_data
    from phalanx.agents.search.ranking import ProofRanking, RankingConfig, evaluate_proofs
    from phalanx.core.config import load_config

    began = time.perf_counter()
    with user_errors():
        config = _config(run, kind)
        data, index = read_data(config)
        ranking = ProofRanking.create(data, index, config.proofs, load_config(RankingConfig, None, settings))
        embedding = None if mode in ("rl", "exact") else _embedding(run, kind, kge, index)
        policy = (
            _policy(run, config, untrained) if kind == "proofs" and mode not in ("kge", "exact") else None
        )
        if kind == "kge" and mode == "rl":
            raise ValueError(f"{run} is an embedding and has no policy; --mode kge, hybrid, learned or exact")
        result = evaluate_proofs(mode, ranking, policy=policy, kge=embedding, split=split)
    seconds = time.perf_counter() - began
    if as_json:
        about = {"run": str(run), "dataset": data.dataset, "mode": mode, "untrained": untrained}
        record = {**about, "split": split, **result.as_record(), "seconds": round(seconds, 1)}
        typer.echo(json.dumps(record))
        return
    typer.echo(f"{data.dataset}, {split}, {mode}{', untrained' if untrained else ''} ({seconds:.0f} s)")
    typer.echo(result.describe())


def _config(run: Path, kind: str) -> "ProofTrainingConfig":
    """What a prover was trained with; an embedding's names its knowledge base only."""
    from phalanx.agents.kge_training import KGETrainingConfig
    from phalanx.agents.proof_training import ProofTrainingConfig
    from phalanx.runs.folder import read_config

    if kind == "proofs":
        return read_config(run, ProofTrainingConfig)
    return ProofTrainingConfig(dataset=read_config(run, KGETrainingConfig).dataset)


def _embedding(run: Path, kind: str, kge: Path | None, index: "IndexManager") -> Any:
    folder = kge or (run if kind == "kge" else None)
    if folder is None:
        raise ValueError("this mode needs an embedding: give --kge, a run of `phalanx train kge`")
    return load_embedding(folder, index)


def load_embedding(folder: Path, index: "IndexManager") -> Any:
    """The embedding of a run of `phalanx train kge`, or of its model's folder."""
    from phalanx.agents.kge_training import MODEL
    from phalanx.proofs.kge.files import load_kge

    return load_kge(folder / MODEL if (folder / MODEL).is_dir() else folder, index)


def _policy(run: Path, config: "ProofTrainingConfig", untrained: bool) -> Any:
    from phalanx.agents.proof_training import load_proof_policy, untrained_policy

    return untrained_policy(config) if untrained else load_proof_policy(run)[1]


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
    from phalanx.runs.folder import read_facts

    with user_errors():
        kind = read_facts(run).get("kind")
    if kind == "arc":
        _arc(run, split, attempts, tasks, seed, as_json)
    elif kind in ("proofs", "kge"):
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
    from phalanx.agents.arc_training import arc_distribution, held_out, load_arc_policy, sampled
    from phalanx.arc.environment import ArcEnvironment

    with user_errors():
        config, network = load_arc_policy(run)
    environment = held_out(config) if split is Split.held_out else ArcEnvironment.create(config.arc)
    results = [evaluate_arc(environment, arc_distribution(environment), network)]
    if attempts:
        attempted = config.evaluation.model_copy(update={"attempts": attempts})
        results.append(sampled(environment, network, attempted, seed))
    for result in results:
        if as_json:
            typer.echo(json.dumps(result.as_record(split.value, with_tasks=tasks)))
            continue
        typer.echo(result.describe())
        if tasks:
            for name, score in result.tasks.items():
                typer.echo(f"  {name}: {score['success_rate']:.0%}, similarity {score['similarity']:.3f}")
