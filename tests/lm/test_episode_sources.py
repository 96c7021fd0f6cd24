"""What a language model plays: draws by curriculum and replay, environments with words, a live server."""

import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.lm import LanguageModel, LanguageModelConfig, LMPolicy
from phalanx.lm.episodes.arcade import PuzzleServerConfig, PuzzleServerSource
from phalanx.lm.episodes.environments import EnvironmentSource
from phalanx.lm.episodes.opening import local_source
from phalanx.lm.episodes.proof_demonstrations import proof_samples
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeId
from phalanx.lm.evaluation import score_episodes, score_random_actions
from phalanx.lm.tasks import PromptTokenizer, read_tasks
from phalanx.logging import read_records
from phalanx.training.curriculum import Curriculum, CurriculumConfig
from phalanx.training.lm.config import LMDataConfig
from phalanx.training.lm.sources import played_name
from tests.helpers.few_tasks import few_tasks
from tests.helpers.puzzle_server import running_server

PROMPTER = PromptTokenizer("characters")
MODEL = ("model.d_model=16", "model.num_layers=1", "model.num_heads=2", "model.d_ff=16")
ONE_UPDATE = (
    *MODEL,
    "num_updates=1",
    "max_new_tokens=6",
    "grpo.rows=4",
    "grpo.groups=2",
    "grpo.group_size=2",
)


@pytest.fixture(scope="module")
def proofs() -> EnvironmentSource:
    """Queries of a knowledge base."""
    return EnvironmentSource("proofs", PROMPTER)


def lights(**settings: object) -> Curriculum:
    source = PuzzleSource(read_tasks("lights_out::multi"), PROMPTER)
    return Curriculum(source, CurriculumConfig(**settings), seed=3)


def test_what_some_attempts_solve_comes_again_until_all_do() -> None:
    curriculum = lights(replay=0.5)
    first = curriculum.draw(0, 4)
    assert len(set(first)) == 4
    assert curriculum.known_again(first) == 0
    curriculum.remember(first, np.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool))
    second = curriculum.draw(1, 4)
    # Half of the draws, the two that were solved sometimes; the others are new.
    assert second[:2] == [first[1], first[2]]
    assert not set(second[2:]) & set(first)
    rate = curriculum.rates["lights_out:easy:multi"]
    curriculum.remember(second, np.array([[1, 1], [0, 0], [0, 0], [0, 0]], bool))
    # Only the two new ones say something of the task.
    assert curriculum.rates["lights_out:easy:multi"] == pytest.approx(0.9 * rate)
    assert curriculum.draw(2, 4)[0] == first[2]
    assert curriculum.known_again(curriculum.draw(3, 4)) == 1


def test_old_puzzles_are_forgotten_and_none_is_remembered_without_replay() -> None:
    curriculum = lights(replay=1.0, replay_size=2)
    first = curriculum.draw(0, 3)
    curriculum.remember(first, np.array([[1, 0]] * 3, bool))
    assert curriculum.draw(1, 3)[:2] == first[1:]
    plain = lights()
    plain.remember(plain.draw(0, 3), np.array([[1, 0]] * 3, bool))
    assert plain.save()["again"] == []


def test_a_curriculum_that_was_saved_draws_on_as_it_would_have() -> None:
    curriculum = lights(replay=0.5)
    curriculum.remember(curriculum.draw(0, 4), np.array([[1, 0]] * 4, bool))
    saved = json.loads(json.dumps(curriculum.save()))
    other = lights(replay=0.5)
    other.restore(saved)
    assert other.draw(1, 6) == curriculum.draw(1, 6)
    assert other.rates == curriculum.rates


def test_episodes_of_an_environment_keep_to_their_split_and_are_the_same_again(
    proofs: EnvironmentSource,
) -> None:
    asked = {}
    for split in ("training", "valid", "held-out"):
        seeds = itertools.islice(proofs.seeds("proofs", split), 6)
        episodes = [EpisodeId("proofs", seed) for seed in seeds]
        asked[split] = proofs.begin(episodes).prompts
        assert proofs.begin(episodes).prompts == asked[split]
    assert not set(asked["training"]) & {*asked["valid"], *asked["held-out"]}
    assert all("Choices:\n0: " in prompt for prompt in asked["valid"])
    # A name with a letter that the tokenizer lacks is no reason to stop.
    assert PROMPTER.text(proofs.prompter.prompt("née")) == "n?e>"
    random = score_random_actions(proofs, count=8)
    assert (random.legal_rate, random.puzzles) == (1.0, 8)


