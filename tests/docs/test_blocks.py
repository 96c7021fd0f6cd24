"""The Python and shell blocks of the documentation run as written.

The blocks of a page run in order and in one folder. A block with a title, as in `title="my_env.py"`, is saved
as a file with this name instead. A block that cannot run has a comment `<!-- not run: reason -->` above it.
"""

from pathlib import Path

import pytest

from tests.docs.page_runner import PageError, create_folder, provide_runs, run_page, shrink
from tests.helpers.markdown_pages import ROOT, code_blocks, links, written_pages

pytestmark = pytest.mark.slow

LANGUAGES = {"python", "bash", "sh", "shell", "console", "text", "json", "jsonl", "yaml", "toml"}
LANGUAGES |= {"html", "markdown", "diff", "bibtex", "dockerfile", "makefile", "cpp", "ini", "csv"}


@pytest.fixture(scope="session")
def sample_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("path", written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_of_a_page_run(path: Path, tmp_path: Path, sample_runs: Path) -> None:
    create_folder(tmp_path)
    run_page(path, tmp_path, sample_runs)


@pytest.mark.parametrize("path", written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_name_their_language(path: Path) -> None:
    """A block without a language would not be run."""
    blocks = code_blocks(path.read_text(encoding="utf-8"))
    assert [block.line for block in blocks if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("path", written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_linked_files_exist(path: Path) -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {link}"
        for line, link in links(path.read_text(encoding="utf-8"))
        if "://" not in link
        and not link.startswith(("#", "mailto:"))
        and not (path.parent / link.partition("#")[0]).exists()
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n",
            "page.md:6: the block raised AssertionError",
        ),
        ("```bash\nphalanx doctor nothing\n```\n", "page.md:2: exit code 2: phalanx doctor nothing"),
        ("- a list\n\n    ```python\n    1 / 0\n    ```\n", "page.md:4: the block raised ZeroDivisionError"),
    ],
)
def test_failing_blocks_are_found(tmp_path: Path, text: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=message):
        run_page(page, tmp_path, tmp_path)


def test_blocks_share_names_and_files(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nfrom pathlib import Path\nx = Path('a.txt').write_text('text')\n```\n"
        "<!-- not run: fails -->\n```python\n1 / 0\n```\n"
        "```bash\nVARIABLE=1 python -c \"import os; assert os.environ['VARIABLE']; os.stat('a.txt')\"\n```\n"
        "```python\nassert x == 4 and Path('a.txt').read_text() == 'text'\n```\n"
    )
    run_page(page, tmp_path, tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_blocks_with_a_title_are_saved(tmp_path: Path, number: int) -> None:
    """The second run shows that a page does not get modules or registered environments of another page."""
    page = tmp_path / "page.md"
    page.write_text(
        f'```python title="titled_module.py"\nnumber = {number}\n```\n'
        '```python title="titled_script.py"\nimport titled_module\nprint(titled_module.number)\n```\n'
        '```json title="titled.json"\n[1, 2]\n```\n'
        "```bash\npython titled_script.py\n```\n"
        "```python\nimport json, pathlib, phalanx, titled_module\n"
        f"assert titled_module.number == {number}\n"
        "assert json.loads(pathlib.Path('titled.json').read_text()) == [1, 2]\n"
        f"phalanx.register('titled-v1', 'titled_module:make_{number}')\n"
        "assert 'number' not in globals()\n```\n"
    )
    run_page(page, tmp_path, tmp_path)


def test_training_commands_are_shortened() -> None:
    words = shrink(["phalanx", "train", "bc", "--env", "arc", "num_updates=1000", "--out", "runs/bc"])
    assert "num_updates=2" in words[words.index("num_updates=1000") :]
    assert "env.dataset.num_generated_tasks=8" in words
    assert "model.d_model=8" not in words


def test_sweeps_make_few_trials() -> None:
    command = "phalanx sweep ppo --env arc --out sweeps/grid lr=1e-3,2e-3,4e-3 ent_coef=0.01,0.03"
    assert {"lr=1e-3,2e-3", "ent_coef=0.01"} < set(shrink(command.split()))
    command = "phalanx sweep ppo --env arc --out sweeps/tpe lr=uniform(0,1) --sampler tpe --trials 20"
    words = shrink(command.split())
    assert "lr=uniform(0,1)" in words and words[words.index("--trials") + 1] == "1"


def test_evaluations_are_shortened(tmp_path: Path, sample_runs: Path) -> None:
    provide_runs("runs/bc", tmp_path, sample_runs)
    words = shrink(
        ["phalanx", "eval", str(tmp_path / "runs/bc"), "num_generated_tasks=400", "num_sampled_attempts=8"]
    )
    assert words[3:] == ["num_generated_tasks=400", "num_sampled_attempts=8", "num_generated_tasks=4"]


@pytest.mark.parametrize(("settings", "expected"), [([], True), (["env.dataset=family"], False)])
def test_settings_of_the_generated_knowledge_base_are_added_only_if_it_is_used(
    settings: list[str], expected: bool
) -> None:
    words = shrink(["phalanx", "train", "ppo", "--env", "proofs", *settings])
    assert ("env.generated.num_families=2" in words) is expected
