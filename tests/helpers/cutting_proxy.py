"""A TCP proxy that closes connections in the middle of a reply, to test how clients recover."""

import asyncio
import contextlib
import random


class CuttingProxy:
    """Forwards bytes between clients and a server, and closes connections in the middle of a reply.

    The client receives the bytes before the cut.

    Args:
        port: Port of the server.
        cuts: Number of connections to close.
        every: Mean number of bytes from the server between two cuts.
        seed: Seed of the positions of the cuts.
    """

    def __init__(self, port: int, *, cuts: int, every: int, seed: int) -> None:
        self.server_port, self.cuts, self.every = port, cuts, every
        self.cut = 0
        self.bytes_passed = 0
        self.port = 0
        self._draws = random.Random(seed)
        self._left = self._next()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    async def __aenter__(self) -> "CuttingProxy":
        self._listening = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listening.wait_closed()

    def _next(self) -> int:
        return self._draws.randint(self.every // 2, self.every * 3 // 2)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            return
        upward = asyncio.create_task(_copy(reader, back_writer))
        try:
            while data := await back_reader.read(1 << 16):
                self._left -= len(data)
                self.bytes_passed += len(data)
                if self._left <= 0 and self.cut < self.cuts:
                    self.cut += 1
                    self._left = self._next()
                    writer.write(data[: self._draws.randrange(len(data))])
                    return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            # Close both ends before waiting, because this task may be canceled while it waits.
            upward.cancel()
            writer.close()
            back_writer.close()
            await asyncio.gather(
                upward, writer.wait_closed(), back_writer.wait_closed(), return_exceptions=True
            )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
