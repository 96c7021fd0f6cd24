"""`phalanx serve`: any environment with words as an OpenEnv server, for trainers in other processes.

The server is in `phalanx.integrations.openenv`; `phalanx arcade` plays on puzzle servers.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.text.env_spec import TextFactory

app = typer.Typer(name="serve", add_completion=False)


@app.command()
def serve(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A kind of puzzle (sudoku), an environment's id (arc-v2, proofs-v1), or a game of a puzzle "
            "server (arcade:sudoku).",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Its settings: difficulty=hard turns=single for puzzles, the config's overrides for ids "
            "(config=NAME takes a preset), host=... port=... difficulty=... for arcade games.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen at; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    sessions: Annotated[int, typer.Option(help="Sessions at once.", min=1)] = 1_024,
    idle_seconds: Annotated[
        float, typer.Option(help="Seconds after which a silent session is closed.")
    ] = 900.0,
    message_bytes: Annotated[int, typer.Option(help="Bytes of the longest message.", min=1_024)] = 131_072,
) -> None:
    """Serve an environment over OpenEnv's WebSocket protocol, until Ctrl-C or SIGTERM."""
    with user_errors():
        try:
            factory = _factory(environment, settings or [])
        except TypeError as error:  # a setting that the environment does not have
            raise UserError(str(error)) from error
    try:
        from phalanx.integrations.openenv.server import OpenEnvServer, ServerLimits
    except ModuleNotFoundError as error:
        raise UserError(str(error)) from error
    with user_errors():
        limits = ServerLimits(sessions, idle_seconds, message_bytes)
    try:
        server = OpenEnvServer(factory, name=environment, host=host, port=port, limits=limits)
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    typer.echo(f"serving {environment} at {server.url}, {sessions:,} sessions at most; Ctrl-C ends it")
    server.run()


def _factory(environment: str, settings: list[str]) -> "TextFactory":
    from omegaconf import OmegaConf

    from phalanx.text.env_spec import parse_env_spec, text_env_factory

    if invalid := [text for text in settings if not text.partition("=")[1]]:
        raise ValueError(f"settings must be NAME=VALUE, got {invalid[0]!r}")
    values: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(settings))  # type: ignore[assignment]
    if parse_env_spec(environment)[0].interface == "jax":
        overrides = [text for text in settings if not text.startswith("config=")]
        values = {"config": values["config"]} if "config" in values else {}
        values |= {"overrides": overrides} if overrides else {}
    return text_env_factory(environment, **values)
