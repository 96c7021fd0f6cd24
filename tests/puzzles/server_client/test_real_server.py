"""The client with both real servers."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from phalanx.puzzles.server_client import PuzzleClient, PuzzleClientConfig, PuzzleDifficulty, PuzzleGame
from phalanx.puzzles.server_client.protocol import PuzzleServerUnavailableError, UnknownGameNameError
from tests.helpers.puzzle_server import HANDLERS, RealServer, running_server

pytestmark = pytest.mark.slow


def settings(port: int, max_retries: int = 8) -> PuzzleClientConfig:
    return PuzzleClientConfig(
        host="127.0.0.1", port=port, max_retries=max_retries, retry_delay=0.001, max_retry_delay=0.01
    )


@pytest.fixture(scope="module", params=list(HANDLERS))
def server(request: pytest.FixtureRequest) -> Iterator[RealServer]:
    with running_server(request.param) as running:
        yield running


def test_real_server_runs_the_example_game(server: RealServer) -> None:
    async def run() -> None:
        async with PuzzleClient(settings(server.port)) as client:
            observation = await client.start_puzzle(PuzzleGame.SUDOKU, PuzzleDifficulty.EASY, seed=42)
            assert (observation.game, observation.seed, observation.optimal_steps) == ("Sudoku", 42, 35)
            assert "|" in observation.grid_display and len(observation.grid) == 9
            hint = await client.get_hint()
            assert hint.success and hint.command is not None and hint.message.startswith("Try placing")
            assert (await client.show_state()).moves == 0
            assert (await client.send_action(hint.command)).success
            rejected = await client.send_action("place 1 1 99")
            assert not rejected.success and rejected.state is not None and rejected.state.grid_display
            stats = await client.get_stats()
            assert (stats.game, stats.hints_used, stats.seed) == ("Sudoku", 1, 42)
            assert (await client.reset_puzzle()).grid == observation.grid
            await client.quit_puzzle()
            assert (await client.start_puzzle("einstein", "easy", 1)).game.startswith("Einstein")
            with pytest.raises(UnknownGameNameError, match="did you mean 'kakuro'"):
                await client.start_puzzle("kakuru")

    asyncio.run(run())


QUICK = ("binary", "lights", "mastermind", "slither", "bridges", "shikaku", "tents", "sokoban", "knapsack")
"""Games that are generated and solved within some tens of milliseconds; the benchmark covers all games."""


def test_hints_of_the_real_server_solve_its_puzzles(server: RealServer) -> None:
    async def run() -> dict[str, bool]:
        solved = {}
        async with PuzzleClient(settings(server.port)) as client:
            for game in QUICK:
                state = await client.start_puzzle(game, "easy", 42)
                while (hint := await client.get_hint()).success and not state.is_complete:
                    assert hint.command is not None, hint.message
                    result = await client.send_action(hint.command)
                    assert result.success and result.state is not None, result.message
                    state = result.state
                solved[game] = state.is_complete
        return solved

    assert asyncio.run(run()) == dict.fromkeys(QUICK, True)


def test_rejected_logic_grid_move_is_explained(server: RealServer) -> None:
    async def run() -> None:
        async with PuzzleClient(settings(server.port)) as client:
            await client.start_puzzle(PuzzleGame.LOGIC_GRID, "easy", 42)
            hint = await client.get_hint()
            assert hint.message == "Alice has the Blue color" and hint.command is not None
            result = await client.send_action(hint.command)
            assert not result.success
            assert "refuses every move of Logic Grid; its hints can be read but not played" in result.message

    asyncio.run(run())


def test_real_server_accepts_at_most_100_connections(server: RealServer) -> None:
    async def run() -> None:
        clients = [PuzzleClient(settings(server.port)) for _ in range(100)]
        for client in clients:
            await client.connect()
        with pytest.raises(PuzzleServerUnavailableError, match="is full: Server is at maximum capacity"):
            await PuzzleClient(settings(server.port, max_retries=1)).connect()
        async with contextlib.AsyncExitStack() as stack:
            late = PuzzleClient(settings(server.port, max_retries=200))
            stack.push_async_callback(late.disconnect)
            start_task = asyncio.create_task(late.start_puzzle("lights"))
            await asyncio.sleep(0.01)
            assert not start_task.done()
            for client in clients:
                await client.disconnect()
            assert (await start_task).game == "Lights Out"

    asyncio.run(run())


def test_reset_restarts_a_game_without_undo(server: RealServer) -> None:
    async def run() -> None:
        async with PuzzleClient(settings(server.port)) as client:
            before = await client.start_puzzle("mastermind", "easy", 4)
            await client.send_action("guess 1 1 1 1")
            after = await client.reset_puzzle()
            assert (after.seed, after.moves, after.grid_display) == (4, 0, before.grid_display)

    asyncio.run(run())
