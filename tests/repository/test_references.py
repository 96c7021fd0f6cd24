"""Names in backticks in docstrings exist."""

import ast
import builtins
import functools
import keyword
import re
from collections.abc import Iterator

from tests.repository.source import PACKAGE, modules

BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
FILE_SUFFIXES = {"csv", "gz", "html", "js", "json", "jsonl", "md", "npz", "py", "svg", "tsv", "txt", "yaml"}
OTHER_NAMES = {
    # Libraries, and their names that the package does not import.
    *("pooch", "requests", "rliable", "transformers", "phalanx_verifiers", "pytest", "mark", "parametrize"),
    *("AddActionMaskWrapper", "AutoModelForCausalLM", "AutoResetWrapper", "GRPOTrainer", "GymEnv"),
    "O2ARCv2Env",
    *("MaskablePPO", "MlpPolicy", "MultiInputPolicy", "SFTTrainer", "StepCounter", "Trainer", "VecMonitor"),
    *("documents", "enable_thinking", "save_to_disk"),
    *("deserialize", "from_pretrained", "frameskip", "make_vec", "pin_memory", "prefetch_factor", "sigmoid"),
    # Text that is computed, and JavaScript.
    *("attempt_1", "attempt_2", "fill_3", "line7", "rotate_clockwise", "seed_i"),
}
"""Names in docstrings that are not in the code of the package."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Iterate over the docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


@functools.cache
def known_names() -> frozenset[str]:
    """Collect all identifiers, imported names and words in string constants of the package's code."""
    names = {*dir(builtins), *keyword.kwlist, *OTHER_NAMES}
    for module, tree in modules().items():
        names.update(module.split("."))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.alias(name=name, asname=alias):
                    names.update(name.split("."))
                    names.update([alias] if alias else [])
                case ast.Constant(value=str(text)) if id(node) not in documentation:
                    names.update(re.findall(r"\w+", text))
    for path in PACKAGE.rglob("*"):
        names.update(re.findall(r"\w+", path.name))
    return frozenset(names)


def module_exists(path: str) -> bool:
    """Return whether a dotted path is a module, or a name that a module's code contains."""
    if path in modules():
        return True
    parent, _, name = path.rpartition(".")
    if parent not in modules():
        return bool(parent) and module_exists(parent) and name in known_names()
    stub = PACKAGE.parent.joinpath(*parent.split("."), "__init__.pyi")
    source = ast.unparse(modules()[parent]) + (stub.read_text(encoding="utf-8") if stub.exists() else "")
    return re.search(rf"\b{name}\b", source) is not None


def test_references_in_docstrings_exist() -> None:
    missing = []
    for module, tree in modules().items():
        for line, text in docstrings(tree):
            for reference in BACKTICKS.findall(text):
                if not (found := REFERENCE.fullmatch(reference)):
                    continue
                path = found[1]
                if path.rpartition(".")[2] in FILE_SUFFIXES:
                    continue
                if path.startswith("phalanx."):
                    exists = module_exists(path)
                else:
                    exists = all(part in known_names() for part in path.split("."))
                if not exists:
                    missing.append(f"{module}:{line}: `{reference}`")
    assert missing == []
