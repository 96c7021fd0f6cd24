"""`phalanx serve`: serves a text environment over OpenEnv, for trainers in other processes."""

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.text.names import TextFactory

app = typer.Typer(name="serve", add_completion=False)


@app.command()
def serve(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="Puzzle kind (sudoku), environment id (arc-v2), puzzle-server game "
            "(puzzle_server:sudoku), module:Class or file.py:Class.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Environment settings, for example difficulty=hard turns=single for puzzles, "
            "config=NAME for the preset of an id, or host=HOST port=PORT for a puzzle server.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 chooses a free port.", min=0, max=65535)
    ] = 8000,
    max_sessions: Annotated[int, typer.Option(help="Maximum number of concurrent sessions.", min=1)] = 1_024,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds after which an idle session is closed.")
    ] = 900.0,
    max_message_bytes: Annotated[
        int, typer.Option(help="Maximum size of a message in bytes.", min=1_024)
    ] = 131_072,
) -> None:
    """Serve an environment over OpenEnv's WebSocket protocol until Ctrl-C or SIGTERM."""
    with user_errors():
        try:
            factory = _factory(environment, settings or [])
        except TypeError as error:  # an unknown setting
            raise UserError(str(error)) from error
    from phalanx.integrations.openenv.server import OpenEnvServer, ServerLimits

    with user_errors():
        limits = ServerLimits(max_sessions, idle_timeout, max_message_bytes)
    try:
        server = OpenEnvServer(factory, name=environment, host=host, port=port, limits=limits)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    typer.echo(f"serving {environment} at {server.url}, up to {max_sessions:,} sessions; Ctrl-C to stop")
    server.run()


def _factory(environment: str, settings: list[str]) -> "TextFactory":
    from phalanx.config import parse_overrides
    from phalanx.text.names import parse_env_name, text_env_factory

    values = parse_overrides(settings)
    if parse_env_name(environment)[0].spec is None:  # a JAX environment
        overrides = [text for text in settings if not text.startswith("config=")]
        values = {"config": values.get("config"), "overrides": overrides}
    return text_env_factory(environment, **values)
