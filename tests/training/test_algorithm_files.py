"""Algorithms from Python files."""

from pathlib import Path

import pytest

from phalanx.training import load_algorithm

pytestmark = pytest.mark.slow

ALGORITHM_FILE = Path(__file__).parents[1] / "helpers" / "descent.py"


def test_algorithm_is_loaded_from_a_file() -> None:
    assert load_algorithm(str(ALGORITHM_FILE)).name == "descent"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must define one subclass of phalanx.training.Algorithm, not none"),
        ("from phalanx.training import Algorithm\n", "not none"),
        (ALGORITHM_FILE.read_text() + "\n\nclass Other(Descent):\n    pass\n", "not Descent, Other"),
    ],
    ids=["empty file", "import only", "two algorithms"],
)
def test_file_must_define_exactly_one_algorithm(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_algorithm(str(tmp_path / "mine.py"))


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no Python file"):
        load_algorithm(str(tmp_path / "nowhere.py"))
