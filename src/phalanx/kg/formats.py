"""Readers and writers for the files of a knowledge base.

Atoms, rules, proof depths and domains are stored in text files. Atoms can also be read from CSV, TSV and
Parquet files.
"""

import collections
import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.extras import require_extra
from phalanx.io.atomic import atomic_write
from phalanx.kg.atoms import ATOM, ATOM_FORM, NAME, Atom, Rule, parse_rule, quote_name, unquote_name

if TYPE_CHECKING:
    from phalanx.kg.knowledge_base import KnowledgeBase

SPLITS = ("train", "valid", "test")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

# These patterns are matched against a complete file at once: WN18RR, with 86,835 lines, takes a tenth of a
# second.
_ATOM_LINES = re.compile(rf"^[ \t]*{ATOM}[ \t]*\.?[ \t]*$", re.MULTILINE)
_CELL = r"[ ]*([^\t\n]*[^\t\n ])[ ]*"
_TRIPLE_LINES = re.compile(rf"^{_CELL}\t{_CELL}\t{_CELL}$", re.MULTILINE)
_NAMES = re.compile(rf"[ \t]*{NAME}(?:[ \t]+|$)")
_DEPTH_LINES = re.compile(rf"^[ \t]*{ATOM}[ \t]*\.?[ \t]+(-1|\d+)[ \t]*$", re.MULTILINE)

_ATOM_LINE_FORM = f"{ATOM_FORM}, with or without a final period"
_TRIPLE_FORM = "head<TAB>relation<TAB>tail"


def find_atoms(folder: Path, name: str) -> Path | None:
    """Return the file with the atoms of a split; None if there is no such file.

    For `train`, this is `train.txt`, `train.csv`, `train.tsv` or `train.parquet`. Raises `ValueError` if more
    than one of these files exists.
    """
    found = [path for suffix in (".txt", *TABLE_SUFFIXES) if (path := folder / f"{name}{suffix}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} has {' and '.join(path.name for path in found)}; keep one of them")
    return found[0] if found else None


def list_knowledge_bases(path: str | Path) -> list[Path]:
    """Return the subfolders of `path` that are knowledge bases.

    If `path` itself is a knowledge base, only `path` is returned.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    if find_atoms(folder, "train"):
        return [folder]
    return sorted(child for child in folder.iterdir() if child.is_dir() and find_atoms(child, "train"))


def load_folder(folder: Path) -> dict[str, Any]:
    """Read the files of a knowledge base, and return them as keyword arguments for `KnowledgeBase`.

    Only the training file (`train.txt`, `.csv`, `.tsv` or `.parquet`) is required. If `folder` is a file, it
    is read as the training file. The atoms of `facts.txt`, which some published datasets have, are added to
    the training atoms.
    """
    if folder.is_file():
        return {"train": load_atoms(folder)}
    if not folder.is_dir():
        raise FileNotFoundError(f"no knowledge base at {folder}: it is not a folder")
    if find_atoms(folder, "train") is None:
        raise FileNotFoundError(f"{folder} has no train.txt with the facts of a knowledge base")
    splits = {name: _load_optional_atoms(folder, name) for name in SPLITS}
    splits["train"] = tuple(dict.fromkeys((*_load_optional_atoms(folder, "facts"), *splits["train"])))
    depths = {}
    for name, atoms in splits.items():
        if (path := folder / f"{name}_depths.txt").is_file():
            depths[name] = load_depths(path, set(atoms), f"{name}.txt")
    rules, domains = folder / "rules.txt", folder / "domain2constants.txt"
    return {
        **splits,
        "rules": load_rules(rules) if rules.is_file() else (),
        "extra_known": _load_optional_atoms(folder, "known"),
        "split_depths": depths,
        "domains": load_domains(domains) if domains.is_file() else {},
    }


def write_folder(folder: Path, knowledge_base: "KnowledgeBase") -> None:
    """Write a knowledge base in the format that `load_folder` reads. Unrelated files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*SPLITS, "facts", "known"):
        other = find_atoms(folder, name)
        if other is not None and (other.suffix != ".txt" or name == "facts"):
            raise ValueError(
                f"{other} would be read together with the new files: remove it, or choose another folder"
            )
    for name in SPLITS:
        _write_lines(folder / f"{name}.txt", (f"{atom}." for atom in getattr(knowledge_base, name)))
        if name in knowledge_base.split_depths:
            write_depths(folder / f"{name}_depths.txt", knowledge_base.split_depths[name])
    _write_lines(folder / "rules.txt", knowledge_base.rules)
    _write_lines(folder / "known.txt", (f"{atom}." for atom in knowledge_base.extra_known))
    domains = ([name, *members] for name, members in knowledge_base.domains.items())
    _write_lines(folder / "domain2constants.txt", (" ".join(map(quote_name, names)) for names in domains))


