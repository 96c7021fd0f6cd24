"""Generated pages and images are up to date with the code."""

import re
from pathlib import Path
from typing import Any

import api_pages
import cli_page
import config_page
import generate
import griffe
import pytest
from arc_operations import SCENES, run_scene
from griffe_extensions import DoctestBlocks, FieldConstructors

from phalanx.arc.operations import OPERATIONS
from phalanx.puzzles import puzzle_kinds

ROOT = Path(__file__).parents[2]
UPDATE = "run: python scripts/docs/generate.py"


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generate.generated()


def test_generated_files_are_up_to_date(files: dict[str, str]) -> None:
    assert generate.differing(files) == [], UPDATE


def test_outdated_missing_and_superfluous_files_are_found(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "reference/cli.md").write_text("old", encoding="utf-8")
    (tmp_path / "images/operations/24-rotate-clockwise.svg").unlink()
    (tmp_path / "images/operations/99-gone.svg").touch()
    assert generate.differing(files, tmp_path) == [
        "images/operations/24-rotate-clockwise.svg",
        "images/operations/99-gone.svg",
        "reference/cli.md",
    ]


def test_every_operation_has_one_small_image(files: dict[str, str]) -> None:
    images = [name for name in files if name.startswith("images/operations/")]
    assert len(images) == len(OPERATIONS) == len(SCENES) == 42
    for name in images:
        assert len(files[name].encode()) < 4096, name
        assert files["reference/arc-operations.md"].count(f"](../{name})") == 1


@pytest.mark.parametrize("info", OPERATIONS, ids=lambda info: info.name)
def test_images_show_a_change(info) -> None:
    before, after = run_scene(info.id)
    seen = [
        (view.working.tolist(), view.clipboard.tolist(), view.title, view.done) for view in (before, after)
    ]
    assert seen[0] != seen[1]


def test_rotation_is_clockwise() -> None:
    before, after = run_scene(24)
    assert before.working[1:3, 1:3].tolist() == [[2, 2], [2, 0]]
    assert after.working[1:3, 1:3].tolist() == [[2, 2], [0, 2]]


def test_every_public_config_is_in_the_reference() -> None:
    defined = set()
    for path in sorted((ROOT / "src" / "phalanx").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        defined |= set(re.findall(r"^class ([A-Z]\w+)\(Config\):", text, re.MULTILINE))
        defined |= set(re.findall(r"^class ([A-Z]\w+Config)\(BaseModel\):", text, re.MULTILINE))
    listed = {model.__name__ for _, _, model in config_page.models()}
    assert defined - listed == set(), "add them to GROUPS in scripts/docs/config_page.py"


def test_settings_have_type_bounds_default_and_description(files: dict[str, str]) -> None:
    row = (
        "| `max_episode_steps`<br>`int`, ≥ 1 | `100` | Number of steps after which an episode is truncated. |"
    )
    assert row in files["reference/config.md"]


def test_every_setting_has_a_docstring() -> None:
    undocumented = [
        f"{model.__name__}.{name}"
        for _, _, model in config_page.models()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert undocumented == []


def test_lazily_imported_commands_are_listed(files: dict[str, str]) -> None:
    paths = [context.command_path for context in cli_page.commands()]
    assert {"phalanx demo", "phalanx train", "phalanx data batchplan shard"} <= set(paths)
    headings = re.findall(r"^#+ (phalanx.*)$", files["reference/cli.md"], re.MULTILINE)
    assert headings == paths
    assert "--token-budget int` | Maximum number of tokens in a batch" in files["reference/cli.md"]


def test_environments_page_describes_every_built_in_environment(files: dict[str, str]) -> None:
    page = files["reference/environments.md"]
    for name in ("arc-v2", "proofs-v1", "puzzle_server-v1", *(kind.name for kind in puzzle_kinds())):
        assert f"| `{name}` |" in page
    for property in ("Observation", "Action", "Reward", "Termination"):
        assert page.count(f"| {property} | ") >= 2


def test_api_pages_contain_every_public_name_once(files: dict[str, str]) -> None:
    for package in api_pages.packages():
        page = files[f"reference/api/{(package.split('.')[1:] or ['phalanx'])[0]}.md"].splitlines()
        for name in api_pages.public_names(package):
            assert page.count(f"::: {name.module}.{name.name}") == 1, name


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    extensions = griffe.load_extensions(FieldConstructors(), DoctestBlocks())
    loaded = griffe.load(
        "phalanx", search_paths=[ROOT / "src"], allow_inspection=False, extensions=extensions
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("data.packing.PackingConfig", ["self", "mode", "max_length"]),
        ("arc.env.ArcEnvironment", ["self", "config", "task_arrays"]),
        ("kg.rules.mining.MiningConfig", ["self"]),
    ],
)
def test_constructors_have_the_fields_as_parameters(package: Any, name: str, parameters: list[str]) -> None:
    found = package[name].members["__init__"].parameters
    assert [parameter.name for parameter in found][: len(parameters)] == parameters
    assert "config_type" not in found


def test_doctests_are_code_blocks(package: Any) -> None:
    docstring = package["arc.operations.operation_name"].docstring.value
    assert "```pycon\n>>> operation_name(24)\n'Rotate clockwise'\n```" in docstring
