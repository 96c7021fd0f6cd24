"""Puzzles as text environments: valid and invalid answers, single and multiple turns, and batches."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.puzzles import PuzzleEnvironment, PuzzleVectorEnvironment
from phalanx.puzzles.kinds import KINDS
from phalanx.text import TaskSeed, TextRewardValues, TextVectorEnvironment, split_of
from phalanx.text.env import MAX_SEED

TURNS = ("multi", "single")
INVALID_ANSWERS = (
    "",
    "   \n\t ",
    "hello",
    "0 0 0",
    "99 99 99",
    "-1 2 3",
    "1 1",
    "1 1 1 1 1 1 1 1",
    "1 2 ☃",
    "١ ٢ ٣",
    "𝟙 𝟚 𝟛",
    "\x00\x1b[31m",
    "<answer></answer>",
    "</answer>",
    "x" * 30_000,
    "1 " * 9_000,
    "(" * 5_000,
    "9" * 5_000,
    "\n" * 5_000 + "1",
    "up" * 3_000,
    "\ud800",
)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("name", KINDS)
def test_expert_actions_solve_the_puzzle(name: str, turns: str) -> None:
    for seed in range(25):
        environment = PuzzleEnvironment(name, "easy", turns=turns)
        prompt = environment.reset(seed)
        assert prompt == environment.prompt and "Answer with" in prompt
        expert_actions = environment.expert_actions()
        assert expert_actions
        steps = [environment.step(f"Let me think. <answer>{answer}</answer>") for answer in expert_actions]
        assert [step.info.error for step in steps] == [""] * len(steps)
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        assert steps[-1].info.solved and steps[-1].info.terminated and steps[-1].text.startswith("Solved.")
        assert environment.expert_actions() == []
        after = environment.step("up")
        assert after.done and after.reward == 0.0 and after.info.solved


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("name", KINDS)
def test_invalid_answers_are_rejected_and_change_nothing(name: str, turns: str) -> None:
    for answer in INVALID_ANSWERS:
        environment = PuzzleEnvironment(name, "medium", turns=turns, max_steps=2)
        prompt = environment.reset(1)
        step = environment.step(answer)
        # Some of these answers are moves of some kinds of puzzles; they must not be rewarded.
        assert not step.info.solved and step.reward <= 0
        if step.info.error:
            assert step.reward == -0.1 and len(step.info.error) < 200
            assert step.text.startswith(f"Not possible: {step.info.error}.")
            assert environment.prompt == prompt
        assert step.done is (turns == "single")


@pytest.mark.parametrize("name", KINDS)
@given(answer=st.text(alphabet=st.characters(), max_size=40), turns=st.sampled_from(TURNS))
@settings(max_examples=25, deadline=None)
def test_arbitrary_text_does_not_raise(name: str, answer: str, turns: str) -> None:
    environment = PuzzleEnvironment(name, turns=turns)
    environment.reset(0)
    assert not environment.step(answer).info.solved


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("sudoku", "1 2 3", "row 1, column 2 is given and cannot be changed"),
        ("sudoku", "5 1 3", "there is no row 5; rows count from 1 to 4"),
        ("sudoku", "1 1 7", "'7' is no symbol here; there are 1 2 3 4"),
        ("sudoku", "one one seven", "a move reads `ROW COLUMN SYMBOL`, got 'one one seven'"),
        ("sudoku", "1 1 .", "row 1, column 1 has . already"),
        ("sokoban", "left", "you cannot go left: there is a wall"),
        ("sokoban", "jump", "a move is up, down, left or right, got 'jump'"),
        ("countdown", "9 - 9", "9 is not among the numbers that are left"),
        ("countdown", "5 - 9", "5 - 9 is no positive whole number of at most nine digits"),
        ("countdown", "9 / 5", "9 / 5 is no positive whole number of at most nine digits"),
        ("knights", "Zoe knight", "nobody is called 'Zoe'; there are Finn, Leo, Gus"),
        ("knights", "Finn maybe", "a move is a name and knight or knave, got 'Finn maybe'"),
        ("bridges", "1 1 1 3 1", "no bridge can lead from 1 1 to 1 3: they are not two islands in one row or "
         "column with no island between them"),
        ("bridges", "1 3 1 5 3", "a move reads `ROW COLUMN ROW COLUMN COUNT` with a count of 0 to 2, got "
         "'1 3 1 5 3'"),
        ("lights_out", "1 9", "there is no column 9; columns count from 1 to 3"),
        ("hitori", "1 1 4", "'4' is no symbol here; there are #"),
    ],
)  # fmt: skip
def test_error_explains_why_an_answer_is_not_a_move(name: str, answer: str, message: str) -> None:
    environment = PuzzleEnvironment(name)
    environment.reset(0)
    assert environment.step(answer).info.error == message


def test_move_can_be_undone_and_solver_continues() -> None:
    environment = PuzzleEnvironment("sudoku")
    prompt = environment.reset(0)
    expected = environment.expert_actions()
    assert expected is not None
    place, digit = expected[0].rsplit(" ", 1)
    wrong = f"{place} {1 + int(digit) % 4}"
    environment.step(wrong)
    assert environment.expert_actions() == expected
    environment.step(f"{place} .")
    assert environment.prompt == prompt


def test_long_episode_is_truncated_and_lost_one_terminated() -> None:
    environment = PuzzleEnvironment("lights_out", max_steps=3)
    environment.reset(0)
    steps = [environment.step(answer) for answer in ("1 1", "1 1", "nonsense", "1 1")]
    assert [step.info.truncated for step in steps] == [False, False, True, True]
    assert [step.reward for step in steps] == pytest.approx([0, 0, -0.1, 0])
    countdown = PuzzleEnvironment("countdown")
    countdown.reset(0)  # 9, 5, 1 to 13
    countdown.step("9 + 5")
    lost = countdown.step("14 * 1")
    assert lost.done and lost.info.terminated and not lost.info.solved and lost.text.startswith("Not solved.")


def test_rewards_are_configurable() -> None:
    environment = PuzzleEnvironment("sudoku", rewards=TextRewardValues(solved=5, valid=0.5, invalid=-2))
    environment.reset(0)
    answers = environment.expert_actions() or []
    assert [environment.step(answer).reward for answer in ["no", *answers]] == [-2, *[0.5] * 6, 5]


@pytest.mark.parametrize("name", KINDS)
def test_batch_equals_single_environments(name: str) -> None:
    seeds = list(range(12))
    batch, singles = PuzzleVectorEnvironment(name), [PuzzleEnvironment(name) for _ in seeds]
    generic = TextVectorEnvironment({name: lambda: PuzzleEnvironment(name)})
    texts = [single.reset(seed) for single, seed in zip(singles, seeds, strict=True)]
    assert batch.reset(seeds) == generic.reset(seeds) == texts
    for turn in range(3):
        answers = [("nonsense", *(single.expert_actions() or ("",)))[turn % 2] for single in singles]
        expected = [single.step(answer) for single, answer in zip(singles, answers, strict=True)]
        for found in (batch.step(answers), generic.step(answers)):
            assert found.texts == [step.text for step in expected]
            assert found.infos == [step.info for step in expected]
            np.testing.assert_array_equal(found.rewards, np.array([s.reward for s in expected], np.float32))
            np.testing.assert_array_equal(found.dones, [step.done for step in expected])
    assert batch.prompts == [single.prompt for single in singles]


def test_invalid_batch_calls_are_rejected() -> None:
    batch = PuzzleVectorEnvironment("sudoku")
    with pytest.raises(ValueError, match="there are no episodes yet; call reset or start"):
        batch.step(["1 1 1"])
    batch.reset([1, 2])
    with pytest.raises(ValueError, match=r"answers must have one item per episode \(2\), got 1"):
        batch.step(["1 1 1"])
    with pytest.raises(ValueError, match=r"expected 1 to .* episodes, got 0"):
        batch.reset([])
    with pytest.raises(ValueError, match="unknown task 'binary:easy:multi'; choose from sudoku:easy:multi"):
        batch.start([TaskSeed("binary:easy:multi", 0)])
    with pytest.raises(ValueError, match="the task sudoku:easy:multi appears twice"):
        PuzzleVectorEnvironment("sudoku,sudoku:easy")
    with pytest.raises(ValueError, match=r"expected KIND\[:DIFFICULTY\[:TURNS\]\], got 'sudoku"):
        PuzzleVectorEnvironment("sudoku:easy:multi:3")


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="there is no episode yet; call reset"):
        PuzzleEnvironment("sudoku").step("1 1 1")
    with pytest.raises(ValueError, match="turns must be 'multi' or 'single', got 'many'"):
        PuzzleEnvironment("sudoku", turns="many")
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        PuzzleEnvironment("sudoku", max_steps=0)
    with pytest.raises(ValueError, match="no difficulty 'huge'"):
        PuzzleEnvironment("sudoku", "huge")
    with pytest.raises(ValueError, match="this environment is for binary puzzles, got a sudoku puzzle"):
        PuzzleEnvironment("binary").start(PuzzleEnvironment("sudoku").kind.generate(0))


def test_batch_of_several_kinds_starts_the_requested_episodes() -> None:
    batch = PuzzleVectorEnvironment("sokoban:easy:multi,sudoku", turns="single", prompt_format="compact")
    assert batch.tasks == ("sokoban:easy:multi", "sudoku:easy:single")
    assert batch.fingerprint == "sokoban:easy:multi@1 sudoku:easy:single@1"
    episodes = [TaskSeed(batch.tasks[1], 5), TaskSeed(batch.tasks[0], 5), TaskSeed(batch.tasks[1], 5)]
    prompts = batch.start(episodes)
    single = PuzzleEnvironment("sudoku", turns="single", prompt_format="compact")
    assert prompts[0] == prompts[2] == single.reset(5)
    assert batch.legal_actions([0, 1])[0] is None and batch.legal_actions([1])[0]
    answers = batch.expert_actions([0, 1, 2])
    assert answers[0] == (single.expert_actions() or [])[0]
    step = batch.step([answers[0] or "", answers[1] or "", "nonsense"])
    assert [info.solved for info in step.infos] == [True, False, False]
    assert batch.expert_actions([0]) == [None]
    assert batch.state_keys()[1] != batch.episode_keys()[1]


def test_seeds_of_a_split_do_not_affect_running_episodes() -> None:
    batch = PuzzleVectorEnvironment("lights_out:easy")
    prompts = batch.reset([0, 1])
    for split in ("train", "validation", "test"):
        seeds = list(itertools.islice(batch.seeds("lights_out:easy:multi", split, first=7), 5))
        assert min(seeds) >= 7 and seeds == sorted(set(seeds))
        assert batch.prompts == prompts
        other = PuzzleVectorEnvironment("lights_out:easy")
        other.reset(seeds)
        assert {split_of(key) for key in other.episode_keys()} == {split}
    generic = TextVectorEnvironment({"lights": lambda: PuzzleEnvironment("lights_out")})
    found = itertools.islice(generic.seeds("lights", "test", first=7), 5)
    assert list(found) == list(itertools.islice(batch.seeds("lights_out:easy:multi", "test", first=7), 5))


@pytest.mark.parametrize(("run_seed", "first"), [(0, 0), (3, 3_000_009), (4293, 4_293_012_879)])
def test_runs_start_at_different_seeds(run_seed: int, first: int) -> None:
    assert (
        TextVectorEnvironment({"lights": lambda: PuzzleEnvironment("lights_out")}).first_seed(run_seed)
        == first
    )


@given(st.integers(0, 2**63))
def test_seeds_of_a_run_are_at_most_max_seed(run_seed: int) -> None:
    generic = TextVectorEnvironment({"lights": lambda: PuzzleEnvironment("lights_out")})
    assert 0 <= generic.first_seed(run_seed) <= MAX_SEED - 1_000_000


def test_seeds_of_unknown_tasks_and_splits_raise_error() -> None:
    batch = PuzzleVectorEnvironment("sudoku,countdown")
    with pytest.raises(ValueError, match="'sudoku'; choose from sudoku:easy:multi, countdown:easy:multi"):
        batch.seeds("sudoku", "test")
    with pytest.raises(ValueError, match="unknown split 'eval'; choose from train, validation, test"):
        batch.seeds("sudoku:easy:multi", "eval")


def test_random_actions_are_legal() -> None:
    batch = PuzzleVectorEnvironment("sudoku")
    batch.reset([1, 2])
    [first, second] = batch.sample_actions([0, 1], random.Random(3))
    assert not any(info.error for info in batch.step([first, second]).infos)
    single = PuzzleVectorEnvironment("sudoku", turns="single")
    single.reset([1])
    with pytest.raises(ValueError, match="cannot list its legal actions"):
        single.sample_actions([0], random.Random(3))
