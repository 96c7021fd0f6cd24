"""Triples in CSV, TSV and Parquet files: which columns they are in, and errors that name the row.

Files of atoms, rules and depths are read in `files`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.proofs.knowledge.atoms import Atom

SUFFIXES = (".csv", ".tsv", ".parquet")

_COLUMNS = (
    ("head", {"head", "subject", "source", "h", "s"}),
    ("relation", {"relation", "predicate", "rel", "r", "p"}),
    ("tail", {"tail", "object", "target", "t", "o"}),
)
_HEADER = "name the columns head, relation, tail (or subject, predicate, object)"


def read_triples(path: Path) -> tuple[Atom, ...]:
    """The triples of a table, each once, in order; without a header the columns are head, relation, tail."""
    names, rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    places = _places(names)
    if places is None:
        if len(names) != 3:
            raise ValueError(f"{path} has {len(names)} columns, {', '.join(names)}; {_HEADER}")
        places = (0, 1, 2)
        if path.suffix != ".parquet":
            _refuse_strange_header(path, names, rows)
            rows.insert(0, (1, names))
    atoms = []
    for number, row in rows:
        if len(row) != len(names):
            raise ValueError(f"{path}:{number}: {len(row)} cells, where the first line has {len(names)}")
        head, relation, tail = (row[place].strip() for place in places)
        if not (head and relation and tail):
            raise ValueError(f"{path}:{number}: a cell of {head!r}, {relation!r}, {tail!r} is empty")
        atoms.append(Atom(relation, head, tail))
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
    """Where head, relation and tail stand; None where the names are not those of columns."""
    lower = [name.strip().lower() for name in names]
    found = [[place for place, name in enumerate(lower) if name in known] for _, known in _COLUMNS]
    return tuple(places[0] for places in found) if all(len(places) == 1 for places in found) else None


def _refuse_strange_header(path: Path, first: list[str], others: list[tuple[int, list[str]]]) -> None:
    """A first line of which no name comes again is more likely a header than a triple."""
    if len(others) > 2 and not set(first) & {cell for _, row in others for cell in row}:
        raise ValueError(f"{path}:1: {', '.join(first)} shares no name with other lines; {_HEADER}")
