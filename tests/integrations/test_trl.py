"""TRL: tools, rewards, prompts, and a step of the trainer if TRL is installed."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.integrations.trl import (
    ToolEnvironment,
    environment_factory,
    prompt_dataset,
    solved_reward,
)
from phalanx.puzzles import PuzzleEnvironment, puzzle_kind


def prompt_rows(*args: Any, **settings: Any) -> list[dict[str, Any]]:
    return prompt_dataset(*args, **settings).to_list()


def test_rollout_has_the_episodes_and_rewards_of_the_environment() -> None:
    tools = environment_factory("sudoku")()
    environment = PuzzleEnvironment("sudoku")
    for seed in (3, 4):
        assert tools.reset(seed=seed, prompt=[], kind="sudoku") == environment.reset(seed)
        answers = ["nonsense", *(environment.expert_actions() or ())]
        assert [tools.move(answer) for answer in answers] == [
            environment.step(answer).text for answer in answers
        ]
        assert tools.get_reward() == pytest.approx(0.9)
    assert tools.reset(seed=3) and tools.get_reward() == 0.0


def test_move_is_the_only_tool_and_has_a_description() -> None:
    public = [name for name, _ in inspect.getmembers(ToolEnvironment, inspect.isfunction) if name[0] != "_"]
    assert public == ["get_reward", "move", "reset"]
    assert "answer:" in (ToolEnvironment.move.__doc__ or "")


def test_factory_accepts_any_text_environment() -> None:
    tools = environment_factory(lambda: PuzzleEnvironment("lights_out"))()
    assert "lights out" in tools.reset(seed=1)
    with pytest.raises(ValueError, match="unknown text environment 'sudko'"):
        environment_factory("sudko")
    with pytest.raises(TypeError, match="takes no settings, got max_steps"):
        environment_factory(lambda: PuzzleEnvironment("lights_out"), max_steps=3)


def test_solved_reward_is_one_for_correct_answers() -> None:
    rows = prompt_rows(["countdown", "sudoku"], [0, 1])
    assert [(row["kind"], row["seed"]) for row in rows] == [
        ("countdown", 0), ("countdown", 1), ("sudoku", 0), ("sudoku", 1),
    ]  # fmt: skip
    assert rows[0]["prompt"][0]["content"] == PuzzleEnvironment("countdown", turns="single").reset(0)
    columns = {name: [row[name] for row in rows] for name in ("kind", "difficulty", "seed")}
    solutions = [
        puzzle_kind(row["kind"]).solution_text(puzzle_kind(row["kind"]).generate(row["seed"])) for row in rows
    ]
    completions = [solutions[0], f"Hm. <answer>{solutions[1]}</answer>", solutions[3], ""]
    assert solved_reward(completions, **columns, prompts=rows) == [1.0, 1.0, 0.0, 0.0]
    chats = [[{"role": "assistant", "content": text}] for text in solutions]
    assert solved_reward(chats, **columns) == [1.0] * 4
    assert prompt_rows(["sudoku"], [5], turns="multi")[0]["prompt"] == [{"role": "user", "content": ""}]
    with pytest.raises(ValueError, match="turns must be 'multi' or 'single'"):
        prompt_rows(["sudoku"], [5], turns="many")


def test_solved_reward_of_an_invalid_answer_is_zero() -> None:
    environment = PuzzleEnvironment("sudoku", turns="single")
    environment.reset(0)
    assert environment.step("nonsense").reward == -0.1
    assert solved_reward(["nonsense"], ["sudoku"], ["easy"], [0]) == [0.0]


def test_columns_of_different_lengths_raise_error() -> None:
    with pytest.raises(ValueError, match="got 2 in completions, 1 in kind, 1 in difficulty, 1 in seed"):
        solved_reward(["1", "2"], ["sudoku"], ["easy"], [0])


def test_rows_of_different_splits_have_different_puzzles() -> None:
    boards: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        rows = prompt_rows("lights_out, countdown", split=split, num_prompts=40)
        assert [row["kind"] for row in rows] == ["lights_out"] * 40 + ["countdown"] * 40
        boards[split] = {row["prompt"][0]["content"] for row in rows}
    assert not boards["train"] & boards["test"] and not boards["validation"] & boards["test"]
    assert prompt_rows("sudoku", [3]) == prompt_rows(["sudoku"], [3])


def test_prompts_can_be_compact() -> None:
    [row] = prompt_rows("sudoku", [3], prompt_format="compact")
    expected = PuzzleEnvironment("sudoku", turns="single", prompt_format="compact").reset(3)
    assert row["prompt"][0]["content"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": []}, "a dataset needs at least one kind and one seed"),
        ({}, "pass either seeds, or split and num_prompts"),
        ({"split": "train"}, "pass either seeds, or split and num_prompts"),
        ({"num_prompts": 3}, "pass either seeds, or split and num_prompts"),
        ({"seeds": [1], "split": "train"}, "pass either seeds, or split and num_prompts"),
        ({"split": "train", "num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"split": "eval", "num_prompts": 1}, "unknown split 'eval'"),
    ],
)
def test_invalid_seeds_of_prompts_raise_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompt_rows("sudoku", **arguments)


@pytest.mark.parametrize(("column", "value"), [("kind", "countdown"), ("difficulty", "hard")])
def test_row_of_another_puzzle_raises_error(column: str, value: str) -> None:
    tools = environment_factory("sudoku")()
    row = {"kind": "sudoku", "difficulty": "easy", "seed": 3}
    assert "sudoku" in tools.reset(**row)
    with pytest.raises(ValueError, match=f"a row of the dataset has {column} '{value}', but the environment"):
        tools.reset(**row | {column: value})


def tiny_model() -> tuple[Any, Any]:
    """Return a random model with a few thousand weights and a byte tokenizer with a tool template."""
    transformers = pytest.importorskip("transformers", minversion="5.2")
    tokenizers = pytest.importorskip("tokenizers")
    trl = pytest.importorskip("trl", minversion="1.16")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *special])}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    raw.add_special_tokens(special)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=template.read_text(encoding="utf-8"),
    )  # fmt: skip
    config = transformers.Qwen3Config(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=4096,
        eos_token_id=vocabulary["<|im_end|>"], pad_token_id=vocabulary["<|endoftext|>"],
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config), tokenizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("turns", ["single", "multi"])
def test_grpo_trainer_runs_one_step(turns: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", minversion="1.16")
    model, tokenizer = tiny_model()
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_steps=1,
        max_completion_length=8, report_to="none", use_cpu=True, logging_steps=1, save_strategy="no",
    )  # fmt: skip
    seen: list[str] = []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        seen.append(json.dumps(columns["prompts"]))
        return solved_reward(completions, **columns)

    sources: dict[str, Any] = {"reward_funcs": reward}
    if turns == "multi":
        sources = {"environment_factory": environment_factory("lights_out")}
    trainer = trl.GRPOTrainer(
        model=model, processing_class=tokenizer, args=settings,
        train_dataset=prompt_dataset(["lights_out"], range(4), turns=turns), **sources,
    )  # fmt: skip
    trainer.train()
    [logged] = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logged["reward"] == 0.0 and trainer.state.global_step == 1
    if turns == "single":
        assert "lights out" in seen[0]
    else:
        assert "rewards/ToolEnvironment/mean" in logged
        assert all(tools._environment.puzzle.kind == "lights_out" for tools in trainer.environments)
