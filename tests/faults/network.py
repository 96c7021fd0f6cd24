"""A simulated network and clock without sockets or waiting, for the fault simulator.

Connections, waits and time come from a simulated event loop.
"""

import asyncio
import collections
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.faults.simulator import Killed, World

Result = TypeVar("Result")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_LATENCY = 0.002
_HOUR = 3600.0


class Deadlock(Exception):
    """Raised if all tasks wait and no event is pending."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only while all tasks wait, and whose connections lead to one server.

    Callbacks run in the order of their times, so the seed determines everything.
    """

    def __init__(self, world: World, serve: Serve, *, faults: int) -> None:
        """Create the loop; `faults` is the maximum number of faults."""
        super().__init__()
        self.world, self.chance = world, world.chance
        self.faults_left = faults
        self.jumped = 0.0
        """Seconds by which the clock has jumped, as after suspending the machine."""
        self.open_ends: set[_End] = set()
        self.ending = False
        """True while the tasks are being canceled."""
        self.refusals = 0
        """Number of connections that will be refused."""
        self._serve = serve
        self._now = 1000.0 + self.chance.random()
        self._slow = self.chance.choice([0.0, 0.0, 0.1, 3.0])
        self._selector = _Waiting(self)
        self.served: list[asyncio.Task[None]] = []
        self.complaints: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, complaint: self.complaints.append(complaint))

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        """Run a function at once that a real loop would run in a thread."""
        # A task may wait once more on its way out, which a killed process cannot.
        if self.world.dead and not self.ending:
            raise Killed
        if seconds is None:
            raise Deadlock("everybody waits, and nobody is left to answer")
        self._now += max(seconds, 0.0)
        if self.fault(0.002, "clock"):
            jump = self.chance.choice([1.0, 20.0, 100.0, _HOUR])
            self.jump(jump)
            self.world.wall_offset += self.chance.choice([-1.0, 0.0, 1.0]) * self.chance.choice(
                [1.0, 86400.0]
            )
            self.world.told.append(f"the clock jumps by {jump:.0f} s, the wall clock to another time")

    def fault(self, rate: float, name: str) -> bool:
        """Return whether a fault occurs here, and log it."""
        if not self.faults_left or self.world.dead or self.chance.random() >= rate:
            return False
        self.faults_left -= 1
        if name != "clock":
            self.world.told.append(f"network, {self._now - 1000.0:.3f} s: {name}")
        return True

    def count(self, name: str, about: str) -> None:
        """Count a call of the program, at which its process may end."""
        if not self.world.dead:
            self.world.call(name, about, can_fail=False)

    @property
    def connections(self) -> "list[_End]":
        """List the open connections of clients."""
        return [end for end in self.open_ends if end.is_client]

    def check_nothing_is_left(self) -> None:
        """Check that all connections are closed, all tasks have ended and no error was ignored."""
        assert not self.connections, f"{len(self.connections)} connections are left open"
        ours = asyncio.all_tasks(self) - set(self.served)
        assert not ours, f"tasks are left: {ours}"
        assert not self.complaints, f"the loop complains: {self.complaints}"

    def jump(self, seconds: float) -> None:
        """Advance the clock without running anything."""
        self.jumped += seconds
        self._now += seconds

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **others: Any
    ) -> tuple[asyncio.Transport, Any]:
        self.count("connect", f"{host}:{port}")
        await asyncio.sleep(self.delay())
        self.refusals, refused = max(self.refusals - 1, 0), self.refusals > 0
        if refused or self.fault(0.15, "a connection is refused"):
            raise ConnectionRefusedError(111, "Connection refused")
        if self.fault(0.05, "a connection is never answered"):
            await self.create_future()
        if self.served and self.fault(0.03, "the name server fails"):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        here, there = _End(self, client=True), _End(self, client=False)
        here.peer, there.peer = there, here
        reader = asyncio.StreamReader(loop=self)
        server = asyncio.StreamReaderProtocol(reader, loop=self)
        there.join(server)
        writer = asyncio.StreamWriter(there, server, reader, self)
        self.served.append(self.create_task(self._answer(reader, writer)))
        protocol = protocol_factory()
        here.join(protocol)
        return here, protocol

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What a client does that is killed or cut off in the middle is no fault of the server's.
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, AssertionError):
            writer.transport.abort()

    def delay(self) -> float:
        """Return the delay of a packet. Replies of a slow server sometimes exceed the timeout."""
        slow = self._slow if self.faults_left else 0.0
        return _LATENCY * self.chance.random() + (self.chance.expovariate(1 / slow) if slow else 0.0)

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: all events are callbacks."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks."""


