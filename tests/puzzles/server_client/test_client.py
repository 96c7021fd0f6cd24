"""The client with a scripted server."""

import asyncio
import contextlib
import random
import re
import socket
import time
from collections.abc import AsyncIterator

import pytest

from phalanx.puzzles.server_client import PuzzleClient, PuzzleClientConfig, PuzzleDifficulty, PuzzleGame
from phalanx.puzzles.server_client.client import HINT_LIMIT, backoff_delay
from phalanx.puzzles.server_client.protocol import (
    InvalidCommandError,
    NoCurrentPuzzleError,
    ProtocolError,
    PuzzleServerConnectionError,
    PuzzleServerUnavailableError,
    PuzzleStartError,
    UnknownGameNameError,
)
from tests.helpers.scripted_puzzle_server import FULL, ScriptedServer, Session, scripted_server


def settings(port: int, **others: object) -> PuzzleClientConfig:
    quick = {"connect_timeout": 5.0, "read_timeout": 5.0, "retry_delay": 0.001, "max_retry_delay": 0.01}
    return PuzzleClientConfig(**{"host": "127.0.0.1", "port": port} | quick | others)


@contextlib.asynccontextmanager
async def started_client(
    server: ScriptedServer, **others: object
) -> AsyncIterator[tuple[PuzzleClient, ScriptedServer]]:
    """Yield a client that has started a puzzle on the scripted server."""
    async with scripted_server(server), PuzzleClient(settings(server.port, **others)) as client:
        await client.start_puzzle("toy", "easy", 5)
        yield client, server


async def play_toy(client: PuzzleClient) -> list[str]:
    """Solve a puzzle and return all boards."""
    boards = [(await client.start_puzzle("toy", "easy", 5)).grid_display]
    for column in (1, 2, 3):
        hint = await client.get_hint()
        assert hint.message == f"Try placing {column} at row 1, column {column}"
        result = await client.send_action(f"place 1 {column} {column}")
        assert result.state is not None
        boards.append(result.state.grid_display)
    assert result.solved and result.completion is not None and result.completion.moves == 3
    return boards


@pytest.mark.parametrize("line_mode", [True, False], ids=["line mode", "prompts and echoes"])
@pytest.mark.parametrize("split", [False, True], ids=["complete packets", "split packets"])
def test_replies_do_not_depend_on_packets_and_prompts(line_mode: bool, split: bool) -> None:
    async def run() -> None:
        server = ScriptedServer(line_mode=line_mode, split=split)
        async with scripted_server(server), PuzzleClient(settings(server.port)) as client:
            for _ in range(2):
                assert await play_toy(client) == [f"[{n}/3] ■ seed 5" for n in range(4)]
                await client.quit_puzzle()
        assert server.first_bytes == [b"\xff\xf1" * 5]

    asyncio.run(run())


def test_connect_does_not_wait_for_further_output() -> None:
    async def run() -> float:
        server = ScriptedServer()
        async with scripted_server(server):
            start_time = time.monotonic()
            async with PuzzleClient(settings(server.port)):
                return time.monotonic() - start_time

    assert asyncio.run(run()) < 0.5


async def send_half_and_close(session: Session) -> None:
    """Send half a reply and close the connection."""
    await session.send(b'{"type":"result","succ')
    session.writer.close()


def test_puzzle_is_restored_after_a_lost_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> list[str]:
        async with started_client(ScriptedServer()) as (client, server):
            assert (await client.send_action("place 1 1 1")).success
            assert not (await client.send_action("place 1 9 9")).success
            await client.get_hint()
            server.scripts["place 1 2 2"] = send_half_and_close
            sent = len(server.commands)
            result = await client.send_action("place 1 2 2")
            assert result.success and result.state is not None
            assert (result.state.moves, result.state.hints_used) == (2, 1)
            assert (client.num_connections, client.puzzles_replayed) == (2, 1)
            return [command for command in server.commands[sent:] if command not in ("mode json", "show")]

    replayed = ["toy easy 5", "place 1 1 1", "place 1 9 9", "hint"]
    assert asyncio.run(run()) == ["place 1 2 2", *replayed, "place 1 2 2"]
    (message,) = caplog.messages
    assert "closed the connection" in message and "attempt 2 in" in message


