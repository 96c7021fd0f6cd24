"""`phalanx eval` for language models: success rates in text environments, compared with baselines."""

import json
from typing import TYPE_CHECKING

import typer

from phalanx.cli.errors import user_errors
from phalanx.cli.output import working

if TYPE_CHECKING:
    from phalanx.lm.evaluation import TaskScore
    from phalanx.lm.tasks import Split
    from phalanx.training.warm_start import CheckpointRef


def evaluate_language_model(
    ref: "CheckpointRef",
    split: "Split",
    num_samples: int,
    untrained: bool,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Evaluate a model, an untrained model and random legal actions on each task of an environment."""
    from phalanx.config import load_config
    from phalanx.lm.episodes.opening import TextEnvConfig
    from phalanx.lm.evaluation import TextEvalConfig, evaluate_policy, evaluate_random_policy
    from phalanx.lm.text_policy import LMPolicy
    from phalanx.training.trained_lm import load_trained_lm

    with user_errors(), working(f"loading {ref.run}"):
        config = load_config(TextEvalConfig, None, settings)
        trained = load_trained_lm(ref.run, ref.which)
        env = TextEnvConfig(id=config.env) if config.env else trained.env
        if env is None or env.is_puzzle_server:
            raise ValueError(
                f"{ref.run} was not trained on a local text environment; set one, such as --set env=sudoku, "
                "or use a puzzle server, such as --arcade localhost:8023"
            )
        source = env.open(trained.tokenizer, trained.prompt_format)
    rows: list[list[TaskScore]] = []
    message = f"running {config.num_episodes} episodes of each of {len(source.tasks)} tasks"
    with user_errors(), working(message):
        models = {} if untrained else {"model": trained.model}
        models["untrained"] = trained.untrained(seed).model
        for task in source.tasks:
            row: list[TaskScore] = []
            for name, model in models.items():
                policy = LMPolicy(
                    model,
                    trained.tokenizer,
                    config.sampling,
                    config.max_completion_length,
                    config.legal_actions_only,
                )
                row += evaluate_policy(
                    policy,
                    source,
                    task,
                    split=split,
                    num_episodes=config.num_episodes,
                    num_samples=num_samples if name == "model" or untrained else 0,
                    seed=seed,
                    name=name,
                )
            random = evaluate_random_policy(
                source, task, split=split, num_episodes=config.num_episodes, seed=seed
            )
            rows.append([*row, random])
    title = (
        f"{config.num_episodes} {split} episodes of each task, greedy; sampled at temperature "
        f"{config.sampling.temperature}"
    )
    _print(ref, rows, split, title, as_json)


def evaluate_on_server(
    ref: "CheckpointRef",
    address: str,
    untrained: bool,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Evaluate a model, an untrained model and random commands on the games of a puzzle server."""
    from phalanx.config import load_config
    from phalanx.lm.arcade_scores import ArcadeEvaluationConfig, score_arcade, score_random_commands
    from phalanx.lm.text_policy import LMPolicy
    from phalanx.puzzles.server.client import PuzzleClientConfig
    from phalanx.training.trained_lm import load_trained_lm

    with user_errors(), working(f"loading {ref.run}"):
        config = load_config(ArcadeEvaluationConfig, None, settings)
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"the address must be HOST:PORT, such as localhost:8023, got {address!r}")
        client = PuzzleClientConfig(host=host, port=int(port))
        trained = load_trained_lm(ref.run, ref.which)
    rows: list[list[TaskScore]] = []
    models = {} if untrained else {"model": trained.model}
    models["untrained"] = trained.untrained(seed).model
    message = f"running {config.num_episodes} episodes of {len(config.names())} games"
    with user_errors(), working(message):
        for game in config.names():
            row = [
                score_arcade(LMPolicy(model, trained.tokenizer), game, client, config, name)
                for name, model in models.items()
            ]
            rows.append([*row, score_random_commands(game, client, config, seed)])
    title = f"{config.num_episodes} {config.difficulty} episodes of each game of {address}, greedy"
    _print(ref, rows, "arcade", title, as_json)


def _print(
    ref: "CheckpointRef", rows: list[list["TaskScore"]], split: str, title: str, as_json: bool
) -> None:
    from phalanx.lm.evaluation import mean_score

    rows = [*rows, [mean_score(scores) for scores in zip(*rows, strict=True)]]
    if as_json:
        for row in rows:
            for score in row:
                typer.echo(json.dumps({"run": str(ref.run)} | score.as_record(split)))
        return
    typer.echo(title)
    width = max(len(row[0].task) for row in rows)
    for row in rows:
        typer.echo(f"{row[0].task:{width}}  " + "; ".join(map(_format, row)))


def _format(score: "TaskScore") -> str:
    if score.policy == "random":
        valid = "" if score.valid_action_rate == 1 else f" ({score.valid_action_rate:.0%} valid)"
        return f"random actions{valid} {score.success_rate:.0%}"
    if score.pass_at_k:
        return "sampled " + ", ".join(f"pass@{k} {rate:.0%}" for k, rate in score.pass_at_k.items())
    solved = f"{score.policy} solved {score.success_rate:.0%}"
    if score.policy == "untrained":
        return solved
    turns = "" if score.mean_turns is None else f", {score.mean_turns:.1f} turns when solved"
    return f"{solved}, {score.valid_action_rate:.0%} valid actions{turns}, {score.num_distinct} distinct"
