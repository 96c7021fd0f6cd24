"""TCP connections between the processes of a training run, which may run on several machines.

`ProcessGroup` sends bytes and NumPy arrays between processes and does not depend on JAX. Algorithms call the
methods of `DeviceMesh`, which uses a `ProcessGroup` and also handles the devices of each process.
"""

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Shaped, UInt8

_PROTOCOL = b"PHX2"
"""First bytes of a connection. They are followed by the number of processes and the sender's rank."""
_MAX_DISCARDED_BYTES = 1 << 20
_PAIR = struct.Struct("<QQ")
"""Format of two integers. In the header of a message, these are the number of exchanges so far, including
this one, and the number of bytes that each process sends in this exchange. Both must be the same in all
processes."""
_TIMEOUT_SECONDS = 60
"""Number of seconds without a response after which a machine is considered lost. The operating system
responds to keep-alive probes even if the process is slow or suspended."""
EXIT_CODE_PROCESS_LOST = 75
"""Exit code of a process that lost the connection to another process of the training run."""


class ProcessLostError(RuntimeError):
    """Raised if the connection to another process is lost, or if the processes are out of step.

    The run can be resumed from its last checkpoint.
    """


@dataclasses.dataclass(eq=False)
class ProcessGroup:
    """Connections of this process to the other processes of a training run.

    In an exchange, each process sends data to all other processes and receives their data. The data is passed
    on by the first process, to which every other process is connected. All processes must call the same
    methods in the same order.
    """

    rank: int
    """Index of this process. The first process (rank 0) writes the run's files."""
    size: int
    """Number of processes."""
    peers: dict[int, socket.socket] = dataclasses.field(default_factory=dict, repr=False)
    """Connections by the rank of the process at the other end. The first process is connected to all others.
    Every other process is connected only to the first process."""
    num_exchanges: int = 0
    """Number of exchanges so far. Every exchange checks that this number is the same in all processes."""

    @classmethod
    def join(cls, coordinator: str, size: int, rank: int, timeout: float = 300) -> "ProcessGroup":
        """Connect all processes and wait until all of them are connected.

        Connections are not authenticated, so machines that do not take part in the run must not be able to
        reach the port.

        Args:
            coordinator: Address `HOST:PORT` at which the first process listens.
            size: Number of processes.
            rank: Index of this process, counted from 0.
            timeout: Maximum number of seconds to wait for the other processes.
        """
        if not 0 <= rank < size:
            raise ValueError(f"the process id must be between 0 and {size - 1}, got {rank}")
        host, colon, port = coordinator.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"the coordinator must be HOST:PORT, got {coordinator!r}")
        address, deadline = (host.strip("[]"), int(port)), time.monotonic() + timeout
        if rank == 0:
            return cls(rank, size, _accept_others(address, size, deadline))
        return cls(rank, size, {0: _connect_to_first(address, size, rank, deadline)})

    def close(self) -> None:
        """Close the connections. The other processes raise `ProcessLostError` at their next exchange."""
        for peer in self.peers.values():
            peer.close()

    def gather(self, arrays: Sequence[Shaped[np.ndarray, "..."]]) -> list[Shaped[np.ndarray, "..."]]:
        """Concatenate the corresponding arrays of all processes along axis 0, in order of rank.

        All processes must pass arrays of the same shapes and types. All arrays are sent in a single exchange.
        """
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        received = self._exchange(flat[0] if len(flat) == 1 else np.concatenate(flat))
        ends = np.cumsum([len(array) for array in flat]).tolist()
        gathered = []
        for array, data, end in zip(arrays, flat, ends, strict=True):
            parts = np.ascontiguousarray(received[:, end - len(data) : end]).reshape(-1).view(array.dtype)
            gathered.append(parts.reshape(self.size * array.shape[0], *array.shape[1:]))
        return gathered

    def exchange(self, data: bytes) -> list[bytes]:
        """Send data to all other processes, and return the data of all processes, including this one.

        The result is in order of rank. All processes must send the same number of bytes.
        """
        return [row.tobytes() for row in self._exchange(np.frombuffer(data, np.uint8))]

    def _exchange(self, data: UInt8[np.ndarray, " bytes"]) -> UInt8[np.ndarray, "processes bytes"]:
        self.num_exchanges += 1
        header = self.num_exchanges, len(data)
        received = np.empty((self.size, len(data)), np.uint8)
        received[self.rank] = data
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank, peer in self.peers.items():
            with self._raise_if_lost(rank):
                # Headers are sent before anything is read, so that both sides notice if they are out of step.
                peer.sendall(_PAIR.pack(*header))
        senders = [_send_in_thread(peer, data.data) for peer in self.peers.values()]
        for rank, peer in self.peers.items():
            with self._raise_if_lost(rank):
                number, size = _PAIR.unpack(_receive(peer, _PAIR.size))
                if (number, size) != header:
                    # Closing a connection with unread data resets it, and the other process might not get to
                    # read the header that was sent to it.
                    with contextlib.suppress(OSError, EOFError):
                        _receive(peer, min(size, _MAX_DISCARDED_BYTES))
                    raise ProcessLostError(
                        f"process {rank} is out of step: it sends {size} bytes in exchange {number}, but "
                        f"{header[1]} in exchange {header[0]} were expected; start all processes with the "
                        "same command"
                    )
                # The first process sends its own data, and then forwards that of the other processes.
                for row in [rank] if self.rank == 0 else others:
                    _receive_into(peer, received[row].data)
        for sender in senders:
            sender.join()
        if self.rank == 0:
            for rank, peer in self.peers.items():
                with self._raise_if_lost(rank):
                    for other in others:
                        if other != rank:
                            peer.sendall(received[other].data)
        return received

    @contextlib.contextmanager
    def _raise_if_lost(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            raise ProcessLostError(f"process {rank} was lost: {error}") from error


def _send_in_thread(peer: socket.socket, data: memoryview) -> threading.Thread:
    """Send data in a thread, so that this process can receive at the same time.

    If two processes both sent data without receiving, they would block each other. Errors are ignored,
    because receiving from the same peer raises them as well.
    """

    def send() -> None:
        with contextlib.suppress(OSError):
            peer.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def _accept_others(address: tuple[str, int], size: int, deadline: float) -> dict[int, socket.socket]:
    """Accept connections from all other processes and return them by rank."""
    peers: dict[int, socket.socket] = {}
    with socket.create_server(address) as server:
        while len(peers) < size - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                peer, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(1, size) if rank not in peers)
                raise ValueError(
                    f"processes {missing} of {size} did not connect to {address[0]}:{address[1]} in time"
                ) from None
            rank = _receive_greeting(peer, size)
            if rank is None or rank in peers:
                peer.close()
                continue
            peers[rank] = peer
    for peer in peers.values():
        peer.sendall(b"!")
        _configure(peer)
    return peers


