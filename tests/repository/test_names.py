"""Public names use the terms of the field, renamed settings stay renamed, and class names are unique."""

import ast
import collections
import importlib
import re
from collections.abc import Iterator

import pytest

from phalanx.config import Config
from tests.repository.source import modules

pytestmark = pytest.mark.slow

FORBIDDEN_WORDS = (
    # Use report, log, print, raise; submit, evaluate; checksum; reference; untrusted, third-party; intact.
    *("told", "tells", "hand_in", "handed_in", "hands_in", "examined", "examination", "examinations"),
    *("seal", "seals", "sealed", "unsealed", "twin", "twins", "foreign", "stranger", "strangers"),
    *("beside", "whole", "anew", "somebody", "nobody", "leftover", "leftovers"),
    # Use generate; run, roll out; create, draw, fit, extend.
    *("writing", "played", "playing", "tried", "taught", "said", "made", "lengthened"),
    *("drawn", "fitted", "settled", "weighed", "weighing"),
    # Use random_move_prob, max_edges_per_step, max_predictions, confidence_smoothing, mfu, clip_fraction, bc.
    *("wander", "fan", "enough", "pessimism", "widest", "peak_share", "clipped_share", "cloning"),
    # Use TrainState, run loop, stop_signals, run_status, backend, heuristic, QueryAnswerer.
    *("learner", "journal", "safeguards", "standing", "engine", "engines", "guide", "guides", "asker"),
    # Use LMTokenizer, error, invalid; StreamingPlan; puzzle server; logp_diff_max.
    *("prompter", "refused", "refusal", "live_plan", "arcade", "legal_only", "first_gap", "largest_gap"),
    # Use pad_to, TaskArrays, REWARD_WEIGHTS, reward.
    *("with_room", "unnamed_tasks", "reward_numbers", "pay", "pays"),
)
"""Words that no public name outside `phalanx.compat` may contain; the comments list the terms to use."""


def defined_names(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Iterate over the public names that a module defines, each with the place of its definition."""
    yield module.rpartition(".")[2], module

    def visit(body: list[ast.stmt], scope: str) -> Iterator[tuple[str, str]]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and not node.name.startswith("__"):
                    continue
                yield node.name, f"{scope}.{node.name}"
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{scope}.{node.name}")
                else:
                    arguments = node.args
                    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                        yield argument.arg, f"{scope}.{node.name}({argument.arg}=)"
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (name for target in targets for name in ast.walk(target)):
                    if isinstance(name, ast.Name) and not name.id.startswith("_"):
                        yield name.id, f"{scope}.{name.id}"

    yield from visit(tree.body, module)


def snake_case(name: str) -> str:
    """Convert a name to lower-case words between underscores, with an underscore at both ends."""
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}_"


def own_modules() -> dict[str, ast.Module]:
    return {name: tree for name, tree in modules().items() if not name.startswith("phalanx.compat")}


def test_public_names_contain_no_forbidden_word() -> None:
    found = [
        f"{where}: {word}"
        for module, tree in own_modules().items()
        for name, where in defined_names(module, tree)
        for word in FORBIDDEN_WORDS
        if f"_{word}_" in snake_case(name)
    ]
    assert found == []


def test_public_class_names_are_unique() -> None:
    modules_by_class = collections.defaultdict(list)
    for module, tree in own_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_by_class[node.name].append(module)
    assert {name: found for name, found in modules_by_class.items() if len(found) > 1} == {}


def defines_config_class(tree: ast.Module) -> bool:
    """Return whether a module defines a class with a base class whose name contains `Config`."""
    return any(
        "Config" in ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    )


def config_classes() -> list[type[Config]]:
    """Import all modules with config classes and return the classes outside `phalanx.compat`."""
    for module, tree in own_modules().items():
        # Importing every integration's library would take longer than everything else here.
        if module.endswith("__main__") or not defines_config_class(tree):
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Integrations need their library.
            if error.name is None or error.name.partition(".")[0] == "phalanx":
                raise
    found: list[type[Config]] = [Config]
    for cls in found:
        found += cls.__subclasses__()
    return [
        cls
        for cls in dict.fromkeys(found)
        if cls.__module__.startswith("phalanx.") and not cls.__module__.startswith("phalanx.compat")
    ]


def test_renamed_settings_are_not_settings_anymore() -> None:
    found = [
        f"{cls.__name__}.{old}"
        for cls in config_classes()
        for old in vars(cls).get("renamed_settings", {})
        if old in cls.model_fields
    ]
    assert found == []


def test_renamed_settings_exist_under_their_new_name() -> None:
    found = []
    for cls in config_classes():
        for old, new in vars(cls).get("renamed_settings", {}).items():
            if new.partition(".")[0] not in cls.model_fields:
                found.append(f"{cls.__name__}: {old} was renamed to {new}, which is not a setting")
    assert found == []
