"""Generate `docs/reference/environments.md`: all registered environments.

The descriptions come from the class docstrings, and the puzzle kinds from `phalanx.puzzles`.
"""

import inspect
import re
from collections.abc import Iterator, Mapping

from phalanx.arc.env import ArcEnvironment
from phalanx.proofs.env import ProofEnvironment
from phalanx.puzzles import PuzzleEnvironment, puzzle_kinds
from phalanx.registry import registered_environments
from phalanx.text.registry import registered_text_environments

PAGE = "reference/environments.md"
GUIDES = {
    "arc": "[ARC tasks and episodes](../guides/arc.md)",
    "proofs": "[Proof search](../guides/proofs.md)",
    "puzzle_server": "[Streams, mixtures and replay buffers](../guides/streaming.md)",
}
SECTIONS = {"ARC": ArcEnvironment, "Proof search": ProofEnvironment}
"""Title and class of each section about a JAX environment."""


def page() -> str:
    """Return the Markdown of the page."""
    return "\n".join(_lines()) + "\n"


def items(docstring: str) -> dict[str, str]:
    """Return the items of the list in a class docstring, such as `- Action: ...`, by their names.

    >>> items("Text.\\n\\n- **Action**: one\\n  line.\\n- Reward: none.\\n\\nMore.")
    {'Action': 'one line.', 'Reward': 'none.'}
    """
    found = re.findall(r"^- \**(\w+)\**: (.*?)(?=^- |^\s*$|\Z)", docstring, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def summary(docstring: str) -> str:
    """Return the paragraphs before the list in a docstring, without line breaks."""
    text = re.split(r"^- ", docstring, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _lines() -> Iterator[str]:
    yield "# Environments"
    yield ""
    yield (
        "JAX environments are created with `phalanx.make(id)` and run thousands of episodes in parallel in "
        "one compiled call. Text environments are created with `phalanx.make_text_env(name)` and run "
        "one episode at a time; their observations and actions are text. JAX environments with text prompts "
        "can also be used as text environments."
    )
    yield from ("", "| id | interface | task | guide |", "| --- | --- | --- | --- |")
    for interface, environments in (
        ("JAX", registered_environments()),
        ("text", registered_text_environments()),
    ):
        for found in environments:
            # Other installed packages can register more.
            if found.name in GUIDES:
                yield f"| `{found.id}` | {interface} | {found.description} | {GUIDES[found.name]} |"
    task = "generated puzzles with exact verifiers and solvers"
    yield f"| [ten puzzle kinds](#puzzles) | text | {task} | [Text puzzles](../guides/puzzles.md) |"
    for title, environment in SECTIONS.items():
        docstring = inspect.getdoc(environment) or ""
        yield from ("", f"## {title}", "", summary(docstring), "")
        yield from _table(items(docstring))
    yield from _puzzles()


def _table(texts: dict[str, str]) -> Iterator[str]:
    yield from ("| property | description |", "| --- | --- |")
    for name, text in texts.items():
        yield f"| {name} | {text[0].upper() + text[1:]} |"


def _puzzles() -> Iterator[str]:
    docstring = inspect.getdoc(PuzzleEnvironment) or ""
    yield from ("", "## Puzzles", "", summary(docstring), "")
    yield from _table({name.replace("End", "Termination"): text for name, text in items(docstring).items()})
    yield ""
    yield (
        '`phalanx.make_text_env("sudoku:easy:single")` creates a single-turn environment with easy Sudoku '
        "puzzles. The table shows the generator parameters of each difficulty."
    )
    yield ""
    yield "| kind | task | accepted solutions | easy | medium | hard |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in puzzle_kinds():
        solutions = "unique" if kind.has_unique_solution else "any valid"
        cells = [_parameters(kind.difficulties[level]) for level in ("easy", "medium", "hard")]
        yield f"| `{kind.name}` | {kind.description} | {solutions} | {' | '.join(cells)} |"


def _parameters(difficulty: Mapping[str, int]) -> str:
    return "<br>".join(f"{name}&nbsp;{value}" for name, value in difficulty.items())
