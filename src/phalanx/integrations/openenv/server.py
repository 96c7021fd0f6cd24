"""OpenEnv server with WebSocket and HTTP routes.

The number of sessions, the size of messages and the time that the server waits for clients are limited.
"""

import asyncio
import contextlib
import dataclasses
import logging
import resource
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import phalanx
from phalanx.extras import require_extra
from phalanx.integrations.openenv.protocol import SCHEMAS, ClientError, Session, error_reply, parse_object
from phalanx.text.names import TextFactory

with require_extra("phalanx.integrations.openenv", "serve", "starlette", "uvicorn", "websockets", "h11"):
    import uvicorn
    import websockets as _websockets  # noqa: F401 - used by uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """Limits and timeouts of an OpenEnv server."""

    max_sessions: int = 1_024
    """Maximum number of concurrent sessions. Further clients receive an error."""
    idle_timeout: float = 900.0
    """Seconds after which a session is closed if its client sends nothing or does not read its replies."""
    max_message_bytes: int = 131_072
    """Maximum size of a message in bytes. A client that sends a longer message is disconnected."""
    connect_timeout: float = 10.0
    """Seconds within which a new connection must send a complete request."""
    num_threads: int = 4
    """Number of threads for environments with slow steps, such as environments that use JAX or an external
    server."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be positive, got {getattr(self, field.name)}")


class _Sessions:
    """Open sessions, and the threads that run blocking environments."""

    def __init__(self, factory: TextFactory, limits: ServerLimits) -> None:
        self._factory, self._limits, self.open = factory, limits, 0
        self._threads = ThreadPoolExecutor(limits.num_threads, thread_name_prefix="phalanx-serve")

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[tuple[Session, Callable[..., Any]]]:
        """Open a session.

        Yields the session, and a function that runs the session's methods without blocking other sessions.
        """
        if self.open >= self._limits.max_sessions:
            raise ClientError(f"all {self._limits.max_sessions} sessions are in use", "CAPACITY_REACHED")
        self.open += 1
        try:
            environment = self._factory()

            async def run(function: Callable[..., Any], *arguments: Any) -> Any:
                if not environment.blocking:
                    return function(*arguments)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, function, *arguments)

            session = Session(environment)
            try:
                yield session, run
            finally:
                await run(session.close)
        finally:
            self.open -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def openenv_app(factory: TextFactory, *, name: str, limits: ServerLimits = ServerLimits()) -> Starlette:  # noqa: B008 - frozen
    """Create an ASGI app with OpenEnv's routes.

    Each WebSocket connection to `/ws` is a session. The HTTP routes `/health`, `/metadata`, `/schema`,
    `/state`, `/reset` and `/step` are stateless, as in OpenEnv: `/step` takes the `seed` of an episode and an
    `action`, which answers the first prompt of that episode. The server that runs the app must limit messages
    to `limits.max_message_bytes` and close idle connections, as `OpenEnvServer` does.

    Args:
        factory: Function that creates the environment for a session.
        name: Name of the environment in the metadata.
        limits: Limits and timeouts.
    """
    sessions = _Sessions(factory, limits)

    async def serve_session(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            try:
                async with sessions.session() as (session, run):
                    await _run_session(websocket, session, run, limits.idle_timeout)
            except ClientError as error:
                await websocket.send_text(error_reply(error.code, str(error)))
            except TimeoutError:
                # Send nothing more: a client that does not read would keep the session open for another
                # timeout.
                return await websocket.close(1008, f"idle for {limits.idle_timeout:g} seconds")
            await websocket.close()
        return None

    async def reset(request: Request) -> Response:
        data = await _read_body(request, limits)
        async with sessions.session() as (session, run):
            return JSONResponse(await run(session.reset, data))

    async def step(request: Request) -> Response:
        data = await _read_body(request, limits)
        action = data.get("action")
        if not isinstance(action, dict) or "seed" not in data:
            raise ClientError('a step without a session is {"action": {...}, "seed": ...}')
        async with sessions.session() as (session, run):
            await run(session.reset, {"seed": data["seed"]})
            return JSONResponse(await run(session.step, action))

    async def reject(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientError)
        status = 503 if error.code == "CAPACITY_REACHED" else 422
        return JSONResponse({"detail": str(error), "code": error.code}, status)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        sessions.close()

    description = f"{name} of Phalanx as a text environment."
    constant_replies = {
        "/health": {"status": "healthy"},
        "/metadata": {"name": name, "description": description, "version": phalanx.__version__},
        "/schema": SCHEMAS,
        "/state": {"episode_id": None, "step_count": 0},
    }
    app = Starlette(
        routes=[
            WebSocketRoute("/ws", serve_session),
            *(Route(path, JSONResponse(data), methods=["GET"]) for path, data in constant_replies.items()),
            Route("/reset", reset, methods=["POST"]),
            Route("/step", step, methods=["POST"]),
        ],
        exception_handlers={ClientError: reject},
        lifespan=lifespan,
    )
    app.state.sessions = sessions
    return app


async def _run_session(
    websocket: WebSocket, session: Session, run: Callable[..., Any], idle_timeout: float
) -> None:
    while True:
        async with asyncio.timeout(idle_timeout):
            message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        if (text := message.get("text")) is None:
            reply = error_reply("INVALID_JSON", "messages are text, not bytes")
        else:
            reply = await run(session.reply, text)
        if reply is None:
            return
        async with asyncio.timeout(idle_timeout):
            await websocket.send_text(reply)


async def _read_body(request: Request, limits: ServerLimits) -> dict[str, Any]:
    """Read the JSON object in the body of a request. An empty body counts as an empty object."""
    content = b""
    try:
        async with asyncio.timeout(limits.connect_timeout):
            async for part in request.stream():
                content += part
                if len(content) > limits.max_message_bytes:
                    raise HTTPException(413, f"a request has at most {limits.max_message_bytes} bytes")
    except TimeoutError as error:
        raise HTTPException(408, "the request took too long") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client is gone") from error
    return parse_object(content or b"{}", "a request is a JSON object")


class OpenEnvServer:
    """OpenEnv server, which binds to its address when it is created and serves requests in `run`.

    There is no authentication. Do not use a `host` that other machines can reach, such as `0.0.0.0`, outside
    of a trusted network.

    Args:
        factory: Function that creates the environment for a session.
        name: Name of the environment in the metadata.
        host: Address to listen on.
        port: Port to listen on. If 0, a free port is chosen.
        limits: Limits and timeouts.
    """

    def __init__(
        self,
        factory: TextFactory,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int = 8000,
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    ) -> None:
        _raise_file_limit(limits.max_sessions + 256)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server(
            (host, port), family=family, backlog=min(limits.max_sessions, 4_096)
        )
        address, actual = self._listener.getsockname()[:2]
        self.url = f"http://[{address}]:{actual}" if ":" in address else f"http://{address}:{actual}"
        self._app = openenv_app(factory, name=name, limits=limits)
        config = uvicorn.Config(
            self._app,
            http=_http_protocol(limits.connect_timeout),
            ws="websockets-sansio",
            ws_max_size=limits.max_message_bytes,
            ws_per_message_deflate=False,  # a small compressed message could expand to a large one
            h11_max_incomplete_event_size=16_384,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            log_config=None,
            access_log=False,
        )
        self._server = uvicorn.Server(config)

    @property
    def open_sessions(self) -> int:
        """Number of sessions that are currently open."""
        return int(self._app.state.sessions.open)

    def run(self) -> None:
        """Serve requests until SIGINT, SIGTERM or `stop`, and then close all sessions."""
        logger = logging.getLogger("uvicorn.error")
        logger.setLevel(logging.ERROR)
        logger.addFilter(_is_server_message)
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        """Stop `run`. Call it from another thread."""
        self._server.should_exit = True


def _http_protocol(seconds: float) -> type[H11Protocol]:
    """Return an HTTP protocol that closes connections without a complete request after `seconds` seconds."""

    class TimeoutProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            # After an upgrade, the connection belongs to another protocol.
            if self.cycle is None and self.transport.get_protocol() is self:
                self.transport.close()

    return TimeoutProtocol


def _is_server_message(record: logging.LogRecord) -> bool:
    """Return False if a log message is about invalid UTF-8 from a client, and True otherwise.

    This log filter drops such messages, because clients could fill the disk with them.
    """
    return "UTF-8" not in record.getMessage()


def _raise_file_limit(required: int) -> None:
    """Raise the limit on open files to `required`, or as far as the system allows.

    Each session needs a file descriptor.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < required:
        limit = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, soft), hard))
