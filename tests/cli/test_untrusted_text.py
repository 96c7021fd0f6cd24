"""Text of servers, tasks, files and runs is escaped in the terminal."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.puzzles.server_client import episode_seed
from tests.helpers.scripted_puzzle_server import ScriptedServer, Session, scripted_server

HOSTILE = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b2J",
    "direction": "\u202egnp.exe",
    "markup": "[link=http://evil.example]click[/link]",
    "unbalanced markup": "[/x]",
}


def is_harmless(text: str) -> bool:
    """Return whether a text contains no control characters."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


@contextlib.contextmanager
def serving(server: ScriptedServer) -> Iterator[ScriptedServer]:
    """Run the server in its own thread, because the commands run their own event loop."""
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with scripted_server(server):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield server
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_of_a_server_is_escaped(text: str, phalanx: Callable[..., Any]) -> None:
    async def name(session: Session) -> None:
        session.game = "toy"
        session.json = True
        await session.send_json(
            session.observation() | {"game": f"Toy {text}", "grid_display": f"board {text}"}
        )

    async def hint(session: Session) -> None:
        await session.send_line(f"Hint: {text} do nothing")

    server = ScriptedServer()
    server.scripts |= {"toy easy 1": name, "hint": hint}
    with serving(server):
        options = ("--seed", 1, "--pause", 0, "--host", "127.0.0.1", "--port", server.port)
        result = phalanx("puzzles", "play", "toy", *options)
    assert result.code == 1, result.err
    assert "Toy" in result.out and "board" in result.out and "stuck after 0 moves" in result.out
    assert is_harmless(result.out) and is_harmless(result.err)
    if "markup" in text or text.startswith("["):
        assert text in result.out.replace("\n", "")


def test_greeting_of_a_server_is_escaped(phalanx: Callable[..., Any]) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(f"maximum capacity {HOSTILE['clipboard']}\r\n".encode())
        await writer.drain()
        writer.close()

    server = ScriptedServer()
    server.serve = refuse  # type: ignore[method-assign]
    with serving(server):
        result = phalanx("puzzles", "play", "toy", "--host", "127.0.0.1", "--port", server.port)
    assert result.code == 2 and "maximum capacity" in result.err
    assert is_harmless(result.err)


@pytest.mark.parametrize(
    "record",
    [
        {"seed": "seven\x1b[2J"},
        {"difficulty": "\x1b]0;x\x07"},
        {"moves": int("9" * 400)},
        {"grid": json.loads("[" * 300 + "]" * 300)},
    ],
    ids=["seed", "difficulty", "huge number", "deep grid"],
)
def test_no_reply_of_a_server_causes_a_traceback(record: dict[str, Any], phalanx: Callable[..., Any]) -> None:
    async def strange(session: Session) -> None:
        session.game, session.json = "toy", True
        await session.send_json(session.observation() | record)

    server = ScriptedServer()
    server.scripts["toy easy 1"] = strange
    with serving(server):
        options = ("--seed", 1, "--pause", 0, "--host", "127.0.0.1", "--port", server.port)
        result = phalanx("puzzles", "play", "toy", *options)
    assert result.code in (1, 2) and "Traceback" not in result.err
    assert is_harmless(result.out) and is_harmless(result.err)


def test_silent_server_is_retried_until_the_deadline(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    async def hang_up(session: Session) -> None:
        session.writer.transport.abort()

    async def silence(session: Session) -> None:
        await asyncio.sleep(1.0)

    server, first = ScriptedServer(), f"sudoku easy {episode_seed(0, 0)}"
    server.scripts[first], server.always[first] = hang_up, silence
    with serving(server):
        where = ("--host", "127.0.0.1", "--port", server.port, "--deadline", 0.5)
        result = phalanx("puzzles", "collect", "--episodes", 1, "--out", tmp_path / "s.jsonl", *where)
    found, gave_up = result.err.splitlines()
    assert result.code == 2 and "attempt 2 in" in found
    assert f"did not answer '{first}'" in gave_up and "after 2 attempt(s) in 0.5 s" in gave_up


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_names_of_tasks_and_files_are_escaped(text: str, tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    name = text.replace("/", "∕")
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    (tmp_path / f"{name}.json").write_text(json.dumps({"train": [pair], "test": [pair]}))
    listed = phalanx("arc", "list", tmp_path)
    assert listed.code == 0 and "1 task" in listed.out
    shown = phalanx("arc", "show", name, "--source", tmp_path)
    assert shown.code == 0, shown.err
    missing = phalanx("arc", "show", f"{name}2", "--source", tmp_path)
    assert missing.code == 2
    for text_shown in (listed.out, shown.out, missing.err):
        assert is_harmless(text_shown)
