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
from phalanx.cli.output import working
from phalanx.formatting import format_count

if TYPE_CHECKING:
    from phalanx.proofs.link_prediction import EvaluationMode
    from phalanx.proofs.vocabulary import ProofVocabulary
    from phalanx.text.splits import Split as TextSplit
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.proof_training import ProofTrainingConfig


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
    """Rank a split's queries, print what came of it, and give the mean reciprocal rank."""
    from phalanx.config import load_config
    from phalanx.proofs.link_prediction import LinkPredictionConfig, ProofLinkPrediction, evaluate_proofs
    from phalanx.training.proof_training import read_data, read_embedding

    began, run = time.perf_counter(), origin.run
    with user_errors(), working(f"ranking the {split} queries by {mode}"):
        trained = _config(run, kind)
        config = trained if dataset is None else trained.model_copy(update={"dataset": dataset})
        data, index = read_data(config)
        ranking = ProofLinkPrediction.create(
            data,
            index,
            config.proofs,
            load_config(LinkPredictionConfig, None, settings),
            read_embedding(config.kge, index),
        )
        embedding = None if mode in ("policy", "exact") else _embedding(run, kind, kge, index)
        policy = (
            _policy(origin, trained, untrained) if kind == "proofs" and mode not in ("kge", "exact") else None
        )
        if policy is not None and dataset is not None:
            _check_names(read_data(trained)[1], index, run, dataset)
        if kind == "kge" and mode == "policy":
            raise ValueError(f"{run} is an embedding and has no policy; --mode kge, hybrid, learned or exact")
        result = evaluate_proofs(mode, ranking, policy=policy, kge=embedding, split=split)
    seconds = time.perf_counter() - began
    if as_json:
        about = {"run": str(run), "dataset": data.name, "mode": mode, "untrained": untrained}
        about |= _seed_field(origin)
        record = {**about, "split": split, **result.as_record(), "seconds": round(seconds, 1)}
        typer.echo(json.dumps(record))
        return float(result.as_record()["mrr"])
    which = f"{', untrained' if untrained else ''}{_of_seed(origin)}"
    typer.echo(f"{data.name}, {split}, {mode}{which} ({seconds:.0f} s)")
    typer.echo(result.describe())
    return float(result.as_record()["mrr"])


def _check_names(known: "ProofVocabulary", index: "ProofVocabulary", run: Path, dataset: str) -> None:
    """A policy has learned of names: a knowledge base of others is refused, and the first one named."""
    for what in ("predicates", "constants"):
        there, here = (list(getattr(one, what)) for one in (known, index))
        if there != here:
            other = sorted(set(here) ^ set(there))
            which = f"{other[0]!r} is in one of them only" if other else "they come in another order"
            raise ValueError(
                f"{run} knows {len(there)} {what} and {dataset} has {len(here)}: {which}; "
                "--mode exact needs no policy"
            )


def _config(run: Path, kind: str) -> "ProofTrainingConfig":
    """What a prover was trained with; an embedding's names its knowledge base only."""
    from phalanx.training.kge_training import KGETrainingConfig
    from phalanx.training.proof_training import ProofTrainingConfig
    from phalanx.training.run_dir import read_config

    if kind == "proofs":
        return read_config(run, ProofTrainingConfig)
    return ProofTrainingConfig(dataset=read_config(run, KGETrainingConfig).dataset)


def _embedding(run: Path, kind: str, kge: Path | None, index: "ProofVocabulary") -> Any:
    folder = kge or (run if kind == "kge" else None)
    if folder is None:
        raise ValueError("this mode needs an embedding: give --kge, a run of `phalanx train kge`")
    return load_embedding(folder, index)


def load_embedding(folder: Path, index: "ProofVocabulary") -> Any:
    """The embedding of a run of `phalanx train kge`, or of its model's folder."""
    from phalanx.training.proof_training import read_embedding

    return read_embedding(folder, index)


