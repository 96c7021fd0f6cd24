"""`phalanx eval` for language models: success rates in text environments, compared with baselines."""

import itertools
import json
from typing import TYPE_CHECKING

import typer
from pydantic import Field

from phalanx.cli.errors import user_errors
from phalanx.cli.output import show_activity

if TYPE_CHECKING:
    from phalanx.lm.evaluation import TaskScore, TextEvalConfig
    from phalanx.text.env import TextVectorEnvironment
    from phalanx.text.splits import Split
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.trained_lm import TrainedLM


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
    from phalanx.lm.evaluation import TextEvalConfig
    from phalanx.training.text_env import TrainingEnvConfig
    from phalanx.training.trained_lm import load_trained_lm

    with user_errors(), show_activity(f"loading {ref.run}"):
        config = load_config(TextEvalConfig, None, settings)
        trained = load_trained_lm(ref.run, ref.which)
        env_config = TrainingEnvConfig(id=config.env) if config.env else trained.env
        if env_config is None or env_config.is_puzzle_server:
            raise ValueError(
                f"{ref.run} was not trained on a local text environment; set one, such as --set env=sudoku, "
                "or use a puzzle server, such as --arcade localhost:8023"
            )
        env = env_config.make(trained.prompt_format)
    title = (
        f"{config.num_episodes} {split} episodes of each task, greedy; sampled at temperature "
        f"{config.sampling.temperature}"
    )
    with user_errors():
        scores = _evaluate(trained, env, config, split, num_samples, untrained, seed)
    _print(ref, scores, split, title, as_json)


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
    from phalanx.lm.evaluation import TextEvalConfig
    from phalanx.puzzles.server.env import PuzzleServerConfig
    from phalanx.puzzles.server.protocol import PuzzleGame
    from phalanx.training.trained_lm import load_trained_lm

    class PuzzleServerEvalConfig(TextEvalConfig):
        num_episodes: int = Field(default=8, ge=1)
        max_completion_length: int = Field(default=24, ge=1)
        games: tuple[str, ...] = tuple(game.value for game in PuzzleGame)
        difficulty: str = "easy"
        max_steps: int = Field(default=99, ge=1)
        max_invalid_answers: int = Field(default=3, ge=1)

    with user_errors(), show_activity(f"loading {ref.run}"):
        config = load_config(PuzzleServerEvalConfig, None, settings)
        env = PuzzleServerConfig(
            address=address,
            games=config.games,
            difficulty=config.difficulty,
            num_connections=config.num_episodes,
            max_steps=config.max_steps,
            max_invalid_answers=config.max_invalid_answers,
        ).make()
        trained = load_trained_lm(ref.run, ref.which)
    title = f"{config.num_episodes} {config.difficulty} episodes of each game of {address}, greedy"
    with user_errors(), env:
        scores = _evaluate(trained, env, config, "test", 0, untrained, seed)
    _print(ref, scores, "test", title, as_json)


def _evaluate(
    trained: "TrainedLM",
    env: "TextVectorEnvironment",
    config: "TextEvalConfig",
    split: "Split",
    num_samples: int,
    untrained: bool,
    seed: int,
) -> list["TaskScore"]:
    from phalanx.lm.evaluation import evaluate_policy
    from phalanx.lm.text_policy import LMPolicy, RandomTextPolicy, TextPolicy

    models = {} if untrained else {"model": trained.model}
    models["untrained"] = trained.untrained(seed).model
    policies: dict[str, TextPolicy] = {
        name: LMPolicy(
            model,
            trained.tokenizer,
            config.sampling,
            config.max_completion_length,
            config.legal_actions_only,
        )
        for name, model in models.items()
    }
    policies["random"] = RandomTextPolicy(seed)
    with show_activity(f"running {config.num_episodes} episodes of each of {len(env.tasks)} tasks"):
        return evaluate_policy(
            policies,
            env,
            split=split,
            num_episodes=config.num_episodes,
            num_samples=num_samples,
            seed=seed,
        )


def _print(ref: "CheckpointRef", scores: list["TaskScore"], split: str, title: str, as_json: bool) -> None:
    from phalanx.lm.evaluation import mean_score

    rows = [list(row) for _, row in itertools.groupby(scores, key=lambda score: score.task)]
    rows.append([mean_score(column) for column in zip(*rows, strict=True)])
    if as_json:
        for score in itertools.chain.from_iterable(rows):
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
