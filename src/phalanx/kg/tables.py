"""Atoms in CSV, TSV and Parquet files: which columns they are in, and errors that name the row.

Files of atoms, rules and depths are read in `files`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.kg.atoms import Atom

SUFFIXES = (".csv", ".tsv", ".parquet")

_COLUMNS = (
    ("head", {"head", "subject", "source", "h", "s"}),
    ("relation", {"relation", "predicate", "rel", "r", "p"}),
    ("tail", {"tail", "object", "target", "t", "o"}),
    ("third", {"third", "extra", "context"}),
)
_HEADER = (
    "name the columns head, relation, tail (or subject, predicate, object), and third where there is one"
)


def read_triples(path: Path) -> tuple[Atom, ...]:
    """The atoms of a table, each once, in order; head, relation, tail and third where there is no header.

    Two columns, head and relation, are atoms of one argument. Of four the last may be empty, and so may the
    last two: such rows are atoms of two arguments and of one.
    """
    names, rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    places = _places(names)
    if places is None:
        if not 2 <= len(names) <= 4:
            raise ValueError(f"{path} has {len(names)} columns, {', '.join(names)}; {_HEADER}")
        places = tuple(range(len(names)))
        if path.suffix != ".parquet":
            _refuse_strange_header(path, names, rows)
            rows.insert(0, (1, names))
    atoms = []
    for number, row in rows:
        if len(row) != len(names):
            raise ValueError(f"{path}:{number}: {len(row)} cells, where the first line has {len(names)}")
        head, relation, *others = (row[place].strip() for place in places)
        while len(places) == 4 and others and not others[-1]:
            others.pop()
        if not (head and relation and all(others)):
            cells = ", ".join(map(repr, (head, relation, *others)))
            raise ValueError(f"{path}:{number}: a cell of {cells} is empty")
        atoms.append(Atom(relation, head, *others))
    return tuple(dict.fromkeys(atoms))


def _read_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The first line, and the others with their numbers."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        # In TSV, quotes are part of names.
        form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        reader = csv.reader(file, strict=True, **form)
        try:
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num}: {error}") from error
    return (rows[0][1], rows[1:]) if rows else (["head", "relation", "tail"], [])


def _read_parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: Parquet files need pyarrow: pip install 'phalanx[data]'") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file: {error}") from error
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return list(table.column_names), [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), 1)]


def _places(names: Sequence[str]) -> tuple[int, ...] | None:
    """Where head, relation, tail and third stand; None where the names are not those of columns."""
    lower = [name.strip().lower() for name in names]
    found = [[place for place, name in enumerate(lower) if name in known] for _, known in _COLUMNS]
    if [len(places) for places in found[:2]] != [1, 1] or max(map(len, found)) > 1:
        return None
    # Other columns may stand beside those of triples, but two columns must be just these.
    if not found[2] and (found[3] or len(names) != 2):
        return None
    return tuple(places[0] for places in found if places)


def _refuse_strange_header(path: Path, first: list[str], others: list[tuple[int, list[str]]]) -> None:
    """A first line of which no name comes again is more likely a header than a triple."""
    if len(others) > 2 and not set(first) & {cell for _, row in others for cell in row}:
        raise ValueError(f"{path}:1: {', '.join(first)} shares no name with other lines; {_HEADER}")
