"""Puzzles as a language model meets them: tasks, splits, demonstrations, conversations, scores, commands."""

import itertools
import json
import random
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from phalanx.arc.generators import generate_tasks
from phalanx.arc.text import OPERATION_NAMES
from phalanx.cli.app import app
from phalanx.config import load_config
from phalanx.lm import LMPolicy, SamplingConfig
from phalanx.lm.arc_demonstrations import compact_task
from phalanx.lm.arcade_scores import random_command
from phalanx.lm.episodes.puzzle_server import puzzle_server_tokenizer
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeId
from phalanx.lm.evaluation import evaluate_policy, evaluate_random_policy, mean_score
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.tasks import TextTask, puzzles_of, read_tasks, split_of
from phalanx.lm.text_policy import RandomTextPolicy
from phalanx.lm.text_rollout import rollout
from phalanx.lm.transcript import episode_record
from phalanx.puzzles.kinds import KINDS
from phalanx.puzzles.server import PuzzleClientConfig, PuzzleServerVectorEnvironment
from phalanx.puzzles.server.episodes import move_prompt
from phalanx.text.env import TextVectorEnvironment
from phalanx.training import (
    SFT,
    SFTConfig,
    load_language_model,
    open_data,
    train,
)
from tests.helpers.few_tasks import few_tasks
from tests.helpers.puzzle_server import running_server

