"""Evaluation of text policies by the library and by `phalanx eval`: puzzles, environments, puzzle server."""

import json
import random
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from phalanx import load_policy
from phalanx.cli.app import app
from phalanx.lm import (
    LanguageModel,
    LanguageModelConfig,
    LMPolicy,
    LMTokenizer,
    RandomTextPolicy,
    SamplingConfig,
    evaluate_policy,
    rollout,
)
from phalanx.lm.evaluation import mean_score
from phalanx.lm.transcript import episode_record
from phalanx.logging import read_records
from phalanx.puzzles.kinds import KINDS
from phalanx.puzzles.server_client import PuzzleClientConfig, PuzzleServerVectorEnvironment
from phalanx.text import TaskSeed, make_text_vector_env
from phalanx.training import SFT, SFTConfig, open_data, train
from tests.helpers.puzzle_server import running_server

LIGHTS = "lights_out:easy:multi"
MODEL = ("model.d_model=16", "model.num_layers=1", "model.num_heads=2", "model.d_ff=16")
SMALL_SFT = (
    *MODEL,
    "model.vocab_size=98",
    "tokenizer=characters",
    "data.max_length=96",
    "data.token_budget=384",
    "data.packs_per_buffer=8",
    "data.num_eval_samples=8",
    "num_updates=2",
    "optimizer.grad_accum_steps=2",
    "optimizer.lr_schedule=linear",
    "evaluation.every=0",
    "evaluation.num_episodes=2",
)
SMALL_GRPO = (
    *MODEL,
    "num_updates=1",
    "max_completion_length=6",
    "microbatch_size=4",
    "num_prompts=2",
    "num_generations=2",
)


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on a few puzzles."""
    folder = tmp_path_factory.mktemp("sft") / "run"
    settings = (*SMALL_SFT, "env.id='sudoku,lights_out::multi'")
    train(SFT(SFTConfig.load(None, (*settings, "logging.sample_frequency=2"))), folder)
    return folder


def test_training_run_has_evaluations_and_conversations(run: Path) -> None:
    greedy = [
        line for line in json_lines((run / "evaluations.jsonl").read_text()) if line["mode"] == "greedy"
    ]
    assert [line["task"] for line in greedy[:3]] == ["all", "sudoku:easy:single", LIGHTS]
    assert all(0 <= line["success_rate"] <= 1 for line in greedy)
    first = json_lines((run / "episodes.jsonl").read_text())[0]
    assert first["task_id"] == "sudoku:easy:single"
    assert first["turns"][0]["prompt"].startswith("su\n")
    metrics = json_lines((run / "batch_metrics.jsonl").read_text())[0]["metrics"]
    assert 0 < metrics["mfu"] < 2
    assert metrics["num_slots"] == 2 * 384


def test_policy_with_legal_actions_only_gives_valid_answers(run: Path) -> None:
    loaded = load_policy(run)
    policy = LMPolicy(loaded.model, loaded.tokenizer, SamplingConfig(), 8, legal_actions_only=True)
    env = make_text_vector_env(LIGHTS, prompt_format="compact")
    scores = evaluate_policy({"model": policy}, env, num_episodes=4, num_samples=2)
    assert [(score.mode, score.valid_action_rate) for score in scores] == [("greedy", 1.0), ("sampled", 1.0)]
    assert set(scores[1].pass_at_k) == {1, 2}
    assert mean_score(scores[:1]).success_rate == scores[0].success_rate
    [conversation] = rollout(policy, env, [TaskSeed(LIGHTS, 0)], jax.random.key(0))
    picture = episode_record("lights", conversation, 3, 0)["final_state"]._repr_svg_()
    assert ">li<" in picture


def test_random_policy_gives_valid_answers_and_solves_little() -> None:
    env = make_text_vector_env("sudoku:easy:single")
    [score] = evaluate_policy({"random": RandomTextPolicy()}, env, num_episodes=20)
    assert (score.task, score.valid_action_rate) == ("sudoku:easy:single", 1.0)
    assert score.success_rate < 0.5
    proofs = SFTConfig.load(env="proofs").env.make()
    [score] = evaluate_policy({"random": RandomTextPolicy()}, proofs, num_episodes=8)
    assert (score.valid_action_rate, score.num_episodes) == (1.0, 8)


def test_rollouts_run_in_batches() -> None:
    env = make_text_vector_env(LIGHTS)
    conversations = rollout(RandomTextPolicy(1), env, [TaskSeed(LIGHTS, n) for n in range(5)], batch_size=2)
    assert len(conversations) == 5
    assert all(conversation.turns for conversation in conversations)
    assert len(env) == 1


def test_arc_is_evaluated_with_compact_prompts() -> None:
    env = SFTConfig.load(overrides=["env.id=arc", "env.dataset.num_generated_tasks=120"]).env.make()
    config = LanguageModelConfig(vocab_size=98, d_model=16, num_layers=1, num_heads=2, d_ff=16)
    model = LanguageModel(config, key=jax.random.key(0))
    policy = LMPolicy(model, LMTokenizer("characters"), max_new_tokens=2)
    [score] = evaluate_policy({"model": policy}, env, num_episodes=2)
    assert (score.task, score.num_episodes, score.valid_action_rate) == ("arc", 2, 0.0)
    conversations = rollout(policy, env, [TaskSeed("arc", 0), TaskSeed("arc", 1)])
    assert all(one.turns[0].prompt.startswith("arc\n") for one in conversations)


def test_eval_prints_the_model_and_its_baselines(run: Path, tmp_path: Path) -> None:
    settings = ["episodes_per_task=3", "max_completion_length=8", "num_sampled_attempts=2"]
    arguments = ["eval", str(run), "--env", LIGHTS, *settings]
    task, mean = json_lines(run_cli(*arguments, "--json"))
    assert (task["task"], mean["task"], task["policy"], task["mode"]) == (LIGHTS, "all", "model", "greedy")
    assert {task["split"], mean["split"]} == {"test"}
    assert task["baselines"].keys() == {"untrained", "random"}
    assert set(task["pass_at_k"]) == {"1", "2"}
    text = run_cli(*arguments, "--split", "validation")
    assert "random actions" in text
    assert "pass@2" in text
    run_cli("export", str(run), str(tmp_path / "hf"))
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}


def test_eval_runs_the_games_of_a_puzzle_server(run: Path) -> None:
    tokenizer = load_policy(run).tokenizer.tokenizer
    with running_server() as server:
        arguments = ["eval", str(run), "--env", "puzzle_server", f"env.address=127.0.0.1:{server.port}"]
        arguments += [
            "episodes_per_task=2",
            "env.max_steps=4",
            "max_completion_length=6",
            "num_sampled_attempts=0",
        ]
        lines = json_lines(run_cli(*arguments, "env.games=[lights,logic,sokoban]", "--json"))
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        with PuzzleServerVectorEnvironment("lights", client=client, prompt_format="compact") as env:
            [prompt] = env.reset([1])
            assert not env.step(env.sample_actions([0], random.Random(0))).infos[0].error
            prompt_ids = LMTokenizer.for_env(tokenizer, env).encode_prompt(prompt)
        assert "\n1 |?|" in LMTokenizer(tokenizer).decode(prompt_ids)
    assert [line["task"] for line in lines] == ["lights:easy", "logic:easy", "sokoban:easy", "all"]
    assert all(line["baselines"].keys() == {"untrained", "random"} for line in lines)
    assert all(line["num_episodes"] == line["num_distinct"] == 2 for line in lines[:3])


def test_grpo_starts_from_an_sft_run_and_is_evaluated(run: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "grpo")
    settings = ["num_updates=1", "num_prompts=2", "num_generations=2", "max_completion_length=8"]
    settings += ["evaluation.num_episodes=0", "legal_actions_only=true"]
    run_cli("train", "grpo", "--init-from", str(run), "--env", "lights_out::multi", "--out", out, *settings)
    lines = json_lines(run_cli("eval", out, "num_sampled_attempts=0", "episodes_per_task=2", "--json"))
    assert lines[0]["task"] == LIGHTS


def test_grpo_trains_on_the_games_of_a_puzzle_server(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with running_server() as server:
        arguments = ["train", "grpo", "--env", "puzzle_server", f"env.address=127.0.0.1:{server.port}"]
        arguments += [
            "env.games=['lights','binary:medium']",
            "env.max_steps=2",
            "env.max_consecutive_invalid_answers=1",
        ]
        # Four attempts on three connections are two batches.
        arguments += ["env.num_connections=3", "max_length=768", "evaluation.num_episodes=2"]
        run_cli(*arguments, *SMALL_GRPO, "--out", str(run))
    [line] = read_records(run / "batch_metrics.jsonl")
    assert {"success_rate_lights_easy", "success_rate_binary_medium"} <= line["metrics"].keys()
    assert line["metrics"]["episodes"] == 4
    evaluations = json_lines((run / "evaluations.jsonl").read_text())
    assert [one["task"] for one in evaluations[:3]] == ["all", "lights:easy", "binary:medium"]


def test_grpo_trains_on_proofs_with_async_rollouts(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    settings = ("max_length=640", "evaluation.num_episodes=0", "async_rollouts=true")
    run_cli("train", "grpo", "--env", "proofs", "--out", run, *SMALL_GRPO, *settings)
    lines = json_lines(run_cli("eval", run, "num_sampled_attempts=0", "episodes_per_task=3", "--json"))
    assert [line["task"] for line in lines] == ["proofs", "all"]
    assert lines[0]["baselines"].keys() == {"untrained", "random"}


def test_preset_for_puzzles_fits_its_model() -> None:
    data = open_data(SFTConfig.load("puzzles", ["data.num_eval_samples=15", "data.packs_per_buffer=16"]))
    tasks = [sample.info.dataset_id for sample in data.eval_samples if sample.info]
    assert {task.partition(":")[0] for task in tasks} == set(KINDS)
    assert data.plan is not None
    assert data.get_batch(next(data.plan.batches())).input_ids.shape == (10, 192)
