"""Shell commands in the documentation: extraction and validation."""

import dataclasses
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from phalanx.cli.app import app
from tests.helpers.markdown_pages import ROOT, CodeBlock, code_blocks

SHELL_LANGUAGES = ("bash", "sh", "shell", "console")
_VARIABLES = re.compile(r"(?:[A-Z_]+=\S* +)*")
"""Environment variables in front of a command, as in `PHALANX_NATIVE=0 phalanx info`."""
OTHER_PROGRAMS = {
    *("cd", "source", "export", "git", "curl", "cat", "head", "ls", "mkdir", "uv", "pre-commit"),
    *("sbatch", "srun", "docker", "podman", "apptainer", "ray", "torchrun", "accelerate"),
    *("vf-eval", "server-launcher"),
}
"""Programs whose arguments are not checked."""


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """A command, its page and line, and the reason for not running it."""

    page: str
    line: int
    text: str
    not_run: str = ""

    @property
    def words(self) -> list[str]:
        """The words of the command, without environment variables in front of it and comments."""
        return shlex.split(_VARIABLES.sub("", self.text, count=1), comments=True)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables in front of the command."""
        match = _VARIABLES.match(self.text)
        assert match is not None
        pairs = (word.partition("=") for word in shlex.split(match.group()))
        return {name: value for name, _, value in pairs}


def shell_commands(path: Path) -> Iterator[ShellCommand]:
    """Iterate over the commands in the shell blocks of a page."""
    page = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    for block in code_blocks(path.read_text(encoding="utf-8")):
        if block.language in SHELL_LANGUAGES:
            yield from block_commands(block, page)


def block_commands(block: CodeBlock, page: str) -> Iterator[ShellCommand]:
    """Iterate over the commands in a block. Commands joined by `&&` are separate commands."""
    lines = block.text.split("\n")
    index = 0
    while index < len(lines):
        line, text = block.line + index, lines[index].removeprefix("$ ")
        while text.endswith("\\"):
            index += 1
            text = f"{text[:-1].rstrip()} {lines[index].strip()}"
        index += 1
        if text.strip() and not text.lstrip().startswith("#"):
            for part in text.split(" && "):
                yield ShellCommand(page, line, part, block.not_run)


def parse_command(words: list[str]) -> Any:
    """Parse a command of `phalanx` without running it and return its context."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("phalanx", words[1:])
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return context


def check_command(words: list[str]) -> None:
    """Raise an error if a flag, setting, preset, file, target or extra does not exist."""
    program = Path(words[0]).name
    if program == "phalanx":
        if "--help" not in words and "--version" not in words:
            context = parse_command(words)
            if context.info_name == "train":
                _check_settings(context.params)
            elif context.info_name == "sweep":
                _check_sweep(context.params)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        named = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        assert set(named) <= set(targets), words
    elif program == "for":
        inner = " ".join(words[words.index("do") + 1 :]).removesuffix("done").rstrip("; ")
        check_command(shlex.split(inner.replace("$seed", "0")))
    elif program in ("pip", "pip3"):
        _check_extras(words)
    elif program in ("python", "python3"):
        _check_python(words)
    else:
        assert program in OTHER_PROGRAMS and len(words) > 1, f"unknown program: {words}"


def _check_python(words: list[str]) -> None:
    if words[1] == "-m" and words[2] == "pip":
        _check_extras(words)
    elif words[1] == "-m":
        assert importlib.util.find_spec(words[2]) is not None, words
    elif words[1] != "-c" and "/" in words[1]:
        # Other scripts are those that a page asks the reader to write.
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [flag for flag in flags if f'"{flag}"' not in source] == [], words


def _check_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        for extras in re.findall(r"(?:phalanx\S*|\.)\[([\w,-]+)\]", word):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), word


def _check_settings(params: dict[str, Any]) -> None:
    """Load the config of a training command, unless it comes from another run or a file of the page."""
    from phalanx.training import load_algorithm

    name, config = params["algorithm"], params.get("config")
    if params.get("init_from") is not None or params.get("resume") or params.get("extend"):
        return
    is_user_file = config is not None and config.endswith(".yaml") and not (ROOT / config).exists()
    if is_user_file or (".py" in name and not (ROOT / name.partition(":")[0]).exists()):
        return
    algorithm = load_algorithm(str(ROOT / name) if ".py" in name else name)
    env = params.get("env")
    if env is not None and ".py" in env:
        if not (ROOT / env.partition(":")[0]).exists():
            return
        env = str(ROOT / env)
    algorithm.config_type.load(config, params.get("overrides") or [], env=env)


def _check_sweep(params: dict[str, Any]) -> None:
    """Load a config with the first value, or the lower bound, of each setting."""
    from phalanx.training.sweep import split_values

    named = (setting.partition("=") for setting in params["settings"])
    ranges = {name: re.sub(r"^\w+\(([^,]+),.*\)$", r"\1", value) for name, _, value in named}
    overrides = [f"{name}={split_values(value)[0]}" for name, value in ranges.items()]
    _check_settings({**params, "overrides": overrides})


def unknown_flags(span: str) -> list[str]:
    """Return the flags that a command in inline code does not have, or the name of an unknown command.

    Words in capitals and everything after `...` are ignored.
    """
    text = re.sub(r"\s*\.\.\..*|[\[\]]", "", span)
    words = [word for word in shlex.split(text) if not word.isupper()]
    command: Any = typer.main.get_command(app)
    context = command.make_context("phalanx", [], resilient_parsing=True)
    for word in words[1:]:
        if not hasattr(context.command, "commands") or word.startswith("-"):
            break
        subcommand = context.command.get_command(context, word)
        if subcommand is None:
            return [word]
        context = subcommand.make_context(word, [], parent=context, resilient_parsing=True)
    known = {
        name for param in context.command.get_params(context) for name in (*param.opts, *param.secondary_opts)
    }
    known |= {"--help", "--version"}
    flags = [word.rstrip(",").partition("=")[0] for word in words if word.startswith("--")]
    return [flag for flag in flags if flag not in known]
