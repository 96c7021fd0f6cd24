"""Fill in the published numbers of the README and the documentation.

`python scripts/docs/figures.py` reads `benchmarks/results/*.json` and updates the pages in place. With
`--check`, nothing is written, and the exit code is 1 if a page is not up to date, if a result is too old, or
if a measured number does not come from a result.

A number is written between two comments, which GitHub, PyPI and the site do not show:

    <!--{{arc_env.native-30x30-1024}}-->2.60 M<!--/--> steps/s

The expression in braces is one of

    SUITE.ID                  median of a measurement
    SUITE.ID / SUITE.ID       ratio of two measurements
    SUITE.ID:SETTING          a number among the settings of a measurement, such as `valid_mrr`
    SUITE.PATTERN             the fastest measurement that matches, such as `arc_env.jaxarc-*-30x30-1024`
    ... cpu                   the same, based on CPU time instead of wall-clock time

Percentages, times and sizes are written with their unit; the text names the unit of rates and counts. A table
is written between `<!--{{table NAME}}-->` and `<!--/-->`, each on a line of its own. NAME is a table in
`figure_tables.py`, or a suite, whose measurements are all listed with their median, lowest and highest value.
Tables of `figure_tables.py` with `spread=True` contain the lowest and highest value in parentheses.
A name such as `arc_env 30x30` lists only measurements whose id contains `30x30`.

A number with a unit of measurement that is not between such comments is an error, unless its sentence or
table row cites an external source with a link, or its line ends with `<!-- not measured: reason -->`. Such a
comment on a line of its own applies to the paragraph or table below it.
"""

import argparse
import dataclasses
import difflib
import fnmatch
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from figure_tables import TABLES, Cell, System, Table, Text  # noqa: E402
from tests.helpers.markdown_pages import (  # noqa: E402
    line_number,
    mask_code,
    mask_comments,
    mask_link_targets,
    paragraphs,
    table_cells,
    written_pages,
)

from phalanx import __version__  # noqa: E402
from phalanx.io import atomic_write  # noqa: E402


class PageError(ValueError):
    """An error in a page. The message starts with its path and line number."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A measurement of a result file.

    Attributes:
        system: Library that was measured.
        unit: Unit of the values.
        median: Median of the values.
        cpu_median: Median based on CPU time.
        values: One value per repeat or seed.
        settings: Settings and additional results.
    """

    system: str
    unit: str
    median: float
    cpu_median: float | None
    values: Sequence[float]
    settings: Mapping[str, Any]


