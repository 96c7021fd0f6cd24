"""The processes of one training, on one machine or on many: joining, telling one another, losing one.

They speak over plain connections to the first process. How work is shared out among them is in
`phalanx.training.ppo.parallel`.
"""

import contextlib
import dataclasses
import json
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree, Shaped, UInt8

_HELLO = "phalanx-processes-1"
_MOST = 4096
"""Bytes of a greeting, at most."""
_HEADER = struct.Struct("<QQ")
"""The number of an exchange, and the bytes that one process tells in it."""
_SILENCE = 60
"""Seconds after which a machine that does not answer counts as lost; a process that is merely slow, or has
been stopped for a while, is waited for."""
LOST = 75
"""Exit code of a training that lost one of its processes."""


class ProcessLostError(RuntimeError):
    """One of the processes has gone away; the training can go on from its last checkpoint."""


@dataclasses.dataclass(eq=False)
class Processes:
    """This process among the others: connected to all of them in the first, to the first in the others."""

    rank: int
    """Which of them this one is."""
    count: int
    peers: dict[int, socket.socket] = dataclasses.field(default_factory=dict, repr=False)
    exchanges: int = 0

    @classmethod
    def join(cls, coordinator: str, count: int, rank: int, patience: float = 300) -> "Processes":
        """The first listens at `coordinator`, the others come to it; all wait until all are there.

        They trust one another: keep the port off networks where others could reach it.
        """
        if not 0 <= rank < count:
            raise ValueError(f"the process id must be between 0 and {count - 1}, got {rank}")
        host, colon, port = coordinator.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"the coordinator must be HOST:PORT, got {coordinator!r}")
        address, until = (host.strip("[]"), int(port)), time.monotonic() + patience
        return cls(rank, count, (_listen if rank == 0 else _come)(address, count, rank, until))

    def close(self) -> None:
        """Leave the others, who notice it at their next exchange."""
        for peer in self.peers.values():
            peer.close()

    def gather(self, mine: Shaped[np.ndarray, "..."], axis: int = 0) -> Shaped[np.ndarray, "..."]:
        """The arrays of all processes, one behind the other along an axis; all must have one shape."""
        return self.gather_all([mine], [axis])[0]

    def gather_all(
        self, mine: Sequence[Shaped[np.ndarray, "..."]], axes: Sequence[int]
    ) -> list[Shaped[np.ndarray, "..."]]:
        """Several arrays, each along its own axis, in one exchange: whoever is ahead waits once."""
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in mine]
        told = self._exchange(flat[0] if len(flat) == 1 else np.concatenate(flat))
        ends = np.cumsum([len(array) for array in flat]).tolist()
        found = []
        for array, own, end, axis in zip(mine, flat, ends, axes, strict=True):
            parts = np.ascontiguousarray(told[:, end - len(own) : end]).reshape(-1).view(array.dtype)
            whole = (self.count * array.shape[0], *array.shape[1:])
            # Along the first axis they lie behind one another as they came.
            parts = parts.reshape(whole)
            found.append(parts if axis == 0 else np.concatenate(np.split(parts, self.count), axis))
        return found

    def exchange(self, mine: bytes) -> list[bytes]:
        """What each process has to tell, in their order; all must tell equally much."""
        return [part.tobytes() for part in self._exchange(np.frombuffer(mine, np.uint8))]

    def _exchange(self, mine: UInt8[np.ndarray, " bytes"]) -> UInt8[np.ndarray, "processes bytes"]:
        self.exchanges += 1
        told = np.empty((self.count, len(mine)), np.uint8)
        told[self.rank] = mine
        message = [memoryview(_HEADER.pack(self.exchanges, len(mine))), mine.data]
        parts = {rank: row.data for rank, row in enumerate(told) if rank != self.rank}
        if self.rank:
            self._swap({0: _Line(self.peers[0], message, [*parts.values()], self.exchanges, len(mine))})
            return told
        # The others' parts come while the first process's own goes to them; then it hands on what it got.
        self._swap(
            {
                rank: _Line(peer, list(message), [parts[rank]], self.exchanges, len(mine))
                for rank, peer in self.peers.items()
            }
        )
        for rank, peer in self.peers.items():
            with self._losing(rank):
                for other, part in parts.items():
                    if other != rank:
                        peer.sendall(part)
        return told

    def _swap(self, lines: "dict[int, _Line]") -> None:
        """Send and receive at once: of two that send all and then read, neither might come to reading."""
        # First of all each says what it is at, so that those who differ both learn it.
        ready = {line.peer.fileno(): select.POLLOUT for line in lines.values()}
        while lines:
            for rank, line in list(lines.items()):
                # What was ready may be so no more, which is no loss.
                with self._losing(rank), contextlib.suppress(BlockingIOError):
                    line.go_on(rank, ready.get(line.peer.fileno(), 0))
                if not line.events:
                    del lines[rank]
            waiting = select.poll()
            for line in lines.values():
                waiting.register(line.peer, line.events)
            ready = dict(waiting.poll()) if lines else {}

    @contextlib.contextmanager
    def _losing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            raise ProcessLostError(f"process {rank} was lost: {error}") from error


