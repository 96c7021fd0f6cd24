"""Generate `docs/reference/cli.md`: every command of `phalanx` with its arguments and options."""

from collections.abc import Iterator
from typing import Any

import typer.main

from phalanx.cli.app import app


def page() -> str:
    """Return the Markdown of the page."""
    return "\n".join(_lines()) + "\n"


def commands() -> Iterator[Any]:
    """Iterate over the contexts of all commands and groups, depth first."""
    root = typer.main.get_command(app)
    yield from _walk(root.make_context("phalanx", [], resilient_parsing=True))


def _walk(context: Any) -> Iterator[Any]:
    yield context
    group = context.command
    if not hasattr(group, "list_commands"):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        # Creating the context imports commands that are loaded lazily.
        yield from _walk(command.make_context(name, [], parent=context, resilient_parsing=True))


def _lines() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield (
        "This page lists all commands with their arguments and options; `phalanx COMMAND --help` prints the "
        "same text. The exit code is 0 on success, 1 if a check failed or nothing was found, and 2 if the "
        "input is invalid. In the last case, the command prints a one-line error message."
    )
    for context in commands():
        yield from _command(context)


def _command(context: Any) -> Iterator[str]:
    command, path = context.command, context.command_path
    depth = path.count(" ")
    yield from ("", f"{'#' * min(depth + 2, 5)} {path}", "")
    yield _prose(command.help or "")
    arguments = [_argument(p) for p in command.get_params(context) if p.param_type_name == "argument"]
    ends = ["COMMAND"] if hasattr(command, "list_commands") else arguments
    yield from ("", "```text", " ".join([path, "[OPTIONS]", *ends]), "```")
    if hasattr(command, "list_commands"):
        yield from ("", "| command | description |", "| --- | --- |")
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            anchor = f"{path} {name}".replace(" ", "-")
            yield f"| [`{name}`](#{anchor}) | {_cell(found.get_short_help_str(limit=200))} |"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context))]
    if rows:
        yield from ("", "| argument or option | description |", "| --- | --- |", *rows)


def _row(parameter: Any, context: Any) -> str | None:
    if "--help" in parameter.opts or {"--install-completion", "--show-completion"} & set(parameter.opts):
        return None
    record = parameter.get_help_record(context)
    if record is None:
        return None
    name, text = record
    if parameter.param_type_name == "argument":
        name = _argument(parameter)
    # The help text contains the range. Pipes would end the table cell.
    plain = name.replace(" range>", ">").replace(" <", " ").removesuffix(">").replace("|", ", ")
    return f"| `{plain}` | {_cell(text)} |"


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _cell(text: str) -> str:
    # Markdown would read brackets around defaults and ranges as links.
    return _prose(text).replace("[", "\\[").replace("]", "\\]").replace("|", "\\|")


def _prose(text: str) -> str:
    """Join the lines of each paragraph and escape HTML."""
    paragraphs = (" ".join(part.split()) for part in text.replace("\b", "").strip().split("\n\n"))
    return "\n\n".join(paragraphs).replace("<", "&lt;")
