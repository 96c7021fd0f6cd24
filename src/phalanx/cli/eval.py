"""`phalanx eval`: how many tasks a policy solves, or how well it ranks true triples among corruptions.

How is in `phalanx.proofs.link_prediction`.
"""

import enum
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import show_activity
from phalanx.formatting import format_count

if TYPE_CHECKING:
    from phalanx.proofs.link_prediction import EvaluationMode, LinkPredictionConfig
    from phalanx.text.splits import Split as TextSplit
    from phalanx.training.checkpoints import CheckpointRef


def evaluate_run(
    origin: "CheckpointRef",
    kind: str,
    mode: "EvaluationMode",
    *,
    kge: Path | None,
    untrained: bool,
    split: str,
    settings: tuple[str, ...],
    as_json: bool,
    dataset: str | None = None,
) -> float:
    """Evaluate link prediction on a split, print the result and return the mean reciprocal rank."""
    from phalanx.config import load_config
    from phalanx.proofs.link_prediction import LinkPredictionConfig

    began, run = time.perf_counter(), origin.run
    given = {"mode": mode, "kge": None if kge is None else str(kge), "split": split, "dataset": dataset}
    with user_errors(), show_activity(f"ranking the {split} queries by {mode}"):
        config = load_config(LinkPredictionConfig, None, settings, settings=given)
        name, result = (_evaluate_proofs if kind == "proofs" else _evaluate_kge)(origin, config, untrained)
    seconds = time.perf_counter() - began
    if as_json:
        about = {"run": str(run), "dataset": name, "untrained": untrained, **_seed_field(origin)}
        typer.echo(json.dumps({**about, **result.as_record(), "seconds": round(seconds, 1)}))
        return float(result.total.mrr)
    which = f"{', untrained' if untrained else ''}{_of_seed(origin)}"
    typer.echo(f"{name}, {split}, {mode}{which} ({seconds:.0f} s)")
    typer.echo("\n".join(result.describe()))
    return float(result.total.mrr)


def _evaluate_proofs(
    origin: "CheckpointRef", config: "LinkPredictionConfig", untrained: bool
) -> tuple[str, Any]:
    import jax

    from phalanx.training.distributed import DeviceMesh
    from phalanx.training.loading import initial_policy, restore_policy
    from phalanx.training.proof_training import ProofTraining, ProofTrainingConfig
    from phalanx.training.run_dir import read_config

    training = ProofTraining(read_config(origin.run, ProofTrainingConfig), mesh=DeviceMesh(jax.devices()[:1]))
    policy = initial_policy(training) if untrained else restore_policy(training, origin.run, origin.which)
    (result,) = training.environment.evaluate(policy, config, final=True)
    return Path(config.dataset or training.environment.metadata()["dataset"]).name, result


def _evaluate_kge(
    origin: "CheckpointRef", config: "LinkPredictionConfig", untrained: bool
) -> tuple[str, Any]:
    from phalanx.kg.kge import load_kge
    from phalanx.proofs.config import ProofConfig
    from phalanx.proofs.env import load_knowledge_base
    from phalanx.proofs.link_prediction import evaluate_with_config
    from phalanx.proofs.vocabulary import ProofVocabulary
    from phalanx.training.kge import KGEConfig
    from phalanx.training.run_dir import read_config

    environment = ProofConfig(dataset=read_config(origin.run, KGEConfig).dataset)
    base = load_knowledge_base(environment)
    vocabulary = ProofVocabulary(base, environment.max_goals)
    kge = load_kge(origin.run, vocabulary.kg)
    result = evaluate_with_config(config, environment, base, vocabulary, kge=kge)
    return Path(config.dataset or base.name).name, result


app = typer.Typer(add_completion=False)


class Split(enum.StrEnum):
    """Tasks or queries to measure on."""

    held_out = "held-out"
    valid = "valid"
    training = "training"


_TEXT_SPLITS: "dict[Split, TextSplit]" = {
    Split.held_out: "test",
    Split.valid: "validation",
    Split.training: "train",
}


class Mode(enum.StrEnum):
    """What a true triple is ranked by."""

    policy = "policy"
    kge = "kge"
    hybrid = "hybrid"
    learned = "learned"
    exact = "exact"


