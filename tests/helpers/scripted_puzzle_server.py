"""A puzzle server whose replies are scripted by tests: it can split packets, reject clients and disconnect.

Its game is `toy`, in which the correct moves count up; `sudoku` and `binary` start the same game.
"""

import asyncio
import contextlib
import json
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable

GREETING = bytes.fromhex("fffb01fffb03fffd03fffd18fffd1ffffc22")
WILL_LINEMODE = bytes.fromhex("fffb22")
DO_LINEMODE = bytes.fromhex("fffd22")
DONT_LINEMODE = bytes.fromhex("fffe22")
MENU = "\n==========\r\n  1) Toy - counts\r\n==========\n\r\n"
UNKNOWN = "Unknown command. Type 'help' to see available options."
FULL = b"Server is at maximum capacity. Please try again later.\r\n"


class Session:
    """A connection and the state of its game."""

    def __init__(self, server: "ScriptedServer", reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.server, self.reader, self.writer = server, reader, writer
        self.game: str | None = None
        self.seed, self.moves, self.hints, self.json = 0, 0, 0, False
        self.start_time = asyncio.get_running_loop().time()
        self.draws = random.Random(len(server.sessions))

    async def run(self) -> None:
        """Greet the client, negotiate line mode, and answer commands until the client disconnects."""
        first = await self.reader.readexactly(10)
        self.server.first_bytes.append(first)
        await self.send(GREETING)
        await self.send_text(MENU)
        assert await self.reader.readexactly(3) == WILL_LINEMODE
        await self.send(DO_LINEMODE if self.server.line_mode else DONT_LINEMODE)
        while line := (await self.reader.readline()).decode():
            command = line.strip()
            self.server.commands.append(command)
            if asyncio.get_running_loop().time() - self.start_time > self.server.max_connection_age:
                self.writer.transport.abort()
                return
            if not self.server.line_mode:
                await self.send_text(f"{command}\r\n")
            scripted = self.server.scripts.pop(command, None) or self.server.always.get(command)
            if scripted is not None:
                await scripted(self)
            else:
                await self.answer(command.split())
            if not self.server.line_mode:
                await self.send_text("> ")

    async def answer(self, command: list[str]) -> None:
        """Send the reply to a command that has no script."""
        match self.game, command:
            case None, ["toy" | "sudoku" | "binary" as name, *rest]:
                self.game, self.seed = name, int(rest[1]) if len(rest) > 1 else 7
                self.moves = self.hints = 0
                if self.json:
                    await self.send_json(self.observation())
                else:
                    await self.send_line("TOY - EASY MODE")
            case None, _:
                await self.send_line(UNKNOWN)
            case _, ["menu"]:
                self.game = None
                await self.send_text("Returning to main menu...\n\r\n" + MENU)
            case _, ["mode", "json"]:
                self.json = True
                await self.send_json({"type": "mode", "mode": "json", "success": True})
            case _, ["show"]:
                await self.send_json(self.observation())
            case _, ["hint"]:
                self.hints += 1
                await self.send_line(f"Hint: Try placing {self.moves + 1} at row 1, column {self.moves + 1}")
            case _, ["stats"]:
                await self.send_json(self.observation() | {"type": "stats"})
            case _, ["place", "1", column, number] if column == number == str(self.moves + 1):
                self.moves += 1
                state = {name: value for name, value in self.observation().items() if name != "grid_display"}
                await self.send_json(
                    {"type": "result", "success": True, "code": "PLACED", "message": "ok", "state": state}
                )
                await self.send_json(self.observation())
                if self.moves == self.server.goal:
                    await self.send_json(
                        {
                            "type": "complete",
                            "success": True,
                            "game": "Toy",
                            "moves": self.moves,
                            "hints_used": 0,
                        }
                    )
            case _, ["solve", *_]:
                self.moves = self.server.goal
                await self.send_json(self.observation())
                await self.send_json(
                    {"type": "complete", "success": True, "game": "Toy", "moves": self.moves}
                )
            case _, ["place", *_]:
                state = {name: value for name, value in self.observation().items() if name != "grid_display"}
                await self.send_json(
                    {"type": "result", "success": False, "code": "INVALID", "message": "no", "state": state}
                )
            case _:
                await self.send_line(f"Unknown command '{command[0]}'. Type 'help' for available commands.")

    def observation(self) -> dict[str, object]:
        """Return the current state of the game."""
        return {
            "type": "observation",
            "game": "Toy",
            "difficulty": "easy",
            "seed": self.seed,
            "moves": self.moves,
            "hints_used": self.hints,
            "hints_remaining": 100 - self.hints,
            "optimal_steps": self.server.goal,
            "is_complete": self.moves == self.server.goal,
            "grid": None,
            "grid_display": f"[{self.moves}/{self.server.goal}] ■ seed {self.seed}",
        }

    async def send_json(self, record: dict[str, object]) -> None:
        await self.send_line(json.dumps(record, separators=(",", ":"), ensure_ascii=False))

    async def send_line(self, text: str) -> None:
        await self.send_text(f"{text}\r\n")

    async def send_text(self, text: str) -> None:
        # Telnet doubles the byte 255 in text, but UTF-8 text does not contain it.
        await self.send(text.encode())

    async def send(self, data: bytes) -> None:
        """Send data in one packet, or in packets of three bytes if `split` is set."""
        pieces = [data]
        if self.server.split:
            pieces = [data[start : start + 3] for start in range(0, len(data), 3)]
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if self.server.split:
                await asyncio.sleep(0)


class ScriptedServer:
    """A server on a free port. `scripts` replaces the next reply to a command, and `always` all replies."""

    def __init__(
        self,
        *,
        line_mode: bool = True,
        split: bool = False,
        goal: int = 3,
        full: int = 0,
        max_connection_age: float = math.inf,
    ) -> None:
        """Create a server that closes connections after `max_connection_age` seconds."""
        self.line_mode, self.split, self.goal, self.full = line_mode, split, goal, full
        self.max_connection_age = max_connection_age
        self.scripts: dict[str, Callable[[Session], Awaitable[None]]] = {}
        self.always: dict[str, Callable[[Session], Awaitable[None]]] = {}
        self.commands: list[str] = []
        self.first_bytes: list[bytes] = []
        self.sessions: list[Session] = []
        self.num_rejected = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            if self.full:
                self.full -= 1
                self.num_rejected += 1
                await reader.read(10)
                writer.write(FULL)
                await writer.drain()
                return
            self.sessions.append(session := Session(self, reader, writer))
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await session.run()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def scripted_server(server: ScriptedServer) -> AsyncIterator[ScriptedServer]:
    """Run the server; its connections are aborted at the end."""
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(server.serve(reader, writer))
        tasks[task] = writer
        task.add_done_callback(tasks.pop)

    listening = await asyncio.start_server(begin, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        pending = tuple(tasks)
        for task, writer in tasks.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await listening.wait_closed()
