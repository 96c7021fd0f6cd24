"""The OpenEnv server: protocol, limits, lost clients, and invalid input."""

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from phalanx.integrations.openenv import OpenEnvServer, ServerLimits, Session
from phalanx.puzzles import PuzzleEnvironment
from phalanx.text import TextEnvironment, TextInfo, TextStep
from phalanx.text.names import text_env_factory
from tests.helpers.openenv_processes import running, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[OpenEnvServer]:
    limits = {"max_sessions": 8, "max_message_bytes": 4096, "connect_timeout": 0.5}
    with running(text_env_factory("sudoku"), **limits) as found:
        yield found


def open_client(server: OpenEnvServer, **settings: Any) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + "/ws", compression=None, open_timeout=60, **settings)


def request(client: ClientConnection, message: Any) -> dict[str, Any]:
    client.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(client.recv(20))


def check_episode(server: OpenEnvServer, seed: int) -> None:
    """Check that an episode is the same with and without the server."""
    environment = PuzzleEnvironment("sudoku")
    with open_client(server) as client:
        first = request(client, {"type": "reset", "data": {"seed": seed}})
        assert first["data"]["observation"]["text"] == environment.reset(seed)
        for answer in environment.expert_actions() or ():
            step = environment.step(answer)
            reply = request(client, {"type": "step", "data": {"answer": answer}})["data"]
            assert (reply["observation"]["text"], reply["reward"], reply["done"]) == step[:3]
        assert reply["observation"]["solved"] and reply["done"]
        client.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            client.recv(20)


def test_episode_is_the_same_with_and_without_the_server(server: OpenEnvServer) -> None:
    check_episode(server, 5)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "INVALID_JSON"),
        ("[]", "INVALID_JSON"),
        ("[" * 4000, "INVALID_JSON"),
        ("9" * 4000, "INVALID_JSON"),
        (b'{"type": "reset"}', "INVALID_JSON"),
        ({"type": "jump"}, "UNKNOWN_TYPE"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": "step", "data": {"answer": "1 1 1"}}, "EXECUTION_ERROR"),
        ({"type": "step", "data": {"answer": None}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"answer": True}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"answer": "1", "more": 2}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": []}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": 2**32}}, "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1e999}}', "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": "1"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"episode_id": "x" * 256}}, "VALIDATION_ERROR"),
    ],
)
def test_invalid_message_is_an_error_and_the_session_continues(
    server: OpenEnvServer, message: Any, code: str
) -> None:
    with open_client(server) as client:
        reply = request(client, message)
        assert (reply["type"], reply["data"]["code"]) == ("error", code) and reply["data"]["message"]
        assert request(client, {"type": "reset", "data": {"seed": 1}})["type"] == "observation"


def test_state_random_seed_and_numeric_answer(server: OpenEnvServer) -> None:
    with open_client(server) as client:
        assert request(client, {"type": "state"})["data"] == {
            "episode_id": None,
            "step_count": 0,
            "seed": None,
        }
        seed = request(client, {"type": "reset", "data": {"episode_id": "e"}})["data"]["metadata"]["seed"]
        lone = request(client, '{"type": "step", "data": {"answer": "\\ud800 1 1"}}')
        number = request(client, {"type": "step", "data": {"answer": 7}})
        assert all(reply["data"]["observation"]["error"] for reply in (lone, number))
        assert request(client, {"type": "state"})["data"] == {
            "episode_id": "e",
            "step_count": 2,
            "seed": seed,
        }


def fetch(server: OpenEnvServer, path: str, body: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body), timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_http_routes_are_stateless(server: OpenEnvServer) -> None:
    assert fetch(server, "/health") == (200, {"status": "healthy"})
    assert fetch(server, "/metadata")[1]["name"] == "test"
    assert fetch(server, "/schema")[1]["action"]["required"] == ["answer"]
    assert fetch(server, "/state") == (200, {"episode_id": None, "step_count": 0})
    first = fetch(server, "/reset", b'{"seed": 3}')[1]
    assert first["observation"]["text"] == PuzzleEnvironment("sudoku").reset(3)
    step = fetch(server, "/step", b'{"seed": 3, "action": {"answer": "nonsense"}}')[1]
    assert step["reward"] == -0.1 and not step["done"]
    for path, body, status in (
        ("/step", b'{"action": {"answer": "1"}}', 422),
        ("/step", b'{"action": "1", "seed": 1}', 422),
        ("/reset", b"[" * 4000, 422),
        ("/reset", b"x" * 5000, 413),
        ("/nowhere", None, 404),
        ("/health", b"", 405),
    ):
        assert fetch(server, path, body)[0] == status