@app.command()
def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN[@STEP]", help="A training run; RUN@best for its best, RUN/seed_1 for one seed."
        ),
    ],
    split: Annotated[Split, typer.Option(help="Tasks it never saw, or those it was trained on.")] = (
        Split.held_out
    ),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE[/SPLIT]",
            help="ARC: hand in answers to another data set, as arc-agi-1/evaluation, or to a file. Proofs "
            "and kge: the folder of another knowledge base of the same names.",
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sampled attempts at each task beside the greedy one; with --data, attempts in all.",
            show_default="8, with --data 2",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="ARC: where --data writes its files.", show_default="RUN_DIR/submissions/SOURCE-SPLIT"
        ),
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="ARC: tell every task, too.")] = False,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="Proofs: rank by the policy's search, an embedding, or both.", show_default="policy"
        ),
    ] = None,
    kge: Annotated[
        Path | None, typer.Option(help="Proofs: the run of `phalanx train kge` for kge, hybrid and learned.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="The policy as it was before training.")
    ] = False,
    arcade: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Language models: play the games of a live puzzle server."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Ranking settings, as beam.beam_width=32; of puzzles, as puzzles=50.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampled attempts, or of the corruptions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each evaluation.")] = False,
) -> None:
    """ARC: which tasks are handed in right, by family, with pass@k. Proofs: MRR and hits.

    Language models: how many puzzles they solve by their own answers, by kind and difficulty, with pass@k.
    """
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.run_dir import read_metadata

    with user_errors():
        given = CheckpointRef.parse(str(run))
        kind = read_metadata(given.run).get("algorithm")
    origins = _each_seed(given)
    if arcade is not None and kind not in ("sft", "grpo"):
        raise UserError(f"--arcade is for language models; {run} is a run of kind {kind!r}")
    if data is None and out is not None:
        raise UserError("--out says where the files of --data go; give --data, too")
    if kind in ("arc", "bc") and data is not None:
        for origin in origins:
            _hand_in(origin, data, 2 if attempts is None else attempts, out, untrained, tasks, seed, as_json)
    elif kind in ("arc", "bc"):
        tried = 8 if attempts is None else attempts
        scores = [_arc(origin, split, tried, untrained, tasks, seed, as_json) for origin in origins]
        if len(scores) > 1 and not as_json:
            typer.echo(_over_seeds(scores, "Greedy success", ".1%"))
    elif kind in ("proofs", "kge"):
        chosen = (Mode.policy if kind == "proofs" else Mode.kge) if mode is None else mode
        if out is not None:
            raise UserError("--out is for ARC, where answers are handed in")
        ranked = [
            evaluate_run(
                origin,
                kind,
                chosen.value,
                kge=kge,
                untrained=untrained,
                split={Split.held_out: "test", Split.valid: "valid", Split.training: "train"}[split],
                settings=(*(settings or ()), f"seed={seed}"),
                as_json=as_json,
                dataset=data,
            )
            for origin in origins
        ]
        if len(ranked) > 1 and not as_json:
            typer.echo(_over_seeds(ranked, "MRR", ".3f"))
    elif data is not None:
        raise UserError(f"--data is for ARC, proofs and kge; {run} is a run of kind {kind!r}")
    elif kind in ("sft", "grpo") and arcade is not None:
        from phalanx.cli.evaluate_puzzles import evaluate_on_server

        evaluate_on_server(given, arcade, untrained, tuple(settings or ()), seed, as_json)
    elif kind in ("sft", "grpo"):
        from phalanx.cli.evaluate_puzzles import evaluate_language_model

        tried = 8 if attempts is None else attempts
        evaluate_language_model(
            given, _TEXT_SPLITS[split], tried, untrained, tuple(settings or ()), seed, as_json
        )
    else:
        raise UserError(f"{run} is a run of kind {kind!r}, which this command cannot evaluate")


def _each_seed(origin: "CheckpointRef") -> list["CheckpointRef"]:
    """A run of several seeds is evaluated seed by seed, unless one was named."""
    return [origin.for_seed(number) for number in range(max(len(origin.seeds), 1))]


def _seed_field(origin: "CheckpointRef") -> dict[str, int]:
    """The number of the seed, if the run is one of several seeds."""
    match = re.fullmatch(r"seed_(\d+)", origin.run.name)
    return {"seed": int(match[1])} if match else {}