def write_depths(path: Path, depths: Mapping[Atom, int]) -> None:
    """Write the proof depths of atoms, with one line such as `aunt(5,76) 2` for each atom."""
    _write_lines(path, (f"{atom} {depth}" for atom, depth in depths.items()))


def _write_lines(path: Path, lines: Iterable[object]) -> None:
    with atomic_write(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)


def _load_optional_atoms(folder: Path, name: str) -> tuple[Atom, ...]:
    path = find_atoms(folder, name)
    return () if path is None else load_atoms(path)


def load_atoms(path: Path) -> tuple[Atom, ...]:
    """Read the distinct atoms of a text, CSV, TSV or Parquet file.

    The lines of a text file are either atoms, `pred(a,b).`, or tab-separated triples of head, relation and
    tail. The first line that is not blank determines the format.
    """
    if path.suffix in TABLE_SUFFIXES:
        return load_table(path)
    text = _load_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if "\t" in first.strip() and _ATOM_LINES.fullmatch(first) is None:
        triples = _match_lines(path, text, _TRIPLE_LINES, f"{_TRIPLE_FORM}, as in the lines before it")
        return tuple(dict.fromkeys(Atom(relation, head, tail) for head, relation, tail in triples))
    found = _match_lines(path, text, _ATOM_LINES, _ATOM_LINE_FORM)
    return tuple(dict.fromkeys(_build_atoms(found, "'" in text)))


def _build_atoms(matches: Iterable[tuple[str, ...]], has_quotes: bool) -> Iterator[Atom]:
    """Convert matches of the `ATOM` regular expression to atoms.

    Args:
        matches: Groups of each match. The groups of missing arguments are empty strings.
        has_quotes: Remove quotes around names and decode escape sequences. False is faster, but requires
            that no name is quoted.
    """
    for groups in matches:
        parts = groups[: 4 if groups[3] else 3 if groups[2] else 2]
        # This takes half as long as `Atom(...)`, which matters for files with many facts.
        yield tuple.__new__(Atom, map(unquote_name, parts) if has_quotes else parts)


def load_depths(path: Path, atoms: Collection[Atom] | None = None, source: str = "") -> dict[Atom, int]:
    """Read proof depths from a file with lines such as `aunt(5,76) 2`, where -1 means that there is no proof.

    Args:
        path: The file.
        atoms: Atoms that may occur in the file. Any other atom in the file raises `ValueError`. If None, all
            atoms are allowed.
        source: Name of the file that contains `atoms`, for the error message.
    """
    text = _load_text(path)
    matches = _match_lines(path, text, _DEPTH_LINES, f"{ATOM_FORM}, and its depth, -1 for no proof")
    found = list(_build_atoms(matches, has_quotes=True))
    depths = {atom: int(groups[4]) for atom, groups in zip(found, matches, strict=True)}
    if len(depths) != len(matches):
        repeated = collections.Counter(found).most_common(1)[0][0]
        raise ValueError(f"{path}: {repeated} has more than one depth")
    if atoms is not None and (unknown := next((atom for atom in depths if atom not in atoms), None)):
        raise ValueError(f"{path}: {unknown} is not in {source}; these are the depths of other queries")
    return depths


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Read a file with one rule per line, as `name:weight:body -> head` or `head :- body.`.

    Lines that start with % are comments. A rule without a name is named after its line number, as in `line7`.
    """
    rules: dict[str, Rule] = {}
    for number, line in _numbered_lines(_load_text(path)):
        if line.lstrip().startswith("%"):
            continue
        try:
            rule = parse_rule(line, f"line{number}")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        if rule.name in rules:
            raise ValueError(f"{path}:{number}: the name {rule.name!r} is already used by a rule above")
        rules[rule.name] = rule
    return tuple(rules.values())


def load_domains(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a file in which each line is the name of a domain followed by its constants."""
    domains: dict[str, tuple[str, ...]] = {}
    for number, line in _numbered_lines(_load_text(path)):
        name, *constants = map(unquote_name, _NAMES.findall(line) if "'" in line else line.split())
        if not constants:
            raise ValueError(
                f"{path}:{number}: {line!r} has no constants; expected a domain and its constants"
            )
        if name in domains:
            raise ValueError(f"{path}:{number}: the domain {name!r} is already defined in a line above")
        domains[name] = tuple(constants)
    return domains