SMALL = (
    "model.d_model=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.d_ff=16",
    "model.vocab_size=98",
    "tokenizer=characters",
    "data.max_length=96",
    "data.token_budget=384",
    "data.window_size=32",
    "data.num_eval_samples=8",
    "num_updates=2",
    "optimizer.grad_accum_steps=2",
    "optimizer.lr_schedule=linear",
    "evaluation.every=0",
    "evaluation.num_episodes=2",
)
LIGHTS = TextTask("lights_out", "easy", "multi")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen a few sudokus and pressed a few lights."""
    folder = tmp_path_factory.mktemp("lm") / "run"
    settings = (*SMALL, "env.id='sudoku,lights_out::multi'", "logging.sampling_enabled=true")
    config = load_config(SFTConfig, None, (*settings, "logging.sample_frequency=2"))
    train(SFT(config), folder)
    return folder


def test_tasks_are_named_by_kind_difficulty_and_turns() -> None:
    assert read_tasks("sudoku::multi", "hard") == (TextTask("sudoku", "hard", "multi"),)
    assert [task.kind for task in read_tasks("puzzles")] == list(KINDS)
    with pytest.raises(ValueError, match="no difficulty 'soft'"):
        read_tasks("sudoku:soft")
    with pytest.raises(ValueError, match="names a task twice"):
        read_tasks("sudoku,sudoku")


def test_a_puzzle_is_in_one_split_whatever_its_seed() -> None:
    found = {}
    for split in ("training", "valid", "held-out"):
        puzzles = itertools.islice(puzzles_of(LIGHTS, split), 60)
        found[split] = {puzzle.given for puzzle in puzzles}
    assert not found["training"] & found["held-out"]
    assert not found["training"] & found["valid"]
    assert not found["valid"] & found["held-out"]
    assert split_of("sudoku") == split_of("sudoku")


@pytest.mark.parametrize("kind", KINDS)
def test_demonstrations_solve_in_few_characters_and_keep_to_their_split(kind: str) -> None:
    prompter = PromptTokenizer("characters")
    tasks = (TextTask(kind), TextTask(kind, turns="multi"))
    samples = list(itertools.islice(generate_expert_samples(tasks, prompter, random_move_prob=0.3), 12))
    again = itertools.islice(generate_expert_samples(tasks, prompter, random_move_prob=0.3), 12)
    assert samples == list(again)
    for sample in samples[::2]:
        said = prompter.decode(sample.tokens[sample.mask == 1].tolist())
        environment = tasks[0].environment()
        prompt = environment.reset(int(sample.sample_id.split("-")[-2]))
        assert prompter.decode(sample.tokens[sample.mask == 0].tolist()) == f"{prompt}>"
        assert environment.step(said).info.solved
    assert {sample.dataset_id for sample in samples[1::2]} == {tasks[1].name}


def test_mixture_sets_the_number_of_samples_per_kind() -> None:
    tasks = read_tasks("sudoku,hitori")
    stream = generate_expert_samples(tasks, PromptTokenizer("characters"), mixture={"hitori": 2})
    kinds = [sample.dataset_id.partition(":")[0] for sample in itertools.islice(stream, 6)]
    assert kinds == ["sudoku", "hitori", "hitori"] * 2
    with pytest.raises(ValueError, match="'sudoka', which is not a kind of puzzle"):
        open_data(load_config(SFTConfig, None, ("env.id=sudoku", "data.mixture={sudoka: 2}")))
    with pytest.raises(ValueError, match="must be at least 1"):
        load_config(SFTConfig, None, ("data.mixture={hitori: 0}",))


def test_random_answers_are_learned_only_when_asked_for() -> None:
    prompter = PromptTokenizer("characters")
    stream = generate_expert_samples([LIGHTS], prompter, behavior_policy="random")
    said = {tuple(sample.tokens[sample.mask == 1].tolist()) for sample in itertools.islice(stream, 80)}
    assert len(said) == 9
    with pytest.raises(ValueError, match=r"set env\.turns=multi"):
        next(generate_expert_samples([TextTask("lights_out")], prompter, behavior_policy="random"))


def test_a_run_is_measured_by_playing_and_shows_conversations(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    played = [line for line in lines if line["mode"] == "greedy"]
    assert [line["task"] for line in played[:3]] == ["all", "sudoku:easy:single", "lights_out:easy:multi"]
    assert all(0 <= line["success_rate"] <= 1 for line in played)
    [first, *_] = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert first["task_id"] == "sudoku:easy:single"
    assert first["turns"][0]["prompt"].startswith("su\n")
    metrics = json.loads((run / "batch_metrics.jsonl").read_text().splitlines()[0])["metrics"]
    assert 0 < metrics["mfu"] < 2
    assert metrics["num_slots"] == 2 * 384


def test_policy_with_legal_actions_only_never_gives_invalid_answers(run: Path) -> None:
    config, model = load_language_model(run)
    tokenizer = PromptTokenizer(config.tokenizer)
    policy = LMPolicy(model, tokenizer, SamplingConfig(), 8, legal_actions_only=True)
    source = PuzzleSource([LIGHTS], tokenizer)
    scores = evaluate_policy(policy, source, LIGHTS.name, num_episodes=4, num_samples=2)
    assert [score.valid_action_rate for score in scores] == [1.0, 1.0]
    assert set(scores[1].pass_at_k) == {1, 2}
    assert mean_score(scores[:1]).success_rate == scores[0].success_rate
    [conversation] = rollout(policy, source.begin([EpisodeId(LIGHTS.name, 0)]), jax.random.key(0))
    picture = episode_record("lights", conversation, 3, 0)["final_state"]._repr_svg_()
    assert ">li<" in picture


def test_random_policy_gives_valid_answers_and_solves_little() -> None:
    source = PuzzleSource([TextTask("sudoku")], PromptTokenizer("characters"))
    score = evaluate_random_policy(source, "sudoku:easy:single", num_episodes=20)
    assert (score.task, score.valid_action_rate, score.policy) == ("sudoku:easy:single", 1.0, "random")
    assert score.success_rate < 0.5
    environments = [LIGHTS.environment() for _ in range(3)]
    for seed, environment in enumerate(environments):
        environment.reset(seed)
    told = rollout(RandomTextPolicy(seed=1), TextVectorEnvironment(environments))
    assert all(one.turns and environment.done for one, environment in zip(told, environments, strict=True))


def test_eval_prints_the_model_beside_an_untrained_one_and_random_moves(run: Path, tmp_path: Path) -> None:
    asked = [
        "eval",
        str(run),
        "--attempts",
        "2",
        "--set",
        "num_episodes=3",
        "--set",
        "env='lights_out::multi'",
    ]
    asked += ["--set", "max_completion_length=8"]
    told = CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(line["policy"], line["mode"]) for line in lines[:4]] == [
        ("model", "greedy"),
        ("model", "sampled"),
        ("untrained", "greedy"),
        ("random", "sampled"),
    ]
    assert {line["split"] for line in lines} == {"held-out"}
    words = CliRunner().invoke(app, [*asked, "--split", "valid"], catch_exceptions=False).stdout
    assert "random actions" in words
    assert "pass@2" in words
    out = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "hf")], catch_exceptions=False)
    assert out.exit_code == 0
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}


def test_eval_plays_the_games_of_a_live_server(run: Path) -> None:
    config, _ = load_language_model(run)
    with running_server() as server:
        address = f"127.0.0.1:{server.port}"
        asked = ["eval", str(run), "--arcade", address, "--json"]
        for setting in (
            "num_episodes=2",
            "max_steps=4",
            "max_completion_length=6",
            "games=[lights,logic,sokoban]",
        ):
            asked += ["--set", setting]
        told = CliRunner().invoke(app, asked, catch_exceptions=False)
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        batch = PuzzleServerVectorEnvironment("lights", client=client, prompt=move_prompt)
        with batch:
            [text] = batch.reset([1])
            # A command of the right form is taken, and what the tokenizer lacks does not stop a model.
            [command] = {random_command("lights", batch.games[0].observation, random.Random(0))}
            assert not batch.step([command]).infos[0].error
        read = puzzle_server_tokenizer(PromptTokenizer(config.tokenizer)).encode_prompt(text)
        assert "\n1 |?|" in PromptTokenizer(config.tokenizer).decode(read)
    assert [line["policy"] for line in lines[:3]] == ["model", "untrained", "random"]
    assert [line["task"] for line in lines[::3]] == [
        "lights:easy:arcade",
        "logic:easy:arcade",
        "sokoban:easy:arcade",
        "all",
    ]
    by_player = {(line["task"], line["policy"]): line for line in lines}
    assert by_player["lights:easy:arcade", "random"]["valid_action_rate"] == 1
    assert by_player["logic:easy:arcade", "random"]["valid_action_rate"] == 0
    assert all(line["num_episodes"] == line["num_distinct"] == 2 for line in lines[:9])


def test_grpo_begins_with_a_language_model_and_is_evaluated(run: Path, tmp_path: Path) -> None:
    asked = [
        "train",
        "grpo",
        "--init-from",
        str(run),
        "--env",
        "lights_out::multi",
        "--out",
        str(tmp_path / "g"),
    ]
    settings = [
        "num_updates=1",
        "num_prompts=2",
        "num_generations=2",
        "max_completion_length=8",
        "evaluation.num_episodes=0",
    ]
    told = CliRunner().invoke(app, [*asked, *settings, "legal_actions_only=true"], catch_exceptions=False)
    assert told.exit_code == 0
    asked = ["eval", str(tmp_path / "g"), "--attempts", "0", "--set", "num_episodes=2", "--json"]
    lines = CliRunner().invoke(app, asked, catch_exceptions=False).stdout.splitlines()
    assert json.loads(lines[0])["task"] == "lights_out:easy:multi"


def test_arc_samples_hold_the_demonstrations_but_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    few_tasks(monkeypatch)
    settings = ("env.id=arc", "data.num_eval_samples=3", "data.max_length=512", "data.window_size=64")
    source = open_data(load_config(SFTConfig, None, settings))
    assert [sample.sample_id.split("-")[1] for sample in source.eval_samples] == ["valid"] * 3
    assert source.next() is not None
    (task,) = generate_tasks(["fill_enclosed"], 1)
    text = compact_task(task, 1, task.demos[1].input)
    outputs = ["/".join("".join(map(str, row)) for row in pair.output.tolist()) for pair in task.demos]
    assert all(
        (f"={output}\n" in text) == (at != 1)
        for at, output in enumerate(outputs)
        if outputs.count(output) == 1
    )
    sample = source.eval_samples[0]
    said = PromptTokenizer("bytes").decode(sample.tokens[sample.mask == 1].tolist())
    assert said.split()[0] in OPERATION_NAMES


def test_what_there_is_not_is_told_with_what_is_near() -> None:
    with pytest.raises(ValueError, match="unknown puzzle kind 'sudoka'; did you mean 'sudoku'"):
        open_data(load_config(SFTConfig, None, ("env.id=sudoka",)))


def test_the_preset_learns_ten_kinds_that_its_model_can_read() -> None:
    config = SFTConfig.load("puzzles", ["data.num_eval_samples=15", "data.window_size=32"])
    source = open_data(config)
    assert {sample.dataset_id.partition(":")[0] for sample in source.eval_samples} == set(KINDS)
    batch = source.next()
    assert batch is not None
    assert batch.input_ids.shape == (10, 192)