def test_number_of_sessions_is_limited_and_lost_clients_free_theirs(server: OpenEnvServer) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_client(server)) for _ in range(8)]
        for number, client in enumerate(clients):
            request(client, {"type": "reset", "data": {"seed": number}})
        with open_client(server) as ninth:
            reply = json.loads(ninth.recv(20))
            assert reply["data"] == {"message": "all 8 sessions are in use", "code": "CAPACITY_REACHED"}
            with pytest.raises(ConnectionClosed):
                ninth.recv(20)
        assert fetch(server, "/reset", b"{}")[0] == 503
        for client in clients:
            # Reset the connection, so that no close frame arrives.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close_socket()
    wait_until(lambda: server.open_sessions == 0)
    check_episode(server, 8)


def test_message_that_is_too_long_ends_only_its_session(server: OpenEnvServer) -> None:
    with open_client(server) as client, open_client(server) as other:
        request(other, {"type": "reset", "data": {"seed": 1}})
        with pytest.raises(ConnectionClosed) as closed:
            request(client, {"type": "step", "data": {"answer": "x" * 5000}})
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert request(other, {"type": "state"})["data"]["seed"] == 1


def test_invalid_input_does_not_affect_the_server(server: OpenEnvServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    draw = random.Random(0)
    handshake = (
        f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    for number in range(60):
        noise = draw.randbytes(draw.randrange(1, 400))
        posted = b"POST /step HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n" + noise
        part = handshake[: draw.randrange(len(handshake))]
        sent = (noise, part, handshake + noise, posted)[number % 4]
        with socket.create_connection((host, int(port)), 20) as raw:
            raw.sendall(sent)
            if number % 3 == 0:
                raw.shutdown(socket.SHUT_WR)
    cases = ['{"type": "reset", "data": {"seed": 1}}', '{"type": "step", "data": {"answer": "1 1 1"}}']
    with open_client(server) as client:
        for _ in range(200):
            text = list(draw.choice(cases))
            for _ in range(draw.randrange(4)):
                text[draw.randrange(len(text))] = chr(draw.choice([0, 34, 91, 92, 123, 125, 233, 0x2603]))
            reply = request(client, "".join(text))
            assert reply["type"] in ("observation", "error")
    check_episode(server, 9)


def test_silent_connection_is_closed(server: OpenEnvServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for start in (b"", b"GET /health HTTP/1.1\r\nHost:"):
        with socket.create_connection((host, int(port)), 20) as raw:
            raw.sendall(start)
            assert raw.recv(100) == b""
    with socket.create_connection((host, int(port)), 20) as raw:
        raw.sendall(b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in raw.recv(100)


class Slow(TextEnvironment):
    """An environment with long texts and a step that fails for the answer `gone`."""

    def reset(self, seed: int) -> str:
        return "x" * 1_000_000

    def step(self, answer: str) -> TextStep:
        if answer == "gone":
            raise ConnectionError("the other server is gone")
        return TextStep(self.prompt, 0.0, False, TextInfo())

    @property
    def prompt(self) -> str:
        return "x" * 1_000_000


def test_silent_clients_and_clients_that_do_not_read_are_closed() -> None:
    with running(Slow, max_sessions=3, idle_timeout=0.5) as server:
        with open_client(server) as silent:
            request(silent, {"type": "reset"})
            with pytest.raises(ConnectionClosed) as closed:
                silent.recv(20)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "idle for 0.5 seconds")
        with open_client(server, max_queue=1) as slow_reader:
            wait_until(lambda: server.open_sessions == 1)
            for _ in range(30):
                slow_reader.send('{"type": "reset"}')
            wait_until(lambda: server.open_sessions == 0)
            slow_reader.close_socket()


def test_error_of_the_environment_is_reported() -> None:
    session = Session(Slow())
    session.reply('{"type": "reset"}')
    reply = json.loads(session.reply('{"type": "step", "data": {"answer": "gone"}}') or "")
    assert reply["data"] == {"message": "the other server is gone", "code": "EXECUTION_ERROR"}


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="max_sessions must be positive, got 0"):
        ServerLimits(max_sessions=0)


def test_serve_command_ends_on_sigterm() -> None:
    command = [sys.executable, "-m", "phalanx", "serve", "lights_out", "difficulty=medium", "--port", "0",
               "--max-sessions", "2", "--idle-timeout", "60", "--max-message-bytes", "2048",
               "--host", "127.0.0.1"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving lights_out at http://127.0.0.1:") and "up to 2 sessions" in line
        url = line.split()[3].rstrip(",")
        with connect(url.replace("http", "ws") + "/ws", compression=None, open_timeout=60) as client:
            reply = request(client, {"type": "reset", "data": {"seed": 1}})
            expected = PuzzleEnvironment("lights_out", "medium").reset(1)
            assert reply["data"]["observation"]["text"] == expected
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(20)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (-signal.SIGTERM, "")
    finally:
        process.kill()
