"""Published numbers come from the result files of the benchmarks."""

import fnmatch
import json
import statistics
from pathlib import Path

import figures
import pytest
from benchmarks.suite import find_suites
from figures import PageError, Results, System, Table, Text

from phalanx import __version__

ARC_ENV = {
    "suite": "arc_env",
    "version": "0.3.0",
    "measurements": [
        {
            "id": "native",
            "system": "phalanx",
            "unit": "steps/s",
            "median": 2_604_211,
            "values": [2_500_000, 2_604_211, 2_700_000],
            "cpu_values": [1e6, 2e6, 3e6],
            "settings": {"valid_mrr": 0.5601, "num_envs": 1024, "grid": [30, 30]},
        },
        {
            "id": "jaxarc",
            "system": "JaxARC",
            "unit": "steps/s",
            "median": 8_604,
            "values": [8_604],
            "cpu_values": [8_000],
            "settings": {},
        },
        {
            "id": "compile",
            "system": "phalanx",
            "unit": "s",
            "median": 0.221,
            "values": [0.221],
            "cpu_values": [],
            "settings": {},
        },
    ],
}
DEMO = {
    "suite": "arc_demo",
    "version": "0.3.0",
    "measurements": [
        {
            "id": "after",
            "system": "phalanx",
            "unit": "%",
            "median": 97.04,
            "values": [97.04],
            "cpu_values": [],
            "settings": {},
        }
    ],
}
TABLE = Table(
    "speed",
    ["environment", "steps/s", "ratio"],
    [
        ("Phalanx", ["arc_env.native", "arc_env.native / arc_env.jaxarc"]),
        ("a paper", [Text("9,000"), Text("[source](https://example.org)")]),
    ],
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a repository with two result files and a README."""
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    for result in (ARC_ENV, DEMO):
        path = tmp_path / "benchmarks/results" / f"{result['suite']}.json"
        path.write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("It solves <!--{{arc_demo.after}}-->97.0%<!--/--> of them.\n")
    return tmp_path


@pytest.fixture
def results(root: Path) -> Results:
    return Results(root / "benchmarks/results")


def test_repository_has_no_errors() -> None:
    assert figures.check(figures.ROOT, __version__) == []


def test_every_table_with_results_is_on_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in figures.written_pages())
    suites = [path.stem for path in (figures.ROOT / "benchmarks" / "results").glob("*.json")]
    measured = [table.name for table in figures.TABLES if table.name in ("readme", *suites)]
    assert [name for name in measured if f"<!--{{{{table {name}}}}}-->" not in text] == []


def test_tables_contain_cases_of_all_suites() -> None:
    suites = find_suites()
    cells = [
        cell for table in figures.TABLES for _, row in table.rows for cell in row if isinstance(cell, str)
    ]
    names = [name.split(":")[0].strip().split(".", 1) for cell in cells for name in cell.split(" / ")]
    # Experiments name their measurements themselves.
    unknown = [
        (suite, id)
        for suite, id in names
        if not suites[suite].has_experiments() and not fnmatch.filter(suites[suite].ids(), id)
    ]
    assert unknown == []
    assert set(suites) == {suite for suite, _ in names}


def test_table_of_a_suite_lists_all_its_measurements(results: Results) -> None:
    assert figures.fill("a\n\n<!--{{table arc_env}}-->\n<!--/-->", "a.md", results, []) == (
        "a\n\n<!--{{table arc_env}}-->\n\n"
        "| case | library | median | lowest to highest |\n| --- | --- | ---: | ---: |\n"
        "| `native` | phalanx | 2.60 M steps/s | 2.50 M to 2.70 M |\n"
        "| `jaxarc` | JaxARC | 8,600 steps/s |  |\n"
        "| `compile` | phalanx | 0.22 s |  |\n\n<!--/-->"
    )
    assert "compile" not in figures.format_suite_table("arc_env", "native", results)
    with pytest.raises(ValueError, match="no measurement whose id contains 'unknown'"):
        figures.format_suite_table("arc_env", "unknown", results)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2_604_211, "steps/s", "2.60 M"),
        (12_340_000, "steps/s", "12.3 M"),
        (999_600, "tokens/s", "1.00 M"),
        (325_123, "steps/s", "325,000"),
        (8_604, "samples/s", "8,600"),
        (86.44, "tasks/s", "86.4"),
        (97, "%", "97.0%"),
        (0, "%", "0.0%"),
        (0.2213, "s", "0.22 s"),
        (0.0998, "s", "0.10 s"),
        (12.34, "s", "12.3 s"),
        (1234, "s", "20.6 minutes"),
        (314.2, "ms", "314 ms"),
        (80.34, "MB", "80.3 MB"),
        (0.5601, "MRR", "0.560"),
        (0.6472, "Hits@10", "0.647"),
        (72, "tasks", "72"),
        (12_345, "tasks", "12,345"),
        (72.5, "tasks", "72.5"),
    ],
)
def test_format_value(value: float, unit: str, text: str) -> None:
    assert figures.format_value(value, unit) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.534, "0.53"), (1.04, "1.0"), (13.8, "14"), (99.7, "100"), (225.4, "230"), (3183, "3,200")],
)
def test_format_ratio(ratio: float, text: str) -> None:
    assert figures.format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("arc_env.native", "2.60 M"),
        ("arc_env.native cpu", "2.00 M"),
        ("arc_env.native / arc_env.jaxarc", "300"),
        ("arc_env.native / arc_env.jaxarc cpu", "250"),
        ("arc_env.native:valid_mrr", "0.560"),
        ("arc_env.native:num_envs", "1,024"),
    ],
)
def test_evaluate(results: Results, expression: str, text: str) -> None:
    assert results.evaluate(expression) == text


def test_fill_replaces_the_number_between_markers(results: Results) -> None:
    text = "Runs <!--{{arc_env.native}}--><!--/-->, and <!--{{ arc_env.compile }}-->old<!--/-->."
    expected = "Runs <!--{{arc_env.native}}-->2.60 M<!--/-->, and <!--{{ arc_env.compile }}-->0.22 s<!--/-->."
    assert figures.fill(text, "a.md", results) == expected
    assert figures.fill(expected, "a.md", results) == expected


def test_fill_writes_tables(results: Results) -> None:
    text = "<!--{{table speed}}-->\nold\n<!--/-->\n"
    assert figures.fill(text, "a.md", results, [TABLE]) == (
        "<!--{{table speed}}-->\n\n"
        "| environment | steps/s | ratio |\n"
        "| --- | ---: | ---: |\n"
        "| Phalanx | 2.60 M (2.50-2.70) | 300 |\n"
        "| a paper | 9,000 | [source](https://example.org) |\n\n"
        "<!--/-->\n"
    )


def test_tables_can_omit_the_spread(results: Results) -> None:
    table = Table("plain", ["environment", "steps/s"], [("Phalanx", ["arc_env.native"])], spread=False)
    assert figures.format_table(table, results).endswith("| Phalanx | 2.60 M |")


def test_patterns_select_the_fastest_measurement(results: Results) -> None:
    assert results.evaluate("arc_env.*a*") == "2.60 M"
    assert results.evaluate("arc_env.native / arc_env.jax*") == "300"
    table = Table("fastest", ["library", "steps/s"], [("a", [System("arc_env.jax*")])])
    assert figures.format_table(table, results).endswith("| a | JaxARC |")
    with pytest.raises(ValueError, match=r"no result contains the measurement 'arc_env\.b"):
        results.evaluate("arc_env.b*")


@pytest.mark.parametrize(
    ("values", "unit", "text"),
    [
        ([2_512_345, 2_604_211, 2_700_000], "steps/s", "2.60 M (2.51-2.70)"),
        ([998_000, 999_600, 1_012_000], "steps/s", "1.00 M (1.00-1.01)"),
        ([371_111, 385_432, 390_000], "steps/s", "385 k (371-390)"),
        ([8_512, 8_604, 10_000], "samples/s", "8.60 k (8.51-10.00)"),
        ([33.14, 35.02, 36], "puzzles/s", "35.0 (33.1-36.0)"),
        ([96.5, 97, 97.25], "%", "97.0% (96.5-97.2)"),
        ([0.211, 0.2213, 0.23], "s", "0.22 s (0.21-0.23)"),
        ([1200, 1234, 1260], "s", "20.6 minutes (20.0-21.0)"),
        ([0.55, 0.5601, 0.57], "MRR", "0.560 (0.550-0.570)"),
        ([12_000, 12_345, 13_000], "tasks", "12,345 (12,000-13,000)"),
        ([8_604], "steps/s", "8.60 k"),
    ],
)
def test_format_with_spread(values: list[float], unit: str, text: str) -> None:
    assert figures.format_with_spread(statistics.median(values), values, unit) == text


def test_fill_leaves_code_unchanged(results: Results) -> None:
    text = "Write `<!--{{arc_env.x}}-->`.\n\n```\n<!--{{arc_env.y}}-->1<!--/-->\n```\n"
    assert figures.fill(text, "a.md", results) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a\nb <!--{{arc_env.natve}}-->1<!--/-->",
            "a.md:2: no result .*did you mean 'arc_env.native'",
        ),
        ("a <!--{{arc_env.compile cpu}}-->1<!--/-->", "a.md:1: .* has no CPU time"),
        ("a <!--{{arc_env.native / arc_env.compile}}-->1<!--/-->", "divides steps/s by s"),
        ("a <!--{{arc_env.native / arc_env.native / arc_env.native}}-->1<!--/-->", "neither"),
        ("a <!--{{arc_env.native:grid}}-->1<!--/-->", "a.md:1: .* has no number 'grid' among its settings"),
        ("a <!--{{arc_env.native:mrr}}-->1<!--/-->", "a.md:1: .* has no number 'mrr' among its settings"),
        ("a <!--{{table fast}}-->\n<!--/-->", "'fast' is neither a table"),
        ("a <!--{{arc_env.native}}-->1", "a.md:1: .* is not closed"),
        ("a <!--{{arc_env.native}}-->1\n<!--/-->", "must be on one line"),
        ("a 1<!--/-->", "a.md:1: <!--/--> without"),
        ("a <!--{{arc_env.native}}-->1 <!--{{arc_env.native}}-->1<!--/-->", "inside another"),
        ("a\n<!--{{arc_env.native}}-->1<!--/--> steps/s", "a.md:2: a line must not start with a marker"),
        ("- <!--{{arc_env.native}}-->1<!--/--> steps/s", "a line must not start with a marker"),
    ],
)
def test_errors_in_markers(results: Results, text: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        figures.fill(text, "a.md", results)


def test_table_rows_must_have_a_cell_per_column(results: Results) -> None:
    table = Table("short", ["environment", "steps/s", "ratio"], [("Phalanx", ["arc_env.native"])])
    with pytest.raises(PageError, match="row 'Phalanx' of table 'short' has 1 cells"):
        figures.fill("<!--{{table short}}-->\n<!--/-->", "a.md", results, [table])


def test_result_file_must_be_named_after_its_suite(root: Path) -> None:
    (root / "benchmarks/results/arc_env.json").rename(root / "benchmarks/results/other.json")
    with pytest.raises(ValueError, match=r"other.json: contains the results of suite 'arc_env'"):
        Results(root / "benchmarks/results")


def test_measurement_ids_must_be_unique(root: Path) -> None:
    result = {**DEMO, "measurements": DEMO["measurements"] * 2}
    (root / "benchmarks/results/arc_demo.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="contains measurement 'after' twice"):
        Results(root / "benchmarks/results")


@pytest.mark.parametrize(
    "text",
    [
        "2.60 M steps/s",
        "2,600,000 ARC steps/s",
        "about 325,000 tokens/s",
        "300 per second",
        "300 puzzles per CPU second",
        "12 times faster",
        "12 times\nas fast",
        "1.5x faster",
        "97%",
        "97.0 %",
        "it takes 0.22 s on a laptop",
        "0.22 s.",
        "5 seconds",
        "314 ms",
        "20 minutes",
        "MRR 0.553",
        "MRR of 0.553",
        "0.553 MRR",
        "It is 97% [here](other.md).",
        "It is 97%. See [a paper](https://example.org).",
        "| a | steps/s |\n| --- | ---: |\n| Phalanx | 325,000 |",
        "| a | MRR |\n| --- | ---: |\n| Phalanx | **0.553** |",
        "| a | b |\n| --- | --- |\n| Phalanx | 97% |",
        "It is 97%. <!-- not measured: -->",
        "<!-- not measured: a setting -->\nIt uses 80%.\n\nIt solves 97%.",
    ],
)
def test_measured_numbers_without_a_source_are_found(text: str) -> None:
    assert len(list(figures.unmarked_numbers(f"First line.\n\n{text}\n"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It has 42 operations and 2,600 steps.",
        "Use Python 3.11 or later.",
        "It solves <!--{{arc_demo.after}}-->97.0%<!--/--> of them.",
        "It is <!--{{a.b / a.c}}-->12<!--/--> times as fast.",
        "Set `x=97%` to use 97 tasks.",
        "```\n97%\n```",
        "NBFNet reports [an MRR of 0.551](https://arxiv.org/abs/2106.06935).",
        "It reports an MRR of 0.551\n([NBFNet](https://arxiv.org/abs/2106.06935)).",
        "| a | MRR |\n| --- | ---: |\n| [NBFNet](https://arxiv.org/abs/2106.06935) | 0.551 |",
        "80% of the tasks are used for training. <!-- not measured: a setting -->",
        "<!-- not measured: a setting -->\n80% of the tasks are used for training.",
        "<!-- not measured: settings -->\n\n| a | % |\n| --- | ---: |\n| share | 80 |",
        "| a | % |\n| --- | ---: |\n| share | 80 | <!-- not measured: a setting -->",
        "<!--{{table speed}}-->\n\n| a | steps/s |\n| --- | ---: |\n| b | 325,000 |\n\n<!--/-->",
        "---\ndescription: 97%\n---",
        "[text](a%20b.md) and https://example.org/97%20s",
    ],
)
def test_other_numbers_are_allowed(text: str) -> None:
    assert list(figures.unmarked_numbers(f"{text}\n")) == []


def test_line_numbers_of_unmarked_numbers() -> None:
    text = "# Title\n\nText\n97% here.\n\n| a | steps/s |\n| --- | --- |\n| b | 1 |\n| c | 2 |\n"
    assert [line for line, _ in figures.unmarked_numbers(text)] == [4, 8, 9]


def test_check_passes_for_a_correct_repository(root: Path) -> None:
    assert figures.check(root, "0.3.2") == []
    assert figures.check(root, "0.4.0") == []


def test_check_finds_changed_numbers(root: Path) -> None:
    page = root / "README.md"
    page.write_text(page.read_text().replace("97.0", "98.0"))
    assert figures.check(root, "0.3.0") == [
        "README.md: numbers are not up to date; run: python scripts/docs/figures.py"
    ]


@pytest.mark.parametrize("version", ["0.5.0", "1.0.0"])
def test_check_finds_old_results(root: Path, version: str) -> None:
    errors = figures.check(root, version)
    assert len(errors) == 2
    assert errors[1].startswith("benchmarks/results/arc_env.json: measured with version 0.3.0")


def test_check_finds_numbers_without_a_source(root: Path) -> None:
    (root / "docs/results/speed.md").write_text("# Speed\n\nIt is 12 times faster.\n")
    assert figures.check(root, "0.3.0") == [
        "docs/results/speed.md:3: '12 times faster' does not come from a result in benchmarks/results"
    ]


def test_check_finds_unknown_measurements(root: Path) -> None:
    (root / "docs/index.md").write_text("It <!--{{speed.x}}-->1<!--/-->.\n")
    assert figures.check(root, "0.3.0") == ["docs/index.md:1: no result contains the measurement 'speed.x'"]


def test_check_ignores_generated_pages(root: Path) -> None:
    (root / "docs/reference").mkdir()
    (root / "docs/reference/cli.md").write_text("Waits for 5 seconds.\n")
    assert figures.check(root, "0.3.0") == []


def test_update_writes_changed_pages(root: Path) -> None:
    expected = (root / "README.md").read_text()
    (root / "README.md").write_text(expected.replace("97.0", "98.0"))
    (root / "docs/index.md").write_text("No numbers.\n")
    assert figures.update(root) == ["README.md"]
    assert (root / "README.md").read_text() == expected
    assert figures.update(root) == []


def test_update_writes_nothing_if_a_page_has_an_error(root: Path) -> None:
    before = (root / "README.md").read_text().replace("97.0", "98.0")
    (root / "README.md").write_text(before)
    (root / "docs/index.md").write_text("It <!--{{speed.x}}-->1<!--/-->.\n")
    with pytest.raises(PageError):
        figures.update(root)
    assert (root / "README.md").read_text() == before