def test_puzzle_with_random_seed_is_restored_from_that_seed() -> None:
    async def run() -> int:
        async with started_client(ScriptedServer()) as (client, server):
            observation = await client.start_puzzle("toy")
            server.scripts["hint"] = send_half_and_close
            await client.get_hint()
            assert f"toy easy {observation.seed}" in server.commands
            return client.puzzles_replayed

    assert asyncio.run(run()) == 1


def test_different_puzzle_for_the_same_seed_is_an_error() -> None:
    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["hint"] = send_half_and_close
            server.goal = 9
            with pytest.raises(ProtocolError, match="generates another puzzle for 'toy easy 5' than before"):
                await client.get_hint()

    asyncio.run(run())


def test_command_that_always_ends_the_connection_is_an_error() -> None:
    async def run() -> None:
        async with started_client(ScriptedServer(), max_retries=3) as (client, server):
            server.always["place 1 1 1"] = send_half_and_close
            with pytest.raises(
                PuzzleServerUnavailableError, match=r"after 4 attempt\(s\) .*closed the connection"
            ):
                await client.send_action("place 1 1 1")
            assert client.puzzles_replayed == 3

    asyncio.run(run())


def test_silent_server_is_an_error_at_the_deadline_and_retries_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(60)

    async def run() -> float:
        server = ScriptedServer()
        server.always["toy easy 5"] = silence
        async with scripted_server(server):
            config = settings(server.port, read_timeout=0.2, deadline=0.5, max_retries=1000)
            client, start_time = PuzzleClient(config), time.monotonic()
            with pytest.raises(PuzzleServerUnavailableError, match=r"did not answer 'toy easy 5' within"):
                await client.start_puzzle("toy", "easy", 5)
            return time.monotonic() - start_time

    assert 0.4 < asyncio.run(run()) < 2.0
    assert len(caplog.messages) == 2 and all("attempt" in message for message in caplog.messages)


def test_running_request_ends_when_the_client_is_closed() -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(60)

    async def run() -> int:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["hint"] = silence
            request = asyncio.create_task(client.get_hint())
            await asyncio.sleep(0.05)
            await client.disconnect()
            with pytest.raises(PuzzleServerConnectionError, match="the client was disconnected"):
                await request
            return client.num_connections

    assert asyncio.run(run()) == 1


def test_puzzle_is_started_on_a_new_connection_if_the_old_one_is_dead() -> None:
    async def hang_up(session: Session) -> None:
        session.writer.transport.abort()

    async def run() -> tuple[int, int]:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["toy easy 6"] = hang_up
            observation = await client.start_puzzle("toy", "easy", 6)
            return observation.seed, client.num_connections

    assert asyncio.run(run()) == (6, 2)


def test_timeout_closes_the_connection() -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(0.4)

    async def run() -> None:
        async with started_client(ScriptedServer(), read_timeout=0.1, max_retries=0) as (client, server):
            server.scripts["show"] = silence
            with pytest.raises(PuzzleServerUnavailableError, match=r"did not answer 'show' within 0\.1 s"):
                await client.show_state()
            assert not client.is_connected
            # A late reply on the old connection must not be read as the answer to this command.
            assert (await client.start_puzzle("toy", "easy", 9)).seed == 9

    asyncio.run(run())


def test_reply_of_canceled_request_is_not_read_by_the_next() -> None:
    async def slow(session: Session) -> None:
        await asyncio.sleep(0.1)
        await session.send_line("Hint: Try placing 9 at row 9, column 9")

    async def run() -> str:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["hint"] = slow
            task = asyncio.create_task(client.get_hint())
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.start_puzzle("toy", "easy", 5)
            return (await client.get_hint()).message

    assert asyncio.run(run()) == "Try placing 1 at row 1, column 1"


def test_full_server_is_retried() -> None:
    async def run() -> tuple[int, int]:
        server = ScriptedServer(full=3)
        async with scripted_server(server), PuzzleClient(settings(server.port)) as client:
            return (await client.start_puzzle("toy", seed=1)).seed, server.num_rejected

    assert asyncio.run(run()) == (1, 3)