def _policy(origin: "CheckpointRef", config: "ProofTrainingConfig", untrained: bool) -> Any:
    from phalanx.training.proof_training import load_proof_policy, untrained_policy

    if untrained:
        return untrained_policy(config)
    return load_proof_policy(origin.run, origin.which)[1]


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
            help="ARC: where --data writes its files.", show_default="RUN_DIR/handed_in/SOURCE-SPLIT"
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
    from phalanx.arc.evaluation import evaluate_arc
    from phalanx.training.arc_training import (
        baselines,
        examined,
        load_arc_policy,
        sampled,
        told_beside,
    )

    with user_errors(), working(f"loading {origin.run}{_of_seed(origin)}"):
        config, network = load_arc_policy(origin.run, origin.which, untrained=untrained)
    with user_errors(), working(f"playing the {split} tasks"):
        environment = examined(config, config.evaluation.split if split is Split.held_out else None)
        results = [evaluate_arc(environment, network)]
    if attempts:
        attempted = config.evaluation.model_copy(update={"attempts": attempts})
        with working(f"playing the {split} tasks, {attempts} sampled attempts at each"):
            results.append(sampled(environment, network, attempted, seed))
    if _seed_field(origin) and not as_json:
        typer.echo(_of_seed(origin).removeprefix(", "))
    for result in results:
        if as_json:
            own = _seed_field(origin)
            typer.echo(
                json.dumps(result.as_record(split.value, with_tasks=tasks) | baselines(environment) | own)
            )
            continue
        typer.echo(result.describe())
        if tasks:
            for name, score in result.tasks.items():
                typer.echo(f"  {name}: {score['success_rate']:.0%}, similarity {score['similarity']:.3f}")
    if not as_json:
        typer.echo("\n".join(told_beside(environment)))
    return float(results[0].as_record(split.value)["success_rate"])


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
    """Answers to a data set: printed, written as a submission, and shown in the run's report."""
    from phalanx.arc.submission import submission_env, submit, submit_random
    from phalanx.logging.report.page import write_report
    from phalanx.training.arc_training import arc_training_of
    from phalanx.training.loading import initial_policy, restore_policy

    run = origin.run
    with user_errors(), working(f"handing in answers to {data}{_of_seed(origin)}"):
        training = arc_training_of(run)
        environment, too_large = submission_env(training.config.arc, data)
        network = initial_policy(training) if untrained else restore_policy(training, run, origin.which)
        told = submit(
            environment,
            network,
            attempts=attempts,
            seed=seed,
            too_large=too_large,
        )
        guessed = submit_random(environment, seed)
        beginning = ", untrained" if untrained else ""
        # What was handed in before training does not take the place of what was handed in after it.
        named = re.sub(r"[^\w.-]+", "-", f"{data}{_of_seed(origin)}{beginning}").strip("-.")
        folder = out or run / "handed_in" / named
        title = f"{data}, {format_count(attempts, 'attempt')}{_of_seed(origin)}{beginning}"
        told.save(folder, title, attempts)
        if out is None:
            write_report([run])
    solved = sum(bool(answer.solved) for answer in told.known)
    random = sum(bool(answer.solved) for answer in guessed.known)
    if as_json:
        about = {"run": str(run), "data": data, "attempts": attempts, "untrained": untrained}
        counts = {"tasks": len(told.answers), "fitting": len(told.answers) - len(too_large), "solved": solved}
        typer.echo(json.dumps({**about, **counts, "random_solved": random, "folder": str(folder)}))
    else:
        typer.echo(title)
        typer.echo(told.describe())
        if guessed.known:
            typer.echo(f"random actions: {random} of {len(told.known)} tasks")
        typer.echo(f"written: {folder}")
    if tasks:
        for row in told.rows():
            state = {True: "right", False: "wrong", None: "secret"}[row["solved"]]
            note = state if row["fits"] else "does not fit the canvas"
            line = f"  {row['task']}: {note}, {row['outputs_right']} of {row['outputs']} outputs"
            typer.echo(json.dumps(row) if as_json else line)
