"""Games of a puzzle server as text environments: of a scripted server, and of the real one where it is."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from phalanx.puzzles.server import (
    PuzzleClientConfig,
    PuzzleServerVectorEnvironment,
    puzzle_server_environment,
)
from tests.helpers.puzzle_server import running_server
from tests.helpers.scripted_puzzle_server import ScriptedServer, scripted_server


@contextlib.contextmanager
def toy_server() -> Iterator[ScriptedServer]:
    """The scripted server in a thread of its own, because the environments wait for it."""
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


def test_a_batch_plays_to_the_end_and_refuses_what_is_no_move() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        with PuzzleServerVectorEnvironment("toy", size=3, client=client) as batch:
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
            assert "seed 11" in batch.reset_where([True, False, False], [11, 0, 0])[0]
        batch.close()


def test_answers_run_out() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        game = puzzle_server_environment("toy", client=client, max_steps=2)
        with pytest.raises(ValueError, match="call reset"):
            game.step("place 1 1 1")
        game.reset(1)
        assert [game.step(answer).info.truncated for answer in ("nonsense", "", "place 1 1 1")] == [
            False,
            True,
            True,
        ]
        game.close()


def test_refused_answers_in_a_row_run_out_and_prompts_can_be_worded_otherwise() -> None:
    with toy_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        game = puzzle_server_environment(
            "toy", client=client, max_invalid_answers=2, prompt=lambda name, seen: f"{name} {seen.seed}"
        )
        assert game.reset(4) == game.prompt == "toy 4"
        said = ("nonsense", "place 1 1 1", "nonsense", "", "place 1 2 2")
        assert [game.step(answer).info.truncated for answer in said] == [False, False, False, True, True]
        assert not game.reset(4).isspace() and not game.step("nonsense").done
        game.close()


def test_the_real_servers_games_are_solved_by_its_hints() -> None:
    with running_server() as server:
        client = PuzzleClientConfig(host="127.0.0.1", port=server.port)
        for name in ("sudoku", "binary", "lights"):
            game = puzzle_server_environment(name, client=client)
            assert "Answer with one line" in game.reset(3)
            step = None
            while answers := game.expert_actions():
                step = game.step(answers[0])
                assert not step.info.error
            assert step is not None and step.info.solved
            game.close()
