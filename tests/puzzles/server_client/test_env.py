"""Games of a puzzle server as text environments, with a scripted server and with the real one."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from phalanx.config import load_config
from phalanx.puzzles.server_client import (
    PuzzleClientConfig,
    PuzzleServerEnvironment,
    PuzzleServerVectorEnvironment,
)
from phalanx.puzzles.server_client.env import PuzzleServerEnvConfig
from phalanx.puzzles.server_client.protocol import PuzzleGame, allowed_moves, move_format
from phalanx.text import TaskSeed, make_text_env, make_text_vector_env
from tests.helpers.puzzle_server import running_server
from tests.helpers.scripted_puzzle_server import ScriptedServer, scripted_server


@contextlib.contextmanager
def toy_server() -> Iterator[ScriptedServer]:
    """Run the scripted server in a thread, because the environments block while they wait for it."""
    server, ready, stop = ScriptedServer(), threading.Event(), []

    async def serve() -> None:
        ended = asyncio.Event()
        async with scripted_server(server):
            stop.extend([asyncio.get_running_loop(), ended])
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop, ended = stop
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


def test_batch_runs_to_the_end_and_rejects_invalid_moves() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        with PuzzleServerVectorEnvironment("toy", client=client) as batch:
            texts = batch.reset([5, 6, 7])
            assert ["seed 5" in texts[0], "seed 6" in texts[1], "seed 7" in texts[2]] == [True] * 3
            assert "Answer with one line: `place ROW COLUMN DIGIT`" in texts[0]
            step = batch.step(["place 1 1 1", "place 9 9 9", "quit"])
            assert [bool(info.error) for info in step.infos] == [False, True, True]
            assert step.rewards.tolist() == pytest.approx([0, -0.1, -0.1])
            step = batch.step(["", "place 1 1 1\nplace 1 2 2", "☃" * 30_000])
            assert all(info.error for info in step.infos)
            for number in range(2, server.goal + 1):
                step = batch.step([f"place 1 {number} {number}", "nonsense", "nonsense"])
            assert step.infos[0].solved and step.dones.tolist() == [True, False, False]
            assert step.texts[0].startswith("Solved.") and step.rewards[0] == 1
            assert batch.step(["place 1 1 1"] * 3).infos[0].solved
            assert "seed 11" in batch.reset([11])[0]
        batch.close()


def test_episode_is_truncated_after_max_steps() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        game = PuzzleServerEnvironment.create("toy", client=client, max_steps=2)
        with pytest.raises(ValueError, match="call reset"):
            game.step("place 1 1 1")
        game.reset(1)
        assert [game.step(answer).info.truncated for answer in ("nonsense", "", "place 1 1 1")] == [
            False,
            True,
            True,
        ]
        game.close()


def test_invalid_answers_in_a_row_truncate_and_prompt_can_be_replaced() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        game = PuzzleServerEnvironment.create(
            "toy",
            client=client,
            max_consecutive_invalid_answers=2,
            prompt=lambda name, observation: f"{name} {observation.seed}",
        )
        assert game.reset(4) == game.prompt == "toy 4"
        answers = ("nonsense", "place 1 1 1", "nonsense", "", "place 1 2 2")
        assert [game.step(answer).info.truncated for answer in answers] == [False, False, False, True, True]
        assert not game.reset(4).isspace() and not game.step("nonsense").done
        game.close()


@pytest.mark.slow
def test_hints_of_the_real_server_solve_its_games() -> None:
    with running_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        for name in ("sudoku", "binary", "lights"):
            game = PuzzleServerEnvironment.create(name, client=client)
            assert "Answer with one line" in game.reset(3)
            step = None
            while answers := game.expert_actions():
                step = game.step(answers[0])
                assert not step.info.error
            assert step is not None and step.info.solved
            game.close()


@pytest.mark.parametrize(
    "answer", ["solve", "SOLVE", "  solve now", "<answer>solve</answer>", "check", "hint", "show"]
)
def test_commands_that_are_not_moves_are_invalid_and_earn_nothing(answer: str) -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        with PuzzleServerVectorEnvironment("sudoku", client=client) as batch:
            batch.reset([5])
            step = batch.step([answer])
        assert step.rewards.tolist() == pytest.approx([-0.1])
        assert not step.infos[0].solved and not step.dones[0]
        assert "is not a move of sudoku; moves begin with clear, place" in step.infos[0].error
        assert not {"solve", "check"} & set(server.commands)


def test_every_game_allows_the_moves_that_its_prompt_and_its_hints_name() -> None:
    for game in PuzzleGame:
        moves = allowed_moves(game)
        named = {part.split()[0] for part in move_format(game).split("`")[1::2]}
        assert named <= moves
        assert not moves & {"solve", "hint", "quit", "menu", "reset", "show", "stats", "mode", "help"}
    assert "place" in allowed_moves("einstein") and "solve" not in allowed_moves("einstein")


def test_several_games_are_tasks_with_seed_ranges_as_splits() -> None:
    with toy_server() as server:
        config = PuzzleServerEnvConfig(
            address=f"127.0.0.1:{server.port}", games=("toy", "sudoku:easy"), num_connections=2
        )
        with PuzzleServerVectorEnvironment.from_config(config) as batch:
            assert batch.tasks == ("toy:easy", "sudoku:easy")
            first = [next(batch.seeds("toy:easy", split)) for split in ("train", "validation", "test")]
            assert first == [3_000_000, 2_000_000, 1_000_000] and batch.first_seed(2) == 5_000_000
            prompts = batch.start([TaskSeed("sudoku:easy", 4), TaskSeed("toy:easy", 6)])
            assert prompts[0].startswith("Puzzle: sudoku (easy)") and prompts[0].endswith("Move: ")
            # Hints of unknown games have no command.
            assert batch.expert_actions([0, 1]) == ["place 1 1 1", None]
            with pytest.raises(ValueError, match="expected 1 to 2 episodes, got 3"):
                batch.reset([1, 2, 3])
    with pytest.raises(ValueError, match="address must be HOST:PORT"):
        PuzzleServerVectorEnvironment.from_config(PuzzleServerEnvConfig(address="here"))
    with pytest.raises(ValueError, match="did you mean 'num_connections'"):
        load_config(PuzzleServerEnvConfig, settings={"connections": 3})


def test_games_are_created_by_name() -> None:
    with toy_server() as server:
        game = make_text_env("puzzle_server:toy", host="127.0.0.1", port=server.port)
        assert "seed 9" in game.reset(9)
        game.close()
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        batch = make_text_vector_env("puzzle_server:toy,puzzle_server:sudoku:hard", client=client)
        assert batch.tasks == ("toy:easy", "sudoku:hard")
        batch.close()
