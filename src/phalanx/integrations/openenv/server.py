"""The server of sessions: OpenEnv's WebSocket and HTTP routes, within limits, for this machine unless told.

What the messages say is in `protocol`; `phalanx serve` is the command.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

try:
    import uvicorn
    import websockets as _websockets  # noqa: F401 - which uvicorn speaks through
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in (
        "starlette",
        "uvicorn",
        "websockets",
        "h11",
    ):
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.openenv needs {error.name}: pip install "phalanx[serve]"', name=error.name
    ) from error

import phalanx
from phalanx.integrations.openenv.protocol import SCHEMAS, ClientError, Session, error_reply
from phalanx.puzzles.env import PuzzleEnvironment
from phalanx.text.env import TextEnvironment
from phalanx.text.env_spec import TextFactory

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """What one server takes on."""

    sessions: int = 1_024
    """Sessions at once; the next client is told so and sent away."""
    idle_seconds: float = 900.0
    """A session whose client is silent for so long, or does not read its replies, is closed."""
    message_bytes: int = 131_072
    """The longest message; a client that sends a longer one is disconnected."""
    opening_seconds: float = 10.0
    """A connection that has sent no whole request by then is closed."""
    threads: int = 4
    """Threads that step environments which take their time: those of JAX, and those of other servers."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0, got {getattr(self, field.name)}")


class _Sessions:
    """The sessions that are open, and where their environments run."""

    def __init__(self, factory: TextFactory, limits: ServerLimits) -> None:
        self._factory, self._limits, self.open = factory, limits, 0
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="phalanx-serve")

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[tuple[Session, Callable[..., Any]]]:
        """A session, and what runs its methods without keeping the others waiting."""
        if self.open >= self._limits.sessions:
            raise ClientError("CAPACITY_REACHED", f"all {self._limits.sessions} sessions are taken")
        self.open += 1
        try:
            environment = self._factory()
            session, run = Session(environment), self._runner(environment)
            try:
                yield session, run
            finally:
                await run(session.close)
        finally:
            self.open -= 1

    def _runner(self, environment: TextEnvironment) -> Callable[..., Any]:
        # A puzzle's step takes microseconds, less than handing it to a thread.
        if isinstance(environment, PuzzleEnvironment):
            return _at_once
        return self._in_thread

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _at_once(function: Callable[..., Result], *arguments: Any) -> Result:
    return function(*arguments)


def openenv_app(factory: TextFactory, *, name: str, limits: ServerLimits = ServerLimits()) -> Starlette:  # noqa: B008 - frozen
    """An ASGI app of OpenEnv: `/ws`, `/health`, `/metadata`, `/schema`, `/state`, `/reset`, `/step`.

    A WebSocket is a session. The HTTP routes keep none, as OpenEnv's do not: `/step` takes the `seed` of an
    episode beside the `action`, and answers its first question. Whoever serves the app must limit messages to
    `limits.message_bytes` and close silent connections, as `OpenEnvServer` does.
    """
    sessions = _Sessions(factory, limits)

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            try:
                async with sessions.session() as (session, run):
                    await _converse(websocket, session, run, limits.idle_seconds)
            except ClientError as error:
                await websocket.send_text(error_reply(error.code, str(error)))
            except TimeoutError:
                # Nothing more is sent: whoever does not read would keep the session for as long again.
                return await websocket.close(1008, f"silent for {limits.idle_seconds:g} seconds")
            await websocket.close()
        return None

    async def reset(request: Request) -> Response:
        data = await _body(request, limits)
        async with sessions.session() as (session, run):
            return JSONResponse(await run(session.reset, data))

    async def step(request: Request) -> Response:
        data = await _body(request, limits)
        action = data.get("action")
        if not isinstance(action, dict) or "seed" not in data:
            raise ClientError(
                "VALIDATION_ERROR", 'a step without a session is {"action": {...}, "seed": ...}'
            )
        async with sessions.session() as (session, run):
            await run(session.reset, {"seed": data["seed"]})
            return JSONResponse(await run(session.step, action))

    async def state(request: Request) -> Response:
        return JSONResponse({"episode_id": None, "step_count": 0})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def metadata(request: Request) -> Response:
        about = f"Phalanx's {name} as text: a question, an answer, and what follows."
        return JSONResponse({"name": name, "description": about, "version": phalanx.__version__})

    async def schema(request: Request) -> Response:
        return JSONResponse(SCHEMAS)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientError)
        status = 503 if error.code == "CAPACITY_REACHED" else 422
        return JSONResponse({"detail": str(error), "code": error.code}, status)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        sessions.close()

    gets = {"/health": health, "/metadata": metadata, "/schema": schema, "/state": state}
    app = Starlette(
        routes=[
            WebSocketRoute("/ws", talk),
            *(Route(path, function, methods=["GET"]) for path, function in gets.items()),
            Route("/reset", reset, methods=["POST"]),
            Route("/step", step, methods=["POST"]),
        ],
        exception_handlers={ClientError: refuse},
        lifespan=lifespan,
    )
    app.state.sessions = sessions
    return app