def _receive_greeting(peer: socket.socket, size: int) -> int | None:
    """Read the first message of a new connection.

    Returns:
        The rank of the process at the other end. None if it is not a process of this training run.
    """
    peer.settimeout(10)
    try:
        if _receive(peer, len(_PROTOCOL)) != _PROTOCOL:
            return None
        count, rank = _PAIR.unpack(_receive(peer, _PAIR.size))
    except (OSError, EOFError):
        return None
    return rank if count == size and 0 < rank < size else None


def _connect_to_first(address: tuple[str, int], size: int, rank: int, deadline: float) -> socket.socket:
    """Connect to the first process. Retry until the deadline, because the first process may start late."""
    while True:
        try:
            first = socket.create_connection(address, timeout=10)
            first.sendall(_PROTOCOL + _PAIR.pack(size, rank))
            first.settimeout(max(deadline - time.monotonic(), 0.01))
            _receive(first, 1)
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"cannot connect to the first process at {address[0]}:{address[1]}: {error}"
                ) from error
            time.sleep(0.2)
            continue
        _configure(first)
        return first


def _configure(peer: socket.socket) -> None:
    """Configure a connection to wait for data without a time limit, but to detect unresponsive machines."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _TIMEOUT_SECONDS // 2),
        ("TCP_KEEPINTVL", _TIMEOUT_SECONDS // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * _TIMEOUT_SECONDS),
    ):
        if hasattr(socket, option):  # not available on every platform
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _receive_into(peer, memoryview(data))
    return bytes(data)


def _receive_into(peer: socket.socket, view: memoryview) -> None:
    """Receive data from a peer until the buffer is full."""
    while len(view):
        num_bytes = peer.recv_into(view)
        if not num_bytes:
            raise EOFError("it closed the connection")
        view = view[num_bytes:]