def test_full_server_is_an_error_with_its_message() -> None:
    async def run() -> None:
        server = ScriptedServer(full=99)
        async with scripted_server(server):
            with pytest.raises(PuzzleServerUnavailableError, match=r"after 3 attempt\(s\).*maximum capacity"):
                await PuzzleClient(settings(server.port, max_retries=2)).connect()
        assert server.num_rejected == 3

    assert FULL.startswith(b"Server is at maximum capacity")
    asyncio.run(run())


def test_port_without_a_server_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = settings(free.getsockname()[1], max_retries=1)
        with pytest.raises(PuzzleServerUnavailableError, match="is the puzzle server running"):
            asyncio.run(PuzzleClient(config).connect())


def test_server_without_greeting_is_an_error() -> None:
    async def run() -> None:
        disconnected = asyncio.Event()

        async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            disconnected.set()

        listening = await asyncio.start_server(send_nothing, "127.0.0.1", 0)
        config = settings(listening.sockets[0].getsockname()[1], connect_timeout=0.05, max_retries=0)
        with pytest.raises(PuzzleServerUnavailableError, match=r"did not greet within 0\.05 s"):
            await PuzzleClient(config).connect()
        listening.close()
        await listening.wait_closed()
        await disconnected.wait()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_retry_delays_double_up_to_the_limit_and_depend_on_the_seed() -> None:
    def delays(count: int, seed: int, **settings: float) -> list[float]:
        config, rng = PuzzleClientConfig(retry_delay=0.1, **settings), random.Random(seed)
        return [backoff_delay(config, attempt, rng) for attempt in range(1, count + 1)]

    assert delays(4, 0, max_retry_delay=0.3, retry_jitter=0.0) == [0.1, 0.2, 0.3, 0.3]
    first, second = (delays(50, 7, max_retry_delay=2.0, retry_jitter=0.5) for _ in range(2))
    assert first == second
    assert all(1.0 <= delay <= 2.0 for delay in first[5:]) and len(set(first)) == 50


def test_unknown_game_is_reported_with_a_suggestion() -> None:
    async def run() -> int:
        async with started_client(ScriptedServer()) as (client, _):
            with pytest.raises(UnknownGameNameError, match=r"has no game 'sudko'; did you mean 'sudoku'\?"):
                await client.start_puzzle("sudko")
            return (await client.start_puzzle("toy", "easy", 3)).seed

    assert asyncio.run(run()) == 3


def test_known_game_missing_on_the_server_raises_puzzle_start_error() -> None:
    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, _):
            with pytest.raises(PuzzleStartError, match="did not start 'tents hard 4'"):
                await client.start_puzzle(PuzzleGame.TENTS, PuzzleDifficulty.HARD, 4)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("place 1 1 1\nquit", "one line without control characters"),
        ("", "must not be empty"),
        ("  \r\n", "must not be empty"),
        ("place\x071", "one line without control characters"),
        ("x" * 5000, "at most 4096 bytes, got 5,000"),
        ("QUIT", "'quit' is not a move"),
        ("mode normal", "'mode' is not a move"),
        ("hint", "'hint' is not a move"),
        ("reset", "'reset' is not a move"),
    ],
)
def test_text_that_is_not_one_move_is_rejected_and_not_sent(action: str, message: str) -> None:
    async def run() -> list[str]:
        async with started_client(ScriptedServer()) as (client, server):
            sent = len(server.commands)
            with pytest.raises(InvalidCommandError, match=message):
                await client.send_action(action)
            return server.commands[sent:]

    assert asyncio.run(run()) == []


def test_commands_without_a_puzzle_are_rejected() -> None:
    async def run() -> None:
        server = ScriptedServer()
        async with scripted_server(server), PuzzleClient(settings(server.port)) as client:
            for command in (client.get_hint, client.show_state, client.get_stats, client.reset_puzzle):
                with pytest.raises(NoCurrentPuzzleError, match="call start_puzzle first"):
                    await command()
            await client.quit_puzzle()

    asyncio.run(run())


