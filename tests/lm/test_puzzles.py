"""Puzzles as a language model meets them: tasks, splits, demonstrations, conversations, scores, commands."""

import itertools
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.arc.generators import generate_tasks
from phalanx.arc.text import OPERATION_NAMES, compact_task
from phalanx.cli.app import app
from phalanx.config import load_config
from phalanx.lm import LMPolicy, SamplingConfig
from phalanx.lm.evaluation import mean_score, score_puzzles, score_random
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.lm.playing import episode_record, play_at_random
from phalanx.lm.tasks import (
    PromptTokenizer,
    PuzzleServerPromptTokenizer,
    TextTask,
    puzzles_of,
    read_shares,
    read_tasks,
    split_of,
)
from phalanx.puzzles import PuzzleVectorEnvironment
from phalanx.puzzles.kinds import KINDS
from phalanx.puzzles.server import PuzzleClientConfig, PuzzleServerVectorEnvironment
from phalanx.puzzles.server.episodes import move_prompt
from phalanx.training import (
    LMTraining,
    LMTrainingConfig,
    load_language_model,
    load_lm_training,
    open_source,
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
    "data.tokenizer=characters",
    "data.max_length=96",
    "data.token_budget=384",
    "data.window_size=32",
    "data.held_out=8",
    "optimizer.num_updates=2",
    "optimizer.accumulate=2",
    "optimizer.fall=linear",
    "evaluation.every=0",
    "evaluation.puzzles=2",
)
LIGHTS = TextTask("lights_out", "easy", "multi")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen a few sudokus and pressed a few lights."""
    folder = tmp_path_factory.mktemp("lm") / "run"
    settings = (*SMALL, "data.environment='sudoku,lights_out::multi'", "logging.sampling_enabled=true")
    config = load_config(LMTrainingConfig, None, (*settings, "logging.sample_frequency=2"))
    train(LMTraining(config), folder)
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
    samples = list(itertools.islice(generate_expert_samples(tasks, prompter, wander=0.3), 12))
    again = itertools.islice(generate_expert_samples(tasks, prompter, wander=0.3), 12)
    assert samples == list(again)
    for sample in samples[::2]:
        said = prompter.text(sample.tokens[sample.mask == 1].tolist())
        environment = tasks[0].environment()
        prompt = environment.reset(int(sample.sample_id.split("-")[-2]))
        assert prompter.text(sample.tokens[sample.mask == 0].tolist()) == f"{prompt}>"
        assert environment.step(said).info.solved
    assert {sample.dataset_id for sample in samples[1::2]} == {tasks[1].name}


def test_kinds_have_the_shares_that_are_asked_for() -> None:
    tasks = read_tasks("sudoku,hitori")
    stream = generate_expert_samples(
        tasks, PromptTokenizer("characters"), shares=read_shares("hitori=2", tasks)
    )
    kinds = [sample.dataset_id.partition(":")[0] for sample in itertools.islice(stream, 6)]
    assert kinds == ["sudoku", "hitori", "hitori"] * 2
    with pytest.raises(ValueError, match="'binary', which is not learned"):
        read_shares("binary=2", tasks)
    for odd in ("hitori", "hitori=0", "hitori=x"):
        with pytest.raises(ValueError, match="a share reads KIND=COUNT"):
            read_shares(odd, tasks)


def test_random_answers_are_learned_only_when_asked_for() -> None:
    prompter = PromptTokenizer("characters")
    stream = generate_expert_samples([LIGHTS], prompter, demonstrated=False)
    said = {tuple(sample.tokens[sample.mask == 1].tolist()) for sample in itertools.islice(stream, 80)}
    assert len(said) == 9
    with pytest.raises(ValueError, match=r"set data\.turns=multi"):
        next(generate_expert_samples([TextTask("lights_out")], prompter, demonstrated=False))


def test_a_run_is_measured_by_playing_and_shows_conversations(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    played = [line for line in lines if line["mode"] == "greedy"]
    assert [line["task"] for line in played[:3]] == ["all", "sudoku:easy:single", "lights_out:easy:multi"]
    assert all(0 <= line["solved_rate"] <= 1 for line in played)
    [first, *_] = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert first["task_id"] == "sudoku:easy:single"
    assert first["turns"][0]["prompt"].startswith("su\n")
    metrics = json.loads((run / "batch_metrics.jsonl").read_text().splitlines()[0])["metrics"]
    assert 0 < metrics["peak_share"] < 2
    assert metrics["padded_tokens"] == 2 * 384


def test_a_player_that_keeps_to_legal_moves_is_never_refused(run: Path) -> None:
    config, model = load_language_model(run)
    player = LMPolicy(model, PromptTokenizer(config.data.tokenizer), SamplingConfig(), 8, legal_only=True)
    scores, told = score_puzzles(player, LIGHTS, count=4, attempts=2)
    assert [score.legal_rate for score in scores] == [1.0, 1.0]
    assert set(scores[1].pass_at_k) == {1, 2}
    assert mean_score(scores[:1]).solved_rate == scores[0].solved_rate
    picture = episode_record("lights", told[0], 3, 0)["final_state"]._repr_svg_()
    assert ">li<" in picture


def test_random_legal_moves_are_moves_and_solve_little() -> None:
    score = score_random(TextTask("sudoku"), count=20)
    assert (score.legal_rate, score.player) == (1.0, "random")
    assert score.solved_rate < 0.5
    batch = PuzzleVectorEnvironment(LIGHTS.name, prompt_format="compact")
    batch.reset(range(3))
    told = play_at_random(batch, seed=1)
    pairs = zip(told, batch.environments, strict=True)
    assert all(one.turns and environment.done for one, environment in pairs)


def test_eval_prints_the_model_beside_an_untrained_one_and_random_moves(run: Path, tmp_path: Path) -> None:
    asked = ["eval", str(run), "--attempts", "2", "--set", "puzzles=3", "--set", "tasks='lights_out::multi'"]
    asked += ["--set", "max_new_tokens=8"]
    told = CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(line["player"], line["mode"]) for line in lines[:4]] == [
        ("model", "greedy"),
        ("model", "sampled"),
        ("untrained", "greedy"),
        ("random", "sampled"),
    ]
    assert {line["split"] for line in lines} == {"held-out"}
    words = CliRunner().invoke(app, [*asked, "--split", "valid"], catch_exceptions=False).stdout
    assert "random legal moves" in words
    assert "pass@2" in words
    out = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "hf")], catch_exceptions=False)
    assert out.exit_code == 0
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}


def test_eval_plays_the_games_of_a_live_server(run: Path) -> None:
    config, _ = load_language_model(run)
    with running_server() as server:
        address = f"127.0.0.1:{server.port}"
        asked = ["eval", str(run), "--arcade", address, "--json"]
        for setting in ("puzzles=2", "max_steps=4", "max_new_tokens=6", "games=[lights,logic,sokoban]"):
            asked += ["--set", setting]
        told = CliRunner().invoke(app, asked, catch_exceptions=False)
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        batch = PuzzleServerVectorEnvironment("lights", client=client, prompt=move_prompt)
        with batch:
            [text] = batch.reset([1])
            # A command of the right form is taken, and what the tokenizer lacks does not stop a model.
            [command] = batch.sample_actions([0], random.Random(0))
            assert not batch.step([command]).infos[0].error
        read = PuzzleServerPromptTokenizer(PromptTokenizer(config.data.tokenizer)).prompt(text)
        assert "\n1 |?|" in PromptTokenizer(config.data.tokenizer).text(read)
    assert [line["player"] for line in lines[:3]] == ["model", "untrained", "random"]
    assert [line["task"] for line in lines[::3]] == [
        "lights:easy",
        "logic:easy",
        "sokoban:easy",
        "all",
    ]
    by_player = {(line["task"], line["player"]): line for line in lines}
    assert by_player["lights:easy", "random"]["legal_rate"] == 1
    assert by_player["logic:easy", "random"]["legal_rate"] == 0
    assert all(line["puzzles"] == line["different"] == 2 for line in lines[:9])


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
        "grpo.groups=2",
        "grpo.group_size=2",
        "max_new_tokens=8",
        "evaluation.puzzles=0",
    ]
    told = CliRunner().invoke(app, [*asked, *settings, "legal_only=true"], catch_exceptions=False)
    assert told.exit_code == 0
    asked = ["eval", str(tmp_path / "g"), "--attempts", "0", "--set", "puzzles=2", "--json"]
    lines = CliRunner().invoke(app, asked, catch_exceptions=False).stdout.splitlines()
    assert json.loads(lines[0])["task"] == "lights_out:easy:multi"


def test_arc_samples_hold_the_demonstrations_but_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    few_tasks(monkeypatch)
    settings = ("data.environment=arc", "data.held_out=3", "data.max_length=512", "data.window_size=64")
    source = open_source(load_config(LMTrainingConfig, None, settings))
    assert [sample.sample_id.split("-")[1] for sample in source.held_out] == ["valid"] * 3
    assert source.next() is not None
    (task,) = generate_tasks(["fill_enclosed"], 1)
    text = compact_task(task, 1, task.demos[1].input)
    outputs = ["/".join("".join(map(str, row)) for row in pair.output.tolist()) for pair in task.demos]
    assert all(
        (f"={output}\n" in text) == (at != 1)
        for at, output in enumerate(outputs)
        if outputs.count(output) == 1
    )
    sample = source.held_out[0]
    said = PromptTokenizer("bytes").text(sample.tokens[sample.mask == 1].tolist())
    assert said.split()[0] in OPERATION_NAMES


def test_what_there_is_not_is_told_with_what_is_near() -> None:
    with pytest.raises(ValueError, match="unknown puzzle kind 'sudoka'; did you mean 'sudoku'"):
        open_source(load_config(LMTrainingConfig, None, ("data.environment=sudoka",)))


def test_the_preset_learns_ten_kinds_that_its_model_can_read() -> None:
    config = load_lm_training("puzzles", ["data.held_out=15", "data.window_size=32"])
    source = open_source(config)
    assert {sample.dataset_id.partition(":")[0] for sample in source.held_out} == set(KINDS)
    batch = source.next()
    assert batch is not None
    assert batch.input_ids.shape == (10, 192)
