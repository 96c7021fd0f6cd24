"""`phalanx eval` of language models: puzzles that they never learned from, played by their own answers.

What is measured is in `phalanx.lm.evaluation`.
"""

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
    origin: "CheckpointRef",
    split: "Split",
    attempts: int,
    untrained: bool,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Play puzzles of each kind; beside the model stand one that learned nothing and random legal moves."""
    from phalanx.config import load_config
    from phalanx.lm.episodes.environments import EnvironmentSource
    from phalanx.lm.episodes.opening import local_source
    from phalanx.lm.evaluation import (
        PuzzleEvaluationConfig,
        score_episodes,
        score_random,
        score_random_actions,
    )
    from phalanx.lm.playing import LMPolicy
    from phalanx.lm.tasks import TextTask
    from phalanx.training.lm.trained import load_trained

    with user_errors(), working(f"loading {origin.run}"):
        config = load_config(PuzzleEvaluationConfig, None, settings)
        trained = load_trained(origin.run, origin.which)
        named, overrides = (config.tasks, ()) if config.tasks else (trained.played, trained.overrides)
        if not named:
            raise ValueError(
                f"{origin.run} did not learn puzzles that are made here: name some, as --set tasks=sudoku, "
                "or a server that has them, as --arcade localhost:8023"
            )
        source = local_source(named, trained.prompter, compact=trained.compact, overrides=overrides)
    rows: list[list[TaskScore]] = []
    with user_errors(), working(f"playing {config.puzzles} puzzles of each of {len(source.tasks)} tasks"):
        beginner = trained.untrained(seed)
        players = {} if untrained else {"model": trained}
        for task in source.tasks:
            row = []
            for name, each in (players | {"untrained": beginner}).items():
                player = LMPolicy(
                    each.model, each.prompter, config.sampling, config.max_new_tokens, config.legal_only
                )
                tried = attempts if name == "model" or untrained else 0
                row += score_episodes(
                    player,
                    source,
                    task,
                    attempts=tried,
                    seed=seed,
                    name=name,
                    split=split,
                    count=config.puzzles,
                )[0]
            if isinstance(source, EnvironmentSource):
                guessed = score_random_actions(source, seed=seed, split=split, count=config.puzzles)
            else:
                known = TextTask(*task.split(":"))
                guessed = score_random(known, seed=seed, split=split, count=config.puzzles)
            rows.append([*row, guessed])
    title = f"{config.puzzles} {split} puzzles of each task, greedy; sampled at {config.sampling.temperature}"
    _tell(origin, rows, split, title, as_json)


def evaluate_on_server(
    origin: "CheckpointRef",
    address: str,
    untrained: bool,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Play games of a live server; beside the model stand one that learned nothing and random commands."""
    from phalanx.config import load_config
    from phalanx.lm.arcade_scores import ArcadeEvaluationConfig, score_arcade, score_random_commands
    from phalanx.lm.playing import LMPolicy
    from phalanx.puzzles.server.client import PuzzleClientConfig
    from phalanx.training.lm.trained import load_trained

    with user_errors(), working(f"loading {origin.run}"):
        config = load_config(ArcadeEvaluationConfig, None, settings)
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{address!r} is no HOST:PORT, as localhost:8023")
        client = PuzzleClientConfig(host=host, port=int(port))
        trained = load_trained(origin.run, origin.which)
    rows: list[list[TaskScore]] = []
    players = {} if untrained else {"model": trained}
    with user_errors(), working(f"playing {config.puzzles} puzzles of {len(config.names())} games"):
        for game in config.names():
            rows.append(
                [
                    score_arcade(LMPolicy(each.model, each.prompter), game, client, config, name)
                    for name, each in (players | {"untrained": trained.untrained(seed)}).items()
                ]
            )
            rows[-1].append(score_random_commands(game, client, config, seed))
    title = f"{config.puzzles} {config.difficulty} puzzles of each game of {address}, greedy"
    _tell(origin, rows, "arcade", title, as_json)


def _tell(
    origin: "CheckpointRef", rows: list[list["TaskScore"]], split: str, title: str, as_json: bool
) -> None:
    from phalanx.lm.evaluation import mean_score

    rows = [*rows, [mean_score(scores) for scores in zip(*rows, strict=True)]]
    if as_json:
        for row in rows:
            for score in row:
                typer.echo(json.dumps({"run": str(origin.run)} | score.as_record(split)))
        return
    typer.echo(title)
    width = max(len(row[0].task) for row in rows)
    for row in rows:
        typer.echo(f"{row[0].task:{width}}  " + "; ".join(_told(score) for score in row))


def _told(score: "TaskScore") -> str:
    if score.player == "random":
        what = "legal moves" if score.legal_rate == 1 else f"moves ({score.legal_rate:.0%} legal)"
        return f"random {what} {score.solved_rate:.0%}"
    said = f"{score.player} solved {score.solved_rate:.0%}"
    if score.pass_at_k:
        return "sampled " + ", ".join(f"pass@{k} {share:.0%}" for k, share in score.pass_at_k.items())
    if score.player == "untrained":
        return said
    moves = "" if score.moves is None else f", {score.moves:.1f} answers when solved"
    return f"{said}, {score.legal_rate:.0%} of the answers legal{moves}, {score.different} different"
