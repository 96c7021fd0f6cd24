"""Pages and pictures that are made from the code are what the code says now."""

import re
from pathlib import Path

import cli_page
import config_page
import generate
import pytest
from operation_scenes import SCENES, play

from phalanx.arc.operations import OPERATIONS

ROOT = Path(__file__).parents[2]
RENEW = "renew them: python scripts/docs/generate.py"


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generate.generated()


def test_every_generated_file_is_up_to_date(files: dict[str, str]) -> None:
    assert generate.differing(files) == [], RENEW


def test_a_file_that_differs_is_missing_or_left_over_is_named(files: dict[str, str], tmp_path: Path) -> None:
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


def test_every_operation_has_one_small_picture_on_its_page(files: dict[str, str]) -> None:
    pictures = [name for name in files if name.startswith("images/operations/")]
    assert len(pictures) == len(OPERATIONS) == len(SCENES) == 42
    for name in pictures:
        assert len(files[name].encode()) < 4096, name
        assert files["operations.md"].count(f"]({name})") == 1


@pytest.mark.parametrize("info", OPERATIONS, ids=lambda info: info.name)
def test_a_picture_shows_that_something_happens(info) -> None:
    before, after = play(info.id)
    seen = [
        (view.working.tolist(), view.clipboard.tolist(), view.title, view.done) for view in (before, after)
    ]
    assert seen[0] != seen[1]


def test_a_rotation_is_drawn_as_the_environment_does_it() -> None:
    before, after = play(24)
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


def test_a_setting_is_shown_with_type_default_bounds_and_docstring(files: dict[str, str]) -> None:
    row = (
        "| `max_episode_steps` | `int` | `100` | ≥ 1 | Number of steps after which an episode is truncated. |"
    )
    assert row in files["reference/config.md"]


def test_every_setting_has_a_docstring() -> None:
    silent = [
        f"{model.__name__}.{name}"
        for _, _, model in config_page.models()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert silent == []


def test_commands_that_are_imported_late_are_in_the_reference(files: dict[str, str]) -> None:
    paths = [context.command_path for context in cli_page.commands()]
    assert {"phalanx demo", "phalanx train", "phalanx data batchplan shard"} <= set(paths)
    headings = re.findall(r"^#+ (phalanx.*)$", files["reference/cli.md"], re.MULTILINE)
    assert headings == paths
    assert "--token-budget int` | Maximum number of tokens in a batch" in files["reference/cli.md"]
