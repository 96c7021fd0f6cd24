"""An algorithm from a file: found where there is one, refused in words where there is none or several."""

from pathlib import Path

import pytest

from phalanx.training import load_algorithm

pytestmark = pytest.mark.slow

ONE = Path(__file__).parents[1] / "helpers" / "descent.py"


def test_the_one_algorithm_of_a_file_is_found() -> None:
    assert load_algorithm(ONE).name == "descent"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must define one subclass of phalanx.training.Algorithm, and defines none"),
        ("from phalanx.training import Algorithm\n", "and defines none"),
        (ONE.read_text() + "\n\nclass Other(Descent):\n    pass\n", "and defines Descent, Other"),
    ],
    ids=["an empty file", "an import", "two"],
)
def test_a_file_must_define_one(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=words):
        load_algorithm(tmp_path / "mine.py")


def test_what_is_no_python_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no Python file"):
        load_algorithm(tmp_path / "nowhere.py")