def _of_seed(origin: "CheckpointRef") -> str:
    return "".join(f", seed {number}" for number in _seed_field(origin).values())


def _over_seeds(scores: list[float], what: str, form: str) -> str:
    import numpy as np

    from phalanx.statistics import bootstrap_interval, interquartile_mean

    found = np.array(scores)
    low, high = bootstrap_interval(found)
    return (
        f"{what}, interquartile mean of {len(scores)} seeds: {interquartile_mean(found):{form}}, "
        f"95 % bootstrap interval {low:{form}} to {high:{form}}"
    )


def _arc(
    origin: "CheckpointRef",
    split: Split,
    attempts: int,
    untrained: bool,
    tasks: bool,
    seed: int,
    as_json: bool,
) -> float:
    if split is Split.valid:
        raise UserError("ARC tasks are held-out or training; there is no split 'valid' of them")
    from phalanx.arc.evaluation import ArcEvalConfig

    with user_errors(), show_activity(f"loading {origin.run}{_of_seed(origin)}"):
        training, network = _load_arc(origin, untrained)
    config = training.config
    evaluated = config.evaluation.split if split is Split.held_out else config.arc.dataset.split
    with user_errors(), show_activity(f"evaluating on the {split} tasks"):
        chosen = config.evaluation.model_dump() | {"split": evaluated, "num_samples": attempts, "seed": seed}
        results = training.environment.evaluate(network, ArcEvalConfig(**chosen), True)
    if _seed_field(origin) and not as_json:
        typer.echo(_of_seed(origin).removeprefix(", "))
    for result in results:
        if as_json:
            details = {"tasks": result.tasks} if tasks else {}
            typer.echo(json.dumps(result.as_record() | details | _seed_field(origin)))
            continue
        typer.echo("\n".join(result.describe()))
        if tasks:
            for name, score in result.tasks.items():
                typer.echo(f"  {name}: {score['success_rate']:.0%}, similarity {score['similarity']:.3f}")
    return float(results[0].as_record()["success_rate"])


def _load_arc(origin: "CheckpointRef", untrained: bool) -> tuple[Any, Any]:
    """Load the algorithm and the network of a run on ARC."""
    from phalanx.training.arc_training import arc_training_of
    from phalanx.training.loading import initial_policy, restore_policy

    training = arc_training_of(origin.run)
    if untrained:
        return training, initial_policy(training)
    return training, restore_policy(training, origin.run, origin.which)


def _hand_in(
    origin: "CheckpointRef",
    data: str,
    attempts: int,
    out: Path | None,
    untrained: bool,
    tasks: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Submit answers to a dataset, save them as files, and show them in the run's report."""
    from phalanx.arc.evaluation import ArcEvalConfig
    from phalanx.logging.report.page import write_report

    run = origin.run
    with user_errors(), show_activity(f"submitting answers to {data}{_of_seed(origin)}"):
        training, network = _load_arc(origin, untrained)
        settings = ArcEvalConfig(dataset=data, attempts=attempts, seed=seed)
        (result,) = training.environment.evaluate(network, settings, True)
        # The answers of an untrained policy do not replace those of the trained one.
        note = f"{_of_seed(origin)}{', untrained' if untrained else ''}"
        named = re.sub(r"[^\w.-]+", "-", f"{data}{note}").strip("-.")
        folder = out or run / "submissions" / named
        title = f"{data}, {format_count(attempts, 'attempt')}{note}"
        result.save(folder, title)
        if out is None:
            write_report([run])
    if as_json:
        about = {"run": str(run), "untrained": untrained, "folder": str(folder)}
        typer.echo(json.dumps(result.as_record() | about))
    else:
        typer.echo("\n".join([title, *result.describe(), f"written: {folder}"]))
    if tasks:
        for row in result.task_records():
            state = {True: "correct", False: "wrong", None: "secret"}[row["solved"]]
            note = state if row["fits_canvas"] else "does not fit the canvas"
            line = f"  {row['task']}: {note}, {row['num_correct']} of {row['num_outputs']} outputs"
            typer.echo(json.dumps(row) if as_json else line)