class _Line:
    """One connection during an exchange: what is still to be sent and to be received."""

    def __init__(
        self,
        peer: socket.socket,
        sending: list[memoryview],
        receiving: list[memoryview],
        number: int,
        size: int,
    ) -> None:
        """A header comes before what is received: the same number of the exchange, and as many bytes."""
        self.peer, self._sending = peer, sending
        self._header = bytearray(_HEADER.size)
        self._receiving = [memoryview(self._header), *receiving]
        self._unread, self._expected = len(self._receiving), (number, size)

    @property
    def events(self) -> int:
        """What the connection must be ready for; nothing at the end."""
        return select.POLLIN * bool(self._receiving) | select.POLLOUT * bool(self._sending)

    def go_on(self, rank: int, events: int) -> None:
        """Send and receive as much as the connection takes and has, without waiting."""
        if events & ~select.POLLOUT and self._receiving:
            got = self.peer.recvmsg_into(self._receiving, 0, socket.MSG_DONTWAIT)[0]
            if not got:
                raise EOFError("it closed the connection")
            _advance(self._receiving, got)
            self._check(rank)
        if events & ~select.POLLIN and self._sending:
            _advance(self._sending, self.peer.sendmsg(self._sending, (), socket.MSG_DONTWAIT))

    def _check(self, rank: int) -> None:
        if len(self._receiving) == self._unread:
            return  # the header is not there yet
        number, told = _HEADER.unpack(self._header)
        if (number, told) != self._expected:
            raise ProcessLostError(
                f"process {rank} does something else: it tells {told} bytes in exchange {number}, and "
                f"{self._expected[1]} in exchange {self._expected[0]} were expected; start all with the same "
                "command"
            )


def _advance(views: list[memoryview], done: int) -> None:
    """Take so many bytes off the front."""
    while views and done >= len(views[0]):
        done -= len(views.pop(0))
    if done:
        views[0] = views[0][done:]


def _listen(address: tuple[str, int], count: int, rank: int, until: float) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with socket.create_server(address) as server:
        while len(peers) < count - 1:
            server.settimeout(max(until - time.monotonic(), 0.01))
            try:
                peer, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, count)) - peers.keys())
                raise ValueError(
                    f"processes {', '.join(map(str, missing))} of {count} did not come to "
                    f"{address[0]}:{address[1]} in time"
                ) from None
            other = _greeted(peer, count)
            if other is None or other in peers:
                peer.close()
                continue
            peers[other] = peer
    for peer in peers.values():
        peer.sendall(b"!")
        _settle(peer)
    return peers


def _greeted(peer: socket.socket, count: int) -> int | None:
    """The number of a process that belongs here; None for anybody else."""
    peer.settimeout(10)
    try:
        (size,) = struct.unpack("<I", _read(peer, 4))
        told = json.loads(_read(peer, size)) if size <= _MOST else None
    except (OSError, EOFError, ValueError):
        return None
    if not isinstance(told, dict) or told.get("hello") != _HELLO or told.get("count") != count:
        return None
    rank = told.get("rank")
    return rank if type(rank) is int and 0 < rank < count else None


def _come(address: tuple[str, int], count: int, rank: int, until: float) -> dict[int, socket.socket]:
    greeting = json.dumps({"hello": _HELLO, "count": count, "rank": rank}).encode()
    while True:
        try:
            first = socket.create_connection(address, timeout=10)
            first.sendall(struct.pack("<I", len(greeting)) + greeting)
            first.settimeout(max(until - time.monotonic(), 0.01))
            _read(first, 1)
        except (OSError, EOFError) as error:
            if time.monotonic() > until:
                raise ValueError(
                    f"cannot join the first process at {address[0]}:{address[1]}: {error}"
                ) from error
            time.sleep(0.2)
            continue
        _settle(first)
        return {0: first}


def _settle(peer: socket.socket) -> None:
    """From here on only a machine that is gone is given up."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _SILENCE // 2),
        ("TCP_KEEPINTVL", _SILENCE // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * _SILENCE),
    ):
        if hasattr(socket, option):  # not every system has them all
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read(peer: socket.socket, size: int) -> bytes:
    whole = bytearray(size)
    view, filled = memoryview(whole), 0
    while filled < size:
        got = peer.recv_into(view[filled:])
        if not got:
            raise EOFError("it closed the connection")
        filled += got
    return bytes(whole)


_joined = Processes(0, 1)


def connect(coordinator: str, num_processes: int, process_id: int) -> None:
    """Make this process one of several that train together."""
    global _joined
    if _joined.count > 1:
        raise ValueError("this process has joined others already")
    _joined = Processes.join(coordinator, num_processes, process_id)


def joined() -> Processes:
    """The processes that train together: this one, unless it has joined others."""
    return _joined


def is_first_process() -> bool:
    """Whether this process writes the run's files."""
    return _joined.rank == 0


def wait_for_all() -> None:
    """Go on only when every process has come here."""
    _joined.exchange(b"")


def agree(what: str, digest: str) -> None:
    """Refuse processes that have something else; `digest` is equally long in all."""
    told = _joined.exchange(digest.encode())
    for other, theirs in enumerate(told):
        if theirs != told[0]:
            raise ValueError(f"process {other} has another {what} than process 0; start all with the same")


def any_process(flags: Sequence[bool]) -> list[bool]:
    """Which flags are up in at least one process; all of them must ask at the same time."""
    return np.any(_joined.gather(np.asarray(flags)[None]), axis=0).tolist()


def local(tree: PyTree) -> PyTree:
    """Return arrays on a single device, where every device has a copy of them.

    Arrays that are distributed over the devices are left as they are: no device has all of their data.
    """

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return leaf

    return jax.tree.map(copy, tree)
