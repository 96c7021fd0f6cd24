"""`phalanx eval`: evaluates the policy of a run.

The environment or the algorithm of the run determines how the policy is evaluated.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import show_activity

if TYPE_CHECKING:
    from phalanx.config import Config
    from phalanx.core.evaluation import EvaluationResult
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.config import RunConfig

app = typer.Typer(add_completion=False)

_SUBMISSIONS = "submissions"
"""Subfolder of the run folder for the files that evaluations write. The report shows these files."""


@app.command()
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="Run folder; RUN@best for its best checkpoint, RUN/seed_1 for one of several seeds.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings for the evaluation, such as num_sampled_attempts=8 or mode=hybrid.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Language models: environment to evaluate in, such as sudoku:hard.",
            show_default="that of the run",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the tasks, queries or episodes (split=NAME).")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed for the evaluation, if it has one (seed=N).", show_default="0"),
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Evaluate the policy before training.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for files that the evaluation writes, if any.", show_default="RUN/submissions/NAME"
        ),
    ] = None,
    per_task: Annotated[bool, typer.Option("--per-task", help="Print the result of every task.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per result.")] = False,
) -> None:
    """Evaluate the policy of a run.

    The metrics depend on the run. ARC policies: solved tasks by family, pass@k, or a submission for a dataset
    (dataset=arc-agi-1/evaluation). Proofs and embeddings: link prediction. Language models: solved episodes
    in text environments. Other policies: greedy episodes. If a run has several seeds, every seed is
    evaluated.
    """
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.trained_policy import load_algorithm_and_config

    with user_errors():
        given = CheckpointRef.parse(run)
        refs = [given.for_seed(number) for number in range(max(len(given.seeds), 1))]
        algorithm_type, config = load_algorithm_and_config(refs[0].run)
        settings_type = algorithm_type.evaluation_type(config, env)
        if settings_type is None:
            raise ValueError(f"{run} was trained with {algorithm_type.name}, which has no evaluation")
        if env is not None and "env" not in settings_type.model_fields:
            raise ValueError(f"--env: {run} can only be evaluated in its own environment")
        flags = {"split": split, "seed": seed}
        settings = _load_settings(settings_type, config, overrides or [], flags, env)
    results = [_evaluate(ref, settings, untrained, warn=ref is refs[0]) for ref in refs]
    if out is not None and not any(hasattr(result, "save") for found in results for result in found):
        raise UserError("--out: this evaluation writes no files")
    for ref, found in zip(refs, results, strict=True):
        _print(ref, found, untrained=untrained, per_task=per_task, as_json=as_json, out=out)
    if len(refs) > 1 and not as_json:
        _print_mean([found[0].as_record() for found in results if found])


def _load_settings(
    settings_type: "type[Config]",
    config: "RunConfig",
    overrides: Sequence[str],
    flags: dict[str, Any],
    env: str | None,
) -> "Config":
    """Combine the evaluation settings from several sources.

    The sources are the defaults, the run's settings for evaluations during training, command-line flags and
    overrides. Sources later in this list take precedence over earlier ones.
    """
    from phalanx.config import load_config

    # `every` is the interval between evaluations during training, but this command evaluates only once.
    known = {name: field for name, field in settings_type.model_fields.items() if name != "every"}
    if any(override.partition("=")[0].strip() == "every" for override in overrides):
        raise ValueError(f"every is a setting for training only; choose from {', '.join(known)}")
    inherited: dict[str, Any] = {}
    if env is not None:
        inherited["env"] = {"id": env}
    elif (trained := getattr(config, "trained_env", None)) is not None:
        inherited["env"] = trained.model_dump()
    if isinstance(config.evaluation, settings_type) or issubclass(settings_type, type(config.evaluation)):
        inherited |= {name: value for name, value in config.evaluation.model_dump().items() if name in known}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in known:
            raise ValueError(
                f"--{name}: the evaluation of this run has no setting {name!r}; it has {', '.join(known)}. "
                "Environments define these settings with EnvSpec.eval_command"
            )
        if value == "validation" and "'valid'" in str(known[name].annotation):
            value = "valid"  # the name of the split in knowledge graphs
        inherited[name] = value
    return load_config(settings_type, None, overrides, settings=inherited)


def _evaluate(
    ref: "CheckpointRef", settings: "Config", untrained: bool, *, warn: bool
) -> "Sequence[EvaluationResult]":
    """Evaluate a checkpoint. If `warn` is true, warn if the source files of the run have changed."""
    import jax

    from phalanx.training.code_identity import warn_of_changed_sources
    from phalanx.training.trained_policy import algorithm_for_evaluation, restore_state

    with user_errors(), show_activity(f"loading {ref.run}"):
        algorithm = algorithm_for_evaluation(ref.run)
        if warn:
            warn_of_changed_sources(ref.run, algorithm._code())
        key = jax.random.key(algorithm.config.seed)
        state = algorithm.init(key) if untrained else restore_state(algorithm, ref)
    with user_errors(), show_activity(f"evaluating {ref.run}"):
        try:
            return algorithm.evaluate(state, settings, final=True)
        finally:
            algorithm.close()


def _print(
    ref: "CheckpointRef",
    results: "Sequence[EvaluationResult]",
    *,
    untrained: bool,
    per_task: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    from phalanx.core.evaluation import PerTaskEvaluationResult, SubmittableResult
    from phalanx.logging.report.page import write_report

    fields: dict[str, Any] = {"run": str(ref.run)}
    if match := re.fullmatch(r"seed_(\d+)", ref.run.name):
        fields["seed"] = int(match[1])
    if untrained:
        fields["untrained"] = True
    notes = ([f"seed {match[1]}"] if match else []) + (["untrained"] if untrained else [])
    if notes and not as_json:
        typer.echo(", ".join(notes))
    for result in results:
        record = fields | result.as_record()
        if isinstance(result, SubmittableResult):
            # The results of the untrained policy do not replace those of the trained one.
            name = re.sub(r"[^\w.-]+", "-", "-".join([result.name, *notes])).strip("-.")
            folder = out or ref.run / _SUBMISSIONS / name
            with user_errors():
                result.save(folder, ", ".join([result.name, *notes]) if notes else None)
                if out is None:
                    write_report([ref.run])
            record["folder"] = str(folder)
        typer.echo(json.dumps(record) if as_json else "\n".join(result.describe()))
        if per_task:
            if not isinstance(result, PerTaskEvaluationResult):
                raise UserError("--per-task: this evaluation has no results of single tasks")
            for task in result.task_records():
                typer.echo(json.dumps(task) if as_json else f"  {_format_task(**task)}")
        if "folder" in record and not as_json:
            typer.echo(f"Files: {record['folder']}")


def _format_task(task: object, **values: Any) -> str:
    texts = (
        f"{k} {value:.3g}" if isinstance(value, float) else f"{k} {value}" for k, value in values.items()
    )
    return f"{task}: {', '.join(texts)}"


def _print_mean(records: Sequence[dict[str, Any]]) -> None:
    """Print the interquartile mean of the main metric over the seeds, with a confidence interval."""
    from phalanx.statistics import describe_seeds

    metric = next((name for name in ("success_rate", "mrr", "episode_return") if name in records[0]), None)
    if metric is None or any(record[metric] is None for record in records):
        return
    typer.echo(f"{metric}, {describe_seeds([record[metric] for record in records], '.3f')}")