def test_proofs_are_demonstrated_by_steps_that_prove_them(proofs: EnvironmentSource) -> None:
    samples = list(itertools.islice(proof_samples(proofs.environment, PROMPTER), 150))
    assert samples == list(itertools.islice(proof_samples(proofs.environment, PROMPTER), 150))
    by_seed: dict[int, list[str]] = {}
    for sample in samples:
        said = PROMPTER.text(sample.tokens[sample.mask == 1].tolist())
        by_seed.setdefault(int(sample.sample_id.split("-")[2]), []).append(said)
    whole = [(seed, said) for seed, said in by_seed.items() if seed < 64]
    batch = proofs.begin([EpisodeId("proofs", seed) for seed, _ in whole])
    for step in range(max(len(said) for _, said in whole)):
        told = batch.step([said[step] if step < len(said) else "" for _, said in whole])
    # Queries that are true are proved, those that are false are given up, and both end well.
    assert all(info.solved for info in told.infos)
    assert {len(said) for _, said in whole} > {1}
    assert {"True", "give up"} <= {said[-1] for _, said in whole}


def test_what_is_played_is_named_and_mistakes_are_told() -> None:
    assert local_source("sudoku::multi", PROMPTER).tasks == ("sudoku:easy:multi",)
    with pytest.raises(ValueError, match="did you mean 'sudoku'"):
        local_source("sudoka", PROMPTER)
    with pytest.raises(ValueError, match="are puzzles, and have no overrides"):
        local_source("sudoku", PROMPTER, overrides=["x=1"])
    with pytest.raises(ValueError, match="'proofs' has no settings here"):
        local_source("proofs", PROMPTER, overrides=["x=1"])
    with pytest.raises(ValueError, match="address must be HOST:PORT"):
        PuzzleServerSource(PuzzleServerConfig(address="localhost"), PROMPTER)
    with pytest.raises(ValueError, match="name one or more different games"):
        PuzzleServerSource(
            PuzzleServerConfig(address="localhost:1", games=("lights", "lights:easy")), PROMPTER
        )


def test_an_environment_of_one_episode_has_no_other_split() -> None:
    overrides = ("dataset.families=[recolor]", "dataset.num_tasks=1")
    source = local_source("arc-v2", PROMPTER, overrides=overrides)
    with pytest.raises(ValueError, match="of arc-v2 are in the validation split"):
        next(source.seeds("arc-v2", "valid"))


def test_reward_is_learned_from_the_games_of_a_live_server(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with running_server() as server:
        asked = ["train", "grpo", "--arcade", f"127.0.0.1:{server.port}", "--games", "lights,binary:medium"]
        # Four attempts on three connections are two batches.
        settings = [
            "arcade.num_connections=3",
            "arcade.max_steps=2",
            "arcade.max_invalid_answers=1",
            "grpo.width=768",
        ]
        few = ["evaluation.puzzles=2", "--out", str(run)]
        done = CliRunner().invoke(app, [*asked, *ONE_UPDATE, *settings, *few], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    [line] = read_records(run / "batch_metrics.jsonl")
    assert {"solved_lights_easy", "solved_binary_medium"} <= line["metrics"].keys()
    assert line["metrics"]["episodes"] == 4
    played = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [one["task"] for one in played[:3]] == ["all", "lights:easy", "binary:medium"]
    told = CliRunner().invoke(app, ["eval", str(run)])
    assert "or a server that has them, as --arcade" in str(told.exception)


def test_reward_is_learned_from_an_environment_and_eval_plays_it(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    settings = ("grpo.width=640", "evaluation.puzzles=0", "ahead=true")
    asked = ["train", "grpo", "--env", "proofs", "--out", run, *ONE_UPDATE, *settings]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    told = CliRunner().invoke(
        app, ["eval", run, "--attempts", "0", "--set", "puzzles=3", "--json"], catch_exceptions=False
    )
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(line["task"], line["player"]) for line in lines[:3]] == [
        ("proofs", "model"),
        ("proofs", "untrained"),
        ("proofs", "random"),
    ]
    assert lines[2]["legal_rate"] == 1


def test_arc_is_played_in_the_prompts_that_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    few_tasks(monkeypatch)
    data = LMDataConfig(environment="arc")
    source = local_source(played_name(data), PROMPTER)
    model = LanguageModel(
        LanguageModelConfig(vocab_size=98, d_model=16, num_layers=1, num_heads=2, d_ff=16),
        key=jax.random.key(0),
    )
    player = LMPolicy(model, PROMPTER, max_new_tokens=2)
    [score], told = score_episodes(player, source, "arc", count=2)
    assert (score.task, score.puzzles, score.legal_rate) == ("arc", 2, 0.0)
    assert all(one.turns[0].prompt.startswith("arc\n") for one in told)
    # Random play is learned as tokens, which nobody can be asked in.
    assert played_name(data.model_copy(update={"play": "random"})) == ""
