"""The two speeds of the suite: every name in the list is a test, and the two commands differ by the list."""

import ast
import re
from pathlib import Path

import pytest

from tests.speeds import HERE, SLOW, is_slow

MAKEFILE = (HERE.parent / "Makefile").read_text(encoding="utf-8")


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("entry", SLOW)
def test_every_name_in_the_list_is_a_folder_a_file_or_a_test(entry: str) -> None:
    file, _, test = entry.partition("::")
    assert (HERE / file).is_dir() if file.endswith("/") else (HERE / file).is_file()
    assert not test or test in functions_in(HERE / file)


def test_the_list_names_nothing_twice() -> None:
    for entry in SLOW:
        others = [other for other in SLOW if other != entry]
        assert len(others) == len(SLOW) - 1
        assert not any(entry.startswith(other if other.endswith("/") else f"{other}::") for other in others)


def test_every_file_of_tests_is_in_one_of_the_two() -> None:
    files = {path.relative_to(HERE).as_posix() for path in HERE.rglob("test_*.py")}
    slow = {file for file in files if is_slow(file)}
    assert slow and files - slow
    rooms = {file.partition("/")[0] for file in files - slow}
    assert {"arc", "cli", "core", "data", "docs", "kg", "logging", "proofs", "training"} <= rooms


def test_a_test_is_slow_by_its_folder_its_file_or_its_name() -> None:
    assert is_slow("examples/test_examples.py::test_x") and is_slow("data/test_ray_lengths.py")
    name = "arc/test_env.py::test_one_action_shared_by_a_whole_vmapped_batch_is_spread"
    assert is_slow(name) and is_slow(f"{name}[xla]")
    assert not is_slow("arc/test_env.py") and not is_slow(f"{name}_out")


def test_check_leaves_the_slow_ones_out_and_test_runs_everything() -> None:
    check, test = (re.search(rf"^{name}:.*\n\t(.*)$", MAKEFILE, re.M) for name in ("check", "test"))
    assert check is not None and '-m "not slow"' in check[1]
    assert test is not None and "not slow" not in test[1]
