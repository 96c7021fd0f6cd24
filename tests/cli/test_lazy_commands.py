"""Commands whose modules are imported when they run."""

import typer
from typer.testing import CliRunner

from phalanx.cli.lazy_commands import LazyCommand, lazy_group

runner = CliRunner()


def test_command_module_is_imported_only_when_the_command_runs() -> None:
    app = typer.Typer(cls=lazy_group({"absent": LazyCommand("phalanx.cli.no_such_module", "Not there.")}))

    @app.callback()
    def root() -> None:
        pass

    assert "Not there." in runner.invoke(app, ["--help"]).output
    assert isinstance(runner.invoke(app, ["absent"]).exception, ModuleNotFoundError)
