"""The processes of one training, on one machine or on many: joining, telling one another, losing one.

They speak over plain connections to the first process. How work is shared out among them is in
`phalanx.agents.ppo.parallel`.
"""

import contextlib
import dataclasses
import json
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import PyTree, Shaped

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
        parts = self.exchange(np.ascontiguousarray(mine).tobytes())
        return np.concatenate([np.frombuffer(part, mine.dtype).reshape(mine.shape) for part in parts], axis)

    def exchange(self, mine: bytes) -> list[bytes]:
        """What each process has to tell, in their order; all must tell equally much."""
        self.exchanges += 1
        header = _HEADER.pack(self.exchanges, len(mine))
        if self.rank:
            self._send(0, header + mine)
            whole, size = self._receive(0, len(mine) * self.count), len(mine)
            return [whole[number * size : (number + 1) * size] for number in range(self.count)]
        parts = [mine] + [self._receive(rank, len(mine)) for rank in range(1, self.count)]
        told = header + b"".join(parts)
        for rank in range(1, self.count):
            self._send(rank, told)
        return parts

    def _send(self, rank: int, message: bytes) -> None:
        with self._losing(rank):
            self.peers[rank].sendall(message)

    def _receive(self, rank: int, size: int) -> bytes:
        with self._losing(rank):
            number, told = _HEADER.unpack(_read(self.peers[rank], _HEADER.size))
            expected = size if not self.rank else size // self.count
            if (number, told) != (self.exchanges, expected):
                raise ProcessLostError(
                    f"process {rank} does something else: it tells {told} bytes in exchange {number}, and "
                    f"{expected} in exchange {self.exchanges} were expected; start all with the same command"
                )
            return _read(self.peers[rank], size)

    @contextlib.contextmanager
    def _losing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            raise ProcessLostError(f"process {rank} was lost: {error}") from error


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
    """This process's copy of arrays that are the same on every device."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)