def _match_lines(path: Path, text: str, form: re.Pattern[str], expected: str) -> list[tuple[str, ...]]:
    """Match each nonblank line with a regular expression, and return the groups of each match.

    Args:
        path: The file, for the error message.
        text: Text of the file.
        form: The regular expression. A line that does not match raises `ValueError`.
        expected: Description of a valid line, for the error message.
    """
    found: list[tuple[str, ...]] = form.findall(text)
    if len(found) != sum(map(bool, map(str.strip, text.split("\n")))):
        for number, line in _numbered_lines(text):
            if form.fullmatch(line) is None:
                raise ValueError(f"{path}:{number}: {line!r} is malformed; expected {expected}")
    return found


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number, counted from 1, and the text of each line that is not blank."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _load_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8 text ({error.reason})") from error


# Tables: CSV, TSV and Parquet

_COLUMN_NAMES = (
    {"head", "subject", "source", "h", "s"},
    {"relation", "predicate", "rel", "r", "p"},
    {"tail", "object", "target", "t", "o"},
    {"third", "extra", "context"},
)
_HEADER_HINT = (
    "name the columns head, relation, tail (or subject, predicate, object), and third if there is one"
)


def load_table(path: Path) -> tuple[Atom, ...]:
    """Read the distinct atoms of a CSV, TSV or Parquet file.

    The columns are head, relation, tail and third (the third argument). With a header, they can be in any
    order and have any of the names in `_COLUMN_NAMES`. Without a header, they must be in this order. The tail
    and third columns are optional. A table with only head and relation contains atoms with one argument. In a
    table with all four columns, a row without a third argument is an atom with two arguments, and a row
    without tail and third argument is an atom with one argument.
    """
    names, rows = _read_parquet(path) if path.suffix == ".parquet" else _parse_csv(path)
    indices = _find_columns(names)
    if indices is None:
        if not 2 <= len(names) <= 4:
            raise ValueError(f"{path} has {len(names)} columns, {', '.join(names)}; {_HEADER_HINT}")
        indices = tuple(range(len(names)))
        if path.suffix != ".parquet":
            # If none of its cells occurs again, the first line is probably a header.
            if len(rows) > 2 and {cell for _, row in rows for cell in row}.isdisjoint(names):
                first = ", ".join(names)
                raise ValueError(f"{path}:1: {first} shares no name with other lines; {_HEADER_HINT}")
            rows.insert(0, (1, names))
    atoms = []
    for number, row in rows:
        if len(row) != len(names):
            raise ValueError(f"{path}:{number}: {len(row)} cells, but the first line has {len(names)}")
        head, relation, *others = (row[index].strip() for index in indices)
        while len(indices) == 4 and others and not others[-1]:
            others.pop()
        if not (head and relation and all(others)):
            cells = ", ".join(map(repr, (head, relation, *others)))
            raise ValueError(f"{path}:{number}: one of the cells {cells} is empty")
        atoms.append(Atom(relation, head, *others))
    return tuple(dict.fromkeys(atoms))


def _parse_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the cells of the first line, and the cells of all other lines with their line numbers."""
    # In TSV files, quotes are part of names.
    tsv: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, **(tsv if path.suffix == ".tsv" else {}))
        try:
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num}: {error}") from error
    return (rows[0][1], rows[1:]) if rows else (["head", "relation", "tail"], [])


def _read_parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    with require_extra(f"reading {path}", "data", "pyarrow"):
        import pyarrow
        import pyarrow.parquet
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return list(table.column_names), [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), 1)]


def _find_columns(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the indices of the columns with the head, the relation, the tail and the third argument.

    The last two can be missing: a table of unary facts has neither, and a table of triples has no third
    argument. Missing columns are left out of the result. `_COLUMN_NAMES` lists the accepted names. Returns
    None if `names` is not a header.
    """
    lower = [name.strip().lower() for name in names]
    found = [[index for index, name in enumerate(lower) if name in known] for known in _COLUMN_NAMES]
    if [len(indices) for indices in found[:2]] != [1, 1] or max(map(len, found)) > 1:
        return None
    # Tables with a tail may have other columns, but a table without one must consist of head and relation.
    if not found[2] and (found[3] or len(names) != 2):
        return None
    return tuple(indices[0] for indices in found if indices)