async def _converse(
    websocket: WebSocket, session: Session, run: Callable[..., Any], idle_seconds: float
) -> None:
    while True:
        async with asyncio.timeout(idle_seconds):
            message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        if text is None:
            reply = error_reply("INVALID_JSON", "messages are text, not bytes")
        else:
            reply = await run(session.reply, text)
        if reply is None:
            return
        async with asyncio.timeout(idle_seconds):
            await websocket.send_text(reply)


async def _body(request: Request, limits: ServerLimits) -> dict[str, Any]:
    """The JSON object that a request carries; none is an empty one."""
    content = b""
    try:
        async with asyncio.timeout(limits.opening_seconds):
            async for part in request.stream():
                content += part
                if len(content) > limits.message_bytes:
                    raise HTTPException(413, f"a request has at most {limits.message_bytes} bytes")
        data = json.loads(content or b"{}")
    except TimeoutError as error:
        raise HTTPException(408, "the request took too long") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client is gone") from error
    except (ValueError, RecursionError) as error:
        raise ClientError("INVALID_JSON", "a request is a JSON object") from error
    if not isinstance(data, dict):
        raise ClientError("INVALID_JSON", "a request is a JSON object")
    return data


class OpenEnvServer:
    """A server that is bound to its address, and serves while `run` does.

    Port 0 takes any port that is free. Other machines reach the server only if `host` is an address that they
    see, such as `0.0.0.0`; there are no passwords, so let in none whom you do not trust.
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
        _allow_files(limits.sessions + 256)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server(
            (host, port), family=family, backlog=min(limits.sessions, 4_096)
        )
        address, actual = self._listener.getsockname()[:2]
        self.url = f"http://[{address}]:{actual}" if ":" in address else f"http://{address}:{actual}"
        self._app = openenv_app(factory, name=name, limits=limits)
        config = uvicorn.Config(
            self._app,
            http=_patient(limits.opening_seconds),
            ws="websockets-sansio",
            ws_max_size=limits.message_bytes,
            ws_per_message_deflate=False,  # a small message could swell to a large one
            h11_max_incomplete_event_size=16_384,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            log_config=None,
            access_log=False,
        )
        self._server = uvicorn.Server(config)

    @property
    def open_sessions(self) -> int:
        """How many sessions there are now."""
        return int(self._app.state.sessions.open)

    def run(self) -> None:
        """Serve until SIGINT, SIGTERM or `stop`, which close every session."""
        logger = logging.getLogger("uvicorn.error")
        logger.setLevel(logging.ERROR)
        logger.addFilter(_worth_a_line)
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


def _patient(seconds: float) -> type[H11Protocol]:
    """HTTP that closes a connection which has not sent one whole request in time."""

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._give_up)

        def _give_up(self) -> None:
            # After an upgrade the connection belongs to another protocol.
            if self.cycle is None and self.transport.get_protocol() is self:
                self.transport.close()

    return PatientProtocol


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line is worth a log: what strangers send is not, for they could fill the disk with it."""
    return "UTF-8" not in record.getMessage()


def _allow_files(wanted: int) -> None:
    """A session is an open file: ask for as many as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, soft), hard))
