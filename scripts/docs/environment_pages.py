"""Generate `docs/reference/environments.md`: all registered environments.

The descriptions come from the class docstrings, and the puzzle kinds from `phalanx.puzzles`.
"""

import inspect
import re
from collections.abc import Iterator, Mapping

from phalanx.puzzles import PuzzleEnvironment, puzzle_kinds
from phalanx.registry import EnvSpec, registered_environments

PAGE = "reference/environments.md"
GUIDES = {
    "arc": "[ARC tasks and episodes](../guides/arc.md)",
    "proofs": "[Proof search](../guides/proofs.md)",
    "puzzle_server": "[Streams, mixtures and replay buffers](../guides/streaming.md)",
}
TITLES = {"arc": "ARC", "proofs": "Proof search"}


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
    jax = _built_in("jax")
    for spec in (*jax, *_built_in("text")):
        interface = "JAX" if spec.interface == "jax" else "text"
        yield f"| `{spec.id}` | {interface} | {spec.description} | {GUIDES[spec.name]} |"
    task = "generated puzzles with exact verifiers and solvers"
    yield f"| [ten puzzle kinds](#puzzles) | text | {task} | [Text puzzles](../guides/puzzles.md) |"
    for spec in jax:
        yield from _jax_environment(spec)
    yield from _puzzles()


def _built_in(interface: str) -> list[EnvSpec]:
    """Return the environments of this package; other installed packages can register more."""
    return [
        spec for spec in registered_environments(interface) if str(spec.entry_point).startswith("phalanx.")
    ]


def _jax_environment(spec: EnvSpec) -> Iterator[str]:
    docstring = inspect.getdoc(spec.load()) or ""
    yield from ("", f"## {TITLES.get(spec.name, spec.name)}", "", summary(docstring), "")
    yield from _table(items(docstring))


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
