"""Commands in the documentation parse: their flags, settings, presets, files, targets and extras exist."""

from pathlib import Path

import pytest

from tests.docs.commands import ShellCommand, check_command, shell_commands, unknown_flags
from tests.helpers.markdown_pages import ROOT, code_spans, written_pages

FORMAT_NAMES = {"phalanx batch plan", "phalanx samples"}
"""First lines of files."""
COMMANDS = [command for path in written_pages() for command in shell_commands(path)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}:{command.line}")
def test_command_parses(command: ShellCommand) -> None:
    check_command(command.words)


@pytest.mark.parametrize("path", written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_flags_in_inline_code_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    errors = [
        f"{path.relative_to(ROOT)}:{line}: {unknown}: {span}"
        for line, span in code_spans(text)
        if span.startswith("phalanx ") and span not in FORMAT_NAMES and (unknown := unknown_flags(span))
    ]
    assert errors == []


@pytest.mark.parametrize(
    "text",
    [
        "phalanx train ppo --env arc --sedes 3",
        "phalanx train ppo --env arc num_update=3",
        "phalanx train ppo --config grande",
        "phalanx sweep ppo --env arc optimizer.learning_rat=1,2 --out x",
        "phalanx trian ppo --env arc",
        "python examples/arc/random_policy.py --stepz 3",
        "python examples/arc/no_such_file.py",
        "python -m no_such_module",
        "make demoo",
        'pip install "phalanx[plays]"',
        "pip install -e '.[plays]'",
        "gti clone x",
    ],
)
def test_invalid_commands_are_found(text: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check_command(ShellCommand("page.md", 1, text).words)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("phalanx kg show --paths x", ["--paths"]),
        ("phalanx dta", ["dta"]),
        ("phalanx train ppo --env arc ...", []),
        ("phalanx [OPTIONS] COMMAND", []),
    ],
)
def test_unknown_flags(text: str, unknown: list[str]) -> None:
    assert unknown_flags(text) == unknown


def test_commands_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\n# comment\nphalanx info  # comment\n"
        "phalanx train ppo \\\n  --env arc && phalanx doctor\n```\n"
        "<!-- not run: needs a network -->\n```sh\n$ pip install phalanx\n```\n"
        "```text\nphalanx output\n```\n"
    )
    assert [(command.line, command.text, command.not_run) for command in shell_commands(page)] == [
        (3, "phalanx info  # comment", ""),
        (4, "phalanx train ppo --env arc", ""),
        (4, "phalanx doctor", ""),
        (9, "pip install phalanx", "needs a network"),
    ]