def test_rejected_move_is_a_result_with_the_same_board() -> None:
    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, _):
            result = await client.send_action("place 1 1 9")
            assert (result.success, result.code, result.message, result.solved) == (
                False,
                "INVALID",
                "no",
                False,
            )
            assert result.state is not None and result.state.grid_display == "[0/3] ■ seed 5"

    asyncio.run(run())


def test_unknown_command_and_server_error_are_results() -> None:
    async def crash(session: Session) -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, server):
            unknown = await client.send_action("dance")
            assert (unknown.success, unknown.code) == (False, "TEXT")
            assert unknown.message == "Unknown command 'dance'. Type 'help' for available commands."
            server.scripts["place 1 1 1"] = crash
            crashed = await client.send_action("place 1 1 1")
            assert (crashed.success, crashed.code) == (False, "NO_REPLY")
            assert crashed.message == "the server failed on 'place 1 1 1' and gave no reply"
            assert (await client.send_action("place 1 1 1")).success

    asyncio.run(run())


def test_lost_game_is_recognized_by_its_message() -> None:
    async def mine(session: Session) -> None:
        await session.send_json({"type": "result", "success": True, "code": "REVEALED", "message": "boom"})
        await session.send_json(session.observation())
        await session.send_line("GAME OVER! You hit a mine!")

    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["reveal 1 1"] = mine
            result = await client.send_action("reveal 1 1")
            assert result.success and result.game_over and not result.solved

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'{"type":"observation","game":\r\n', "not valid JSON"),
        (b'{"type":' + b"[" * 1900 + b"\r\n", "not valid JSON"),
        (b'{"type":"observation","seed":' + b"9" * 1900 + b"]\r\n", "not valid JSON"),
        (b"x" * 3000, r"a line of more than 2,048 bytes \(max_line_bytes\)"),
        (b"\xff\xfa" + b"x" * 5000, "has not ended after 4096 bytes"),
    ],
)
def test_invalid_reply_is_requested_again_on_a_new_connection(
    reply: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def garble(session: Session) -> None:
        await session.send(reply)

    async def run() -> int:
        async with started_client(ScriptedServer(), max_line_bytes=2048) as (client, server):
            server.scripts["show"] = garble
            assert (await client.show_state()).grid_display == "[0/3] ■ seed 5"
            return client.num_connections

    assert asyncio.run(run()) == 2
    assert re.search(message, caplog.text)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"seed": "seven"}, r"invalid field 'seed' in the server's 'observation': .*, got 'seven'"),
        ({"seed": 1e400}, "invalid field 'seed' in the server's 'observation'"),
        ({"difficulty": "insane\x1b[2J"}, r"invalid field 'difficulty' .*\\x1b"),
        ({"moves": [1]}, "invalid field 'moves' in the server's 'observation'"),
    ],
)
def test_reply_with_unexpected_fields_is_an_error(record: dict[str, object], message: str) -> None:
    async def send_invalid_fields(session: Session) -> None:
        await session.send_json(session.observation() | record)

    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["show"] = send_invalid_fields
            with pytest.raises(ProtocolError, match=message):
                await client.show_state()
            assert client.num_connections == 1

    asyncio.run(run())


def test_missing_hint_is_not_a_success() -> None:
    async def send_no_hint(session: Session) -> None:
        message = "No hints available. Puzzle is complete!"
        await session.send_json({"type": "result", "success": True, "code": "HINT_NONE", "message": message})

    async def run() -> None:
        async with started_client(ScriptedServer()) as (client, server):
            server.scripts["hint"] = send_no_hint
            hint = await client.get_hint()
            assert (hint.success, hint.code, hint.command) == (False, "HINT_NONE", None)
            for _ in range(HINT_LIMIT - 1):
                assert (await client.get_hint()).success
            assert (await client.get_hint()).code == "HINT_LIMIT"
            assert server.commands.count("hint") == HINT_LIMIT == 99

    asyncio.run(run())


def test_several_tasks_may_use_one_client() -> None:
    async def run() -> set[str]:
        async with started_client(ScriptedServer()) as (client, _):
            hints = await asyncio.gather(*(client.get_hint() for _ in range(20)))
            return {hint.message for hint in hints}

    assert asyncio.run(run()) == {"Try placing 1 at row 1, column 1"}
