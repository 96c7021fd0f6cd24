"""Shell commands in the documentation: extraction, validation, and reasons for not running some of them."""

import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from phalanx.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
_BLOCK = re.compile(r"(<!-- not run: ([^\n]*?) -->\n+)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"phalanx", "python", "python3", "pip", "make", "for", "server-launcher", "sbatch", "docker"}
_SETTING = re.compile(r"(?:[A-Z_]+=\S* +)*")
"""Variables before a command, as in `PHALANX_NATIVE=0 phalanx info`."""

NOT_RUN: dict[str, str] = {
    r"phalanx (train|demo|sweep) ": "trains for minutes; tests/cli trains small models with the same options",
    r"phalanx play ": "needs a terminal and a person; tests/arc/test_play_app.py runs it",
    r"make ": "installs, trains, tests or measures everything; continuous integration runs it",
    r"(pip|python3? -m venv|\S*/bin/pip) ": "installs packages from the network",
    r"(python benchmarks|\S*/bin/python scripts)/": "measures for minutes; tests/benchmarks uses small sizes",
    r"server-launcher |phalanx puzzles collect|phalanx play puzzle_server": "needs a puzzle server",
    r"phalanx serve ": "serves until it is stopped; tests/cli/test_serve.py starts and stops it",
    r"phalanx kg download .*\w": "needs the network; tests/cli/test_kg_download.py serves it",
    r"phalanx kg \S+ data/kg-standard/": "needs published triples; tests/cli/test_kg_mine.py mines others",
    r".* --ray": "starts Ray, or needs a cluster; tests/cli/test_data_lengths_ray.py starts one",
    r"phalanx data pack \S+ --tokenizer": "needs a tokenizer; tests/cli/test_data_pack.py creates one",
    r"phalanx eval runs/(family|umls-kge|wn18rr-kge)": "needs a trained prover; see tests/cli/test_train_*",
    r"phalanx (eval|export) runs/lm": "needs a trained language model; tests/training/test_sft.py trains one",
    r"phalanx eval RUN ": "RUN stands for a run; runs/mine is evaluated",
    r"for ": "trains for minutes; each command of the loop is parsed",
}
"""Patterns of commands that are not run, with the reason.

Blocks below `<!-- not run: reason -->` are not run either.
"""


@dataclasses.dataclass(frozen=True)
class Shell:
    """One command, its page and line, and the reason not to run it."""

    where: str
    text: str
    reason: str = ""

    @property
    def words(self) -> list[str]:
        return shlex.split(_SETTING.sub("", self.text, count=1), comments=True)


def commands() -> Iterator[Shell]:
    """Yield the commands in the shell blocks of all pages, in order."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            words = block[4].split()
            if block[3] not in ("", "bash", "sh") or not words:
                continue
            if not block[3] and words[0] not in _PROGRAMS and not words[0].endswith("/python"):
                continue
            begin = text[: block.start(4)].count("\n") + 1
            lines = re.sub(r"\\\n\s*", " ", block[4]).split("\n")
            for number, line in enumerate(lines):
                if line.strip() and not line.startswith("#"):
                    for part in line.split(" && "):
                        where = f"{page.relative_to(ROOT)}:{begin + number}"
                        yield Shell(where, part, block[2] or _reason(part))


def _reason(text: str) -> str:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, text)), "")


def parse_command(words: list[str]) -> Any:
    """Parse a command without running it and return its context."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("phalanx", words[1:])
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return context


def check(words: list[str]) -> None:
    """Raise an error if a flag, setting, preset, file, target or extra does not exist."""
    if words[0] == "phalanx":
        context = parse_command(words)
        if context.info_name == "train":
            _check_settings(context.params)
        elif context.info_name == "sweep":
            _check_sweep(context.params)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words[1:2]) <= set(targets), words
    elif words[0] == "for":
        inner = " ".join(words[words.index("do") + 1 :]).removesuffix("; done").replace("$seed", "0")
        check(shlex.split(inner.rstrip(";").removesuffix(" done").rstrip(";")))
    elif words[0].endswith("pip"):
        _check_extras(words)
    elif words[0].endswith(("python", "python3")) and words[1] != "-m":
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        unknown = [
            word for word in words if word.startswith("--") and f'"{word.partition("=")[0]}"' not in source
        ]
        # Options that benchmarks share are defined in a module in the same folder.
        shared = "".join(path.read_text(encoding="utf-8") for path in (ROOT / words[1]).parent.glob("*.py"))
        assert [word for word in unknown if f'"{word}"' not in shared] == [], words


def _check_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        for named in re.findall(r"(?:phalanx|\.)\[([\w,]+)\]", word):
            assert set(named.split(",")) <= set(extras["optional-dependencies"]), word


def _check_settings(params: dict[str, Any]) -> None:
    """Load the config of a training command, unless it comes from another run."""
    from phalanx.training import load_algorithm

    name = params["algorithm"]
    algorithm = load_algorithm(str(ROOT / name) if name.endswith(".py") else name)
    env, config, overrides = (params.get(key) for key in ("env", "config", "overrides"))
    if params.get("init_from") is None and not params.get("resume") and not params.get("extend"):
        algorithm.config_type.load(config, overrides or [], env=env)


def _check_sweep(params: dict[str, Any]) -> None:
    """Load a config with the first value, or the lower bound, of each setting."""
    from phalanx.training.sweep import split_values

    named = (setting.partition("=") for setting in params["settings"])
    ranged = {name: re.sub(r"^\w+\(([^,]+),.*\)$", r"\1", value) for name, _, value in named}
    overrides = [f"{name}={split_values(value)[0]}" for name, value in ranged.items()]
    _check_settings({**params, "overrides": overrides})


_SPAN = re.compile(r"(?<!`)`(phalanx [a-z][^`\n]*)`(?!`)")


def spans() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of commands in sentences and tables. `...` and later words are removed."""
    for page in PAGES:
        if page.name == "file_formats.md":  # `phalanx batch plan` is the header of a file
            continue
        for text in _SPAN.findall(page.read_text(encoding="utf-8")):
            yield page.name, shlex.split(re.sub(r"\s*\.\.\..*|[\[\]]", "", text))


def unknown_flags(words: list[str]) -> list[str]:
    """Return the flags that the command does not have, or the name of an unknown command."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("phalanx", [], resilient_parsing=True)
    for word in words[1:]:
        if not hasattr(context.command, "commands") or word.startswith("-"):
            break
        # `play` accepts `puzzle_server:GAME` as well as `puzzle_server GAME`.
        word = word.partition(":")[0]
        subcommand = context.command.get_command(context, word)
        if subcommand is None:
            return [word]
        context = subcommand.make_context(word, [], parent=context, resilient_parsing=True)
    known = {
        name for param in context.command.get_params(context) for name in (*param.opts, *param.secondary_opts)
    }
    return [w for w in words if w.startswith("--") and w.rstrip(",").partition("=")[0] not in known]