class Results:
    """All measurements by `SUITE.ID`.

    Args:
        folder: Folder with result files.
    """

    def __init__(self, folder: Path) -> None:
        self.measurements: dict[str, Measurement] = {}
        self.versions: dict[str, str] = {}
        for path in sorted(folder.glob("*.json")):
            self._read(path)

    def _read(self, path: Path) -> None:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if result["suite"] != path.stem:
            raise ValueError(f"{path}: contains the results of suite {result['suite']!r}")
        self.versions[path.stem] = result["version"]
        for entry in result["measurements"]:
            name = f"{path.stem}.{entry['id']}"
            if name in self.measurements:
                raise ValueError(f"{path}: contains measurement {entry['id']!r} twice")
            cpu_values = entry["cpu_values"]
            self.measurements[name] = Measurement(
                entry["system"],
                entry["unit"],
                entry["median"],
                statistics.median(cpu_values) if cpu_values else None,
                entry["values"],
                entry["settings"],
            )

    def evaluate(self, expression: str, spread: bool = False) -> str:
        """Return the text of an expression.

        Args:
            expression: A measurement or a ratio.
            spread: Add the lowest and the highest value of a measurement.

        Raises:
            ValueError: The expression is malformed, or a measurement does not exist.
        """
        names = expression.removesuffix(" cpu").split(" / ")
        use_cpu = expression.endswith(" cpu")
        values = [self._value(name.strip(), use_cpu) for name in names]
        if spread and len(names) == 1 and not use_cpu:
            found = self.find(names[0].strip())
            return format_with_spread(found.median, found.values, found.unit)
        match values:
            case [(value, unit)]:
                return format_value(value, unit)
            case [(numerator, unit), (denominator, other)]:
                if unit != other:
                    raise ValueError(f"{expression!r} divides {unit} by {other}")
                return format_ratio(numerator / denominator)
            case _:
                raise ValueError(f"{expression!r} is neither a measurement nor a ratio of two")

    def find(self, name: str) -> Measurement:
        """Return a measurement. If `name` contains `*`, return the fastest one that matches.

        If `name` ends with `:SETTING`, return that setting of the measurement.

        Raises:
            ValueError: There is no such measurement or setting.
        """
        name, _, setting = name.partition(":")
        matching = [self.measurements[each] for each in fnmatch.filter(self.measurements, name)]
        if not matching:
            close = difflib.get_close_matches(name, self.measurements, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"no result contains the measurement {name!r}{hint}")
        is_rate = matching[0].unit.endswith("/s")
        found = (max if is_rate else min)(matching, key=lambda each: each.median)
        if not setting:
            return found
        if not isinstance(value := found.settings.get(setting), int | float):
            raise ValueError(f"the measurement {name!r} has no number {setting!r} among its settings")
        unit = "MRR" if setting.endswith("mrr") else ""
        return dataclasses.replace(found, unit=unit, median=value, cpu_median=None, values=[value])

    def _value(self, name: str, use_cpu: bool) -> tuple[float, str]:
        found = self.find(name)
        if not use_cpu:
            return found.median, found.unit
        if found.cpu_median is None:
            raise ValueError(f"the measurement {name!r} has no CPU time")
        return found.cpu_median, found.unit

    def outdated(self, version: str) -> list[str]:
        """Return errors about results that are more than one minor version older than `version`."""
        current = _major_minor(version)
        return [
            f"benchmarks/results/{suite}.json: measured with version {measured}, but this is {version}; "
            f"run: python -m benchmarks {suite} --write"
            for suite, measured in self.versions.items()
            if _major_minor(measured)[0] != current[0] or current[1] - _major_minor(measured)[1] > 1
        ]


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def format_value(value: float, unit: str) -> str:
    """Format a measured value.

    >>> [format_value(value, "steps/s") for value in (2_604_211, 325_123, 8_604, 86.44)]
    ['2.60 M', '325,000', '8,600', '86.4']
    >>> format_value(97, "%"), format_value(0.2213, "s"), format_value(0.56012, "MRR")
    ('97.0%', '0.22 s', '0.560')
    >>> format_value(72, "tasks"), format_value(0.4, "ms"), format_value(1230, "s")
    ('72', '0.40 ms', '20.5 minutes')
    """
    if unit.endswith("/s"):
        return _round_rate(value)
    if unit == "%":
        return f"{value:.1f}%"
    if unit == "s" and value >= 600:
        return f"{_significant(value / 60, 3)} minutes"
    if unit in ("s", "ms", "us", "KB", "MB", "GB"):
        return f"{_significant(value, 2 if value < 1 else 3)} {unit}"
    if unit == "MRR" or unit.startswith("Hits@"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def format_with_spread(median: float, values: Sequence[float], unit: str) -> str:
    """Format a median with the lowest and highest value, which have the same unit and number of decimals.

    >>> format_with_spread(2_604_211, [2_604_211, 2_512_345, 2_700_000], "steps/s")
    '2.60 M (2.51-2.70)'
    >>> format_with_spread(8_604, [8_512, 8_604, 8_650], "steps/s"), format_with_spread(97, [97], "%")
    ('8.60 k (8.51-8.65)', '97.0%')
    """
    if unit.endswith("/s"):
        # Thousands are abbreviated, too, so that the cells of a table stay narrow.
        divisor, suffix = (1.0, "") if median < 999.5 else (1e3, " k") if median < 999_500 else (1e6, " M")
        number = _significant(median / divisor, 3)
    else:
        text = format_value(median, unit)
        number = re.split("[% ]", text)[0]
        suffix = text.removeprefix(number)
        divisor = 60.0 if suffix == " minutes" else 1.0
    if len(values) < 2:
        return f"{number}{suffix}"
    decimals = len(number.partition(".")[2])
    spread = "-".join(f"{value / divisor:,.{decimals}f}" for value in (min(values), max(values)))
    return f"{number}{suffix} ({spread})"


def format_ratio(ratio: float) -> str:
    """Format a ratio with two significant digits.

    >>> [format_ratio(ratio) for ratio in (0.534, 1.04, 13.8, 99.7, 225.4, 1310)]
    ['0.53', '1.0', '14', '100', '230', '1,300']
    """
    return _significant(ratio, 2)


def _round_rate(value: float) -> str:
    return f"{_significant(value / 1e6, 3)} M" if value >= 999_500 else _significant(value, 3)


def _significant(value: float, digits: int) -> str:
    """Format a number with this number of significant digits, without an exponent."""
    if value == 0:
        return "0"
    decimals = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def format_table(table: Table, results: Results) -> str:
    """Return the Markdown of a table."""
    lines = [" | ".join(table.columns), " | ".join(["---", *["---:"] * (len(table.columns) - 1)])]
    for label, cells in table.rows:
        if len(cells) != len(table.columns) - 1:
            raise ValueError(f"row {label!r} of table {table.name!r} has {len(cells)} cells")
        lines.append(" | ".join([label, *(_format_cell(cell, results, table.spread) for cell in cells)]))
    return "\n".join(f"| {line} |" for line in lines)


def _format_cell(cell: Cell, results: Results, spread: bool) -> str:
    match cell:
        case Text(text):
            return text
        case System(measurement):
            return results.find(measurement).system
        case _:
            return results.evaluate(cell, spread)


def format_suite_table(suite: str, part: str, results: Results) -> str:
    """Return a table of all measurements of a suite whose id contains `part`.

    Raises:
        ValueError: There is no such measurement.
    """
    lines = ["case | library | median | lowest to highest", "--- | --- | ---: | ---:"]
    for name, found in results.measurements.items():
        measured, _, case = name.partition(".")
        if measured == suite and part in case:
            # Rates and counts are formatted without their unit.
            has_unit = found.unit in ("s", "ms", "us", "KB", "MB", "GB", "%")
            unit = "" if has_unit else f" {found.unit}"
            spread = " to ".join(
                format_value(value, found.unit) for value in (min(found.values), max(found.values))
            )
            median = f"{format_value(found.median, found.unit)}{unit}"
            lines.append(f"`{case}` | {found.system} | {median} | {spread if len(found.values) > 1 else ''}")
    if len(lines) == 2:
        raise ValueError(f"suite {suite!r} has no measurement whose id contains {part!r}")
    return "\n".join(f"| {line} |" for line in lines)


_MARKER = re.compile(r"<!--\{\{\s*(?P<expression>[^{}]*?)\s*\}\}-->|<!--/-->")


def fill(text: str, page: str, results: Results, tables: Sequence[Table] = TABLES) -> str:
    """Return the text of a page with all numbers and tables filled in.

    Args:
        text: The page.
        page: Name of the page in error messages.
        results: Measurements.
        tables: Tables that the page can contain.

    Raises:
        PageError: A marker is malformed or names a measurement or table that does not exist.
    """
    filled, end = "", 0
    for start, stop, expression in _markers(text, page):
        try:
            content = _content(expression, text[start:stop], results, tables)
        except ValueError as error:
            raise PageError(f"{page}:{line_number(text, start)}: {error}") from None
        filled += text[end:start] + content
        end = stop
    return filled + text[end:]


def _content(expression: str, old: str, results: Results, tables: Sequence[Table]) -> str:
    name = expression.removeprefix("table ").strip()
    if name == expression:
        if "\n" in old:
            raise ValueError(f"the number {expression!r} must be on one line")
        return results.evaluate(expression)
    found = {table.name: table for table in tables}
    suite, _, part = name.partition(" ")
    if name in found:
        table = format_table(found[name], results)
    elif suite in results.versions:
        table = format_suite_table(suite, part, results)
    else:
        raise ValueError(f"{name!r} is neither a table in figure_tables.py nor a suite with results")
    # Empty lines, because Markdown parsers do not agree on tables next to comments.
    return f"\n\n{table}\n\n"


def _markers(text: str, page: str) -> Iterator[tuple[int, int, str]]:
    """Iterate over the start and end of the content between two markers, and the expression."""
    opening: re.Match[str] | None = None
    for match in _MARKER.finditer(mask_code(text)):
        where = f"{page}:{line_number(text, match.start())}"
        if (match["expression"] is None) == (opening is None):
            what = "<!--/--> without <!--{{...}}-->" if opening is None else "<!--{{...}}--> inside another"
            raise PageError(f"{where}: {what}")
        if opening is None:
            opening = match
            continue
        before = text[text.rfind("\n", 0, opening.start()) + 1 : opening.start()]
        is_table = opening["expression"].startswith("table ")
        if not is_table and not before.strip(" >*-+0123456789."):
            raise PageError(
                f"{where}: a line must not start with a marker, because Markdown reads it as HTML; "
                "move a word in front of it"
            )
        yield opening.end(), match.start(), opening["expression"]
        opening = None
    if opening is not None:
        raise PageError(f"{page}:{line_number(text, opening.start())}: <!--{{{{...}}}}--> is not closed")


_NUMBER = r"(?<![\w.,/@^+-])[~≈]?\d[\d,]*(?:\.\d+)?(?:[ ]?(?:k|K|M|million|thousand))?"
_MEASURED = re.compile(
    rf"""
    # 2.6 M ARC steps/s, 30 per second
    {_NUMBER}(?:\s+[\w-]+){{0,3}}(?:/s\b|\s+(?:per|a)\s+(?:\w+\s+)?second\b)
    # 12 times faster, 3 times as fast
    | {_NUMBER}\s*(?:x|×|times)\s+(?:as\s+\w+|\w+er\b|more\b|less\b)
    # 97%
    | {_NUMBER}\s*(?:%|percent\b)
    # 0.22 s, 5 minutes
    | {_NUMBER}\s+(?:s|ms|[µu]s|min|seconds?|milliseconds?|minutes?|hours?)\b(?![/-])
    # MRR of 0.553, 0.553 MRR
    | \b(?:MRR|Hits@\d+)\s+(?:(?:of|is|was)\s+)?0?\.\d+
    | (?<![\w.])0?\.\d+\s+(?:MRR\b|Hits@\d)
    """,
    re.VERBOSE,
)
_MEASURED_COLUMN = re.compile(
    r"/s\b|\bper second\b|\bMRR\b|Hits@|%|\bpercent\b|\b(?:s|ms|seconds|minutes)\b|\bratio\b|\bspeedup\b"
    r"|\btimes\b|\bfaster\b|\bsolved\b|\bsuccess\b|\baccuracy\b"
)
_CELL_NUMBER = re.compile(r"[~≈]?\d[\d,]*(?:\.\d+)?(?:[ ]?[kKM])?")
_TABLE_RULE = re.compile(r"\s*\|?[\s:|-]*-[\s:|-]*")
_EXTERNAL_LINK = re.compile(r"\]\(\s*<?https?://")
_NOT_MEASURED = re.compile(r"<!-- not measured: \S.*? -->[ |]*$", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?:]\s+(?=[A-Z\[<*`(\"]|$)|\n\s*(?:[-*+]|\d+\.)\s", re.MULTILINE)
_FILLED = re.compile(r"<!--\{\{[^{}]*\}\}-->.*?<!--/-->", re.DOTALL)


def unmarked_numbers(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over measured numbers that come neither from a result nor from a cited source.

    Yields:
        Line numbers and the numbers with their units.
    """
    without_code = mask_code(text)
    for match in _FILLED.finditer(without_code):
        spaces = re.sub(r"[^\n]", " ", match.group())
        without_code = without_code[: match.start()] + spaces + without_code[match.end() :]
    prose = mask_link_targets(mask_comments(without_code))
    exempt = False
    for start, stop in paragraphs(text):
        lines = text[start:stop].splitlines()
        first_is_comment = _NOT_MEASURED.fullmatch(lines[0].strip()) is not None
        is_table = len(lines) > 1 and _TABLE_RULE.fullmatch(lines[1]) is not None
        if not (exempt or first_is_comment):
            find = _table_numbers if is_table else _prose_numbers
            for position, number in find(prose[start:stop], text[start:stop]):
                yield line_number(text, start + position), " ".join(number.split())
        exempt = first_is_comment and len(lines) == 1


def _prose_numbers(prose: str, text: str) -> Iterator[tuple[int, str]]:
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(prose)), len(prose)]
    for match in _MEASURED.finditer(prose):
        start = max(end for end in ends if end <= match.start())
        stop = min(end for end in ends if end >= match.end())
        line_start = text.rfind("\n", 0, match.start()) + 1
        line_stop = text.find("\n", match.end())
        lines = text[line_start : line_stop if line_stop >= 0 else len(text)]
        if not _EXTERNAL_LINK.search(text[start:stop]) and not _NOT_MEASURED.search(lines):
            yield match.start(), match.group()


def _table_numbers(prose: str, text: str) -> Iterator[tuple[int, str]]:
    headings = table_cells(prose.splitlines()[0])
    measured = [_MEASURED_COLUMN.search(heading) is not None for heading in headings]
    position = 0
    for line, original in zip(prose.splitlines(), text.splitlines(), strict=True):
        if not _EXTERNAL_LINK.search(original) and not _NOT_MEASURED.search(original):
            for index, cell in enumerate(table_cells(line)):
                if found := _MEASURED.search(cell):
                    yield position, found.group()
                elif (
                    0 < index < len(measured)
                    and measured[index]
                    and (found := _CELL_NUMBER.fullmatch(cell.strip("* ")))
                ):
                    yield position, f"{found.group()} (column {headings[index]!r})"
        position += len(line) + 1


def check(root: Path, version: str, tables: Sequence[Table] = TABLES) -> list[str]:
    """Return errors about pages that are not up to date, old results and numbers without a source."""
    results = Results(root / "benchmarks" / "results")
    errors = results.outdated(version)
    for path in written_pages(root):
        page = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        try:
            if fill(text, page, results, tables) != text:
                errors.append(f"{page}: numbers are not up to date; run: python scripts/docs/figures.py")
        except PageError as error:
            errors.append(str(error))
        errors += [
            f"{page}:{line}: {number!r} does not come from a result in benchmarks/results"
            for line, number in unmarked_numbers(text)
        ]
    return errors


def update(root: Path, tables: Sequence[Table] = TABLES) -> list[str]:
    """Fill in the numbers of all pages and return the pages that changed.

    If a page has an error, no page is written.
    """
    results = Results(root / "benchmarks" / "results")
    changed = {}
    for path in written_pages(root):
        text = path.read_text(encoding="utf-8")
        filled = fill(text, path.relative_to(root).as_posix(), results, tables)
        if filled != text:
            changed[path] = filled
    for path, filled in changed.items():
        with atomic_write(path, "w") as file:
            file.write(filled)
    return [path.relative_to(root).as_posix() for path in changed]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a page has errors"
    )
    options = parser.parse_args(arguments)
    if options.check:
        errors = check(ROOT, __version__)
        print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
        return int(bool(errors))
    try:
        for page in update(ROOT):
            print(page)
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