class _Waiting:
    """Selector of the base class."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.pass_time(timeout)
        return []


class _End(asyncio.Transport):
    """One end of a connection. Written bytes arrive at the other end in pieces, late or never."""

    peer: "_End"

    def __init__(self, loop: SimulatedLoop, *, client: bool) -> None:
        super().__init__()
        self._loop, self.is_client = loop, client
        self._protocol: Any = None
        self._closing = self._deaf = False
        self._due = 0.0
        self._under_way: collections.deque[Callable[[], None]] = collections.deque()
        loop.open_ends.add(self)

    def join(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> Any:
        return self._protocol

    def write(self, data: Any) -> None:
        loop = self._loop
        if self.is_client:
            loop.count("send", f"{len(data)} bytes")
        if self._closing or self._deaf:
            return None
        data = bytes(data)
        while data:
            size = loop.chance.choice([len(data), loop.chance.randrange(1, len(data) + 1)])
            self._deliver(data[:size])
            data = data[size:]
            if loop.fault(0.01, "a connection is cut in the middle of a line"):
                return self.cut()
            if loop.fault(0.005, "a connection is half open: neither side hears the other"):
                return self.deafen()
        return None

    def cut(self) -> None:
        """Close both ends; bytes in transit are lost."""
        self._under_way.clear()
        self._later(lambda: self._lose(_reset()))
        self.peer._lose(_reset())

    def deafen(self) -> None:
        """Stop delivering bytes in both directions without closing the connection."""
        self._deaf = self.peer._deaf = True

    def _deliver(self, piece: bytes) -> None:
        self._later(lambda: self.peer._receive(piece))

    def _later(self, what: Callable[[], None]) -> None:
        """Deliver packets in the order in which they were sent."""
        self._due = max(self._loop.time() + self._loop.delay(), self._due)
        self._under_way.append(what)
        self._loop.call_at(self._due, self._arrive)

    def _arrive(self) -> None:
        if self._under_way:
            self._under_way.popleft()()

    def _receive(self, piece: bytes) -> None:
        if self.is_client:
            self._loop.count("receive", f"{len(piece)} bytes")
        if not self._closing and not self._deaf:
            self._protocol.data_received(piece)

    def _hang_up(self) -> None:
        if not self._closing and not self._deaf:
            self._protocol.eof_received()

    def close(self) -> None:
        self._end(self.peer._hang_up)

    def abort(self) -> None:
        self._end(lambda: self.peer._lose(_reset()))

    def _end(self, tell: Callable[[], None]) -> None:
        if not self._closing:
            if not self._deaf:
                self._later(tell)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.open_ends.discard(self)
            self._loop.call_soon(self._protocol.connection_lost, error)

    def vanish(self) -> None:
        """Close the connection when the loop ends."""
        self._closing = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        """Ignore flow control, because packets are small."""

    def resume_reading(self) -> None:
        """Ignore flow control."""


def _reset() -> ConnectionResetError:
    return ConnectionResetError(104, "Connection reset by peer")


def run(
    world: World,
    serve: Serve,
    program: Callable[[SimulatedLoop], Coroutine[Any, Any, Result]],
    *,
    faults: int = 12,
) -> Result:
    """Run a program and its server in one loop, as `asyncio.run` does, and check that nothing is left open.

    If the simulated process ends, its connections and tasks end too, and `Killed` is raised.
    """
    with simulated(world, serve, faults=faults) as loop:
        result = loop.run_until_complete(program(loop))
        if world.dead:
            raise Killed
        loop.check_nothing_is_left()
        return result


@contextmanager
def simulated(world: World, serve: Serve, *, faults: int) -> Iterator[SimulatedLoop]:
    """Create a loop for several calls; what is left in it is canceled at the end."""
    loop = SimulatedLoop(world, serve, faults=faults)
    try:
        with _current(loop), _warnings_told(world):
            yield loop
    finally:
        with _current(loop):
            _bury(loop)
        for end in tuple(loop.open_ends):
            end.vanish()
        loop.close()


@contextmanager
def _current(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)


@contextmanager
def _warnings_told(world: World) -> Iterator[None]:
    """Record the warnings of the client in the log of the world."""

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.told.append(f"the client: {record.getMessage()}")

    logger, telling = logging.getLogger("phalanx.puzzles.server_client"), Telling()
    logger.addHandler(telling)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(telling)


def _bury(loop: SimulatedLoop) -> None:
    """Cancel all tasks. In a dead process, nothing that they still do has an effect."""
    loop.faults_left, loop.ending = 0, True

    async def ended(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_asyncgens()

    for _ in range(100):
        left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
        try:
            return loop.run_until_complete(ended(left))
        except (Killed, Deadlock):
            continue
    raise AssertionError(f"tasks that do not end: {asyncio.all_tasks(loop)}")
