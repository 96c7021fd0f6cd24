"""The main `phalanx` command: startup time, help and exit codes."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import phalanx
from phalanx.cli import app as cli
from phalanx.cli.errors import user_errors

HEAVY = ("jax", "jaxlib", "equinox", "numpy", "optax", "yaml", "drawsvg")

runner = CliRunner()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Typer itself imports pydantic, but only to convert the options of a command that it runs.
@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], (*HEAVY, "pydantic")),
        (["--version"], HEAVY),
        (["data", "--help"], HEAVY),
        (["arc", "--help"], HEAVY),
        (["demo", "--help"], HEAVY),
        (["info", "--help"], HEAVY),
        (["train", "--help"], HEAVY),
    ],
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], heavy: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from phalanx.cli.app import main\n"
        f"sys.argv = ['phalanx', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('heavy:', [name for name in {heavy!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_help_lists_all_commands_with_descriptions() -> None:
    result = runner.invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for name in ("demo", "info", "data", "train"):
        assert name in result.output
    assert "Train an agent on generated tasks" in result.output


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_listed_command_has_help(name: str) -> None:
    result = runner.invoke(cli.app, [name, "--help"])
    assert result.exit_code == 0, result.output or result.exception
    assert "Usage:" in result.output


def test_groups_contain_their_commands() -> None:
    result = runner.invoke(cli.app, ["arc", "--help"])
    assert result.exit_code == 0, result.output or result.exception
    for name in ("list", "show", "download"):
        assert name in result.output


def test_version_is_the_package_version() -> None:
    assert runner.invoke(cli.app, ["--version"]).output == f"phalanx {phalanx.__version__}\n"


def test_misspelled_command_exits_with_2_and_a_suggestion() -> None:
    result = run("inof")
    assert result.returncode == 2
    assert "No such command 'inof'" in result.stderr
    assert "info" in result.stderr
    assert "Traceback" not in result.stderr


def test_user_error_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = typer.Typer()

    @broken.command()
    def fail() -> None:
        with user_errors():
            raise ValueError("max_grid_height must be between 1 and 30,\n got 40")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(sys, "argv", ["phalanx"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "phalanx: max_grid_height must be between 1 and 30, got 40\n"


def test_internal_error_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = typer.Typer(pretty_exceptions_enable=False)

    @broken.command()
    def fail() -> None:
        raise ValueError("not the user's doing")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(sys, "argv", ["phalanx"])
    with pytest.raises(ValueError, match="not the user's doing"):
        cli.main()


def test_a_closed_output_pipe_ends_a_command_silently() -> None:
    command = [sys.executable, "-m", "phalanx", "train", "ppo", "--env", "arc", "--list-settings"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(120)) == (b"", 1)
