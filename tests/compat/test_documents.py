"""Every code block of the documents runs after changing only the import root.

`documents/` contains copies of the documents that `phalanx.compat` supports. The names that they use without
defining them, and checks of what a block computes, are in `prelude.py`.
"""

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.register_assert_rewrite("tests.compat.prelude")

from tests.compat import prelude  # noqa: E402

DOCUMENTS = Path(__file__).parent / "documents"
ORIGINALS = [folder / "shared" / "seeds" for folder in DOCUMENTS.parents]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^(\s*)(from|import) (jaxarc|chuk_lazarus|deepprooflog)\b", re.MULTILINE)
_OMITTED_ARGUMENTS = re.compile(r"(, |^\s*)\.\.\.(?=\s*\))", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a document."""

    line: int
    language: str
    text: str


def read_blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start(3)) + 1, match[2], textwrap.dedent(match[3]))
        for match in _FENCE.finditer(text)
    ]


def run_python(block: Block, path: Path, namespace: dict[str, Any]) -> None:
    """Run a block, which may use `await` at the top level. Tracebacks show lines of the document."""
    code = _IMPORT.sub(r"\1\2 phalanx.compat.\3", block.text)
    # `f(a, b=1, ...)` stands for more arguments, but is not valid Python.
    code = _OMITTED_ARGUMENTS.sub("", code)
    tree = ast.parse(code, str(path))
    ast.increment_lineno(tree, block.line - 1)
    compiled = compile(tree, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, namespace)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("name", prelude.NAMES)
def test_every_code_block_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DOCUMENTS / f"{name}.md"
    monkeypatch.chdir(tmp_path)
    provided = prelude.NAMES[name]()
    namespace: dict[str, Any] = {}
    for number, block in enumerate(read_blocks(path)):
        # Names of the package take precedence over definitions of earlier blocks, many of which are stubs.
        namespace |= provided
        prelude.BEFORE.get((name, number), _do_nothing)(namespace, monkeypatch)
        try:
            if block.language == "python":
                run_python(block, path, namespace)
            prelude.AFTER.get((name, number), _do_nothing)(namespace, capsys.readouterr().out, block.text)
        except BaseException as error:
            error.add_note(f"in code block {number} of {path.name}, line {block.line}")
            raise


def _do_nothing(*_: Any) -> None:
    pass


def test_every_check_refers_to_a_code_block() -> None:
    for name, number in (*prelude.BEFORE, *prelude.AFTER):
        assert number < len(read_blocks(DOCUMENTS / f"{name}.md"))


def test_copies_equal_the_originals() -> None:
    folder = next((folder for folder in ORIGINALS if folder.is_dir()), None)
    if folder is None:
        pytest.skip("the original documents are not on this machine")
    originals = {path.name: path.read_bytes() for path in folder.glob("*.md")}
    assert {path.name: path.read_bytes() for path in DOCUMENTS.glob("*.md")} == originals
