"""Knowledge bases as folders of files: reading with errors that name the line, and writing.

Tables of triples are read in `tables`. What the atoms are used for, and which of them are queries, is up to
`data`.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from phalanx.io.atomic import atomic_write
from phalanx.kg.atoms import ATOM, ATOM_FORM, NAME, Atom, Rule, parse_rule, quoted, unquoted
from phalanx.kg.tables import SUFFIXES, read_triples

SPLITS = ("train", "valid", "test")

# One expression over a whole file: WN18RR's 86,835 lines in a tenth of a second.
_ATOMS = re.compile(rf"^[ \t]*{ATOM}[ \t]*\.?[ \t]*$", re.MULTILINE)
_CELL = r"[ ]*([^\t\n]*[^\t\n ])[ ]*"
_TRIPLES = re.compile(rf"^{_CELL}\t{_CELL}\t{_CELL}$", re.MULTILINE)
_NAMES = re.compile(rf"[ \t]*{NAME}(?:[ \t]+|$)")
_DEPTHS = re.compile(rf"^[ \t]*{ATOM}[ \t]*\.?[ \t]+(-1|\d+)[ \t]*$", re.MULTILINE)

_ATOM_FORM = f"{ATOM_FORM}, with or without a final dot"
_TRIPLE_FORM = "head<TAB>relation<TAB>tail"


@dataclasses.dataclass(frozen=True)
class KnowledgeBase:
    """What a folder holds: atoms in the order of their files, each once."""

    train: tuple[Atom, ...]
    """The facts, which are the training queries too."""
    rules: tuple[Rule, ...] = ()
    valid: tuple[Atom, ...] = ()
    test: tuple[Atom, ...] = ()
    also_true: tuple[Atom, ...] = ()
    """True atoms that are in no split: neither facts nor queries, and never negatives."""
    depths: Mapping[str, Mapping[Atom, int]] = dataclasses.field(default_factory=dict)
    """By split, where a depth file is given: the length of an atom's shortest proof, -1 for none."""
    domains: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Constants by the name of their domain."""

    def split(self, name: str) -> tuple[Atom, ...]:
        """The atoms of `train`, `valid` or `test`."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
        atoms: tuple[Atom, ...] = getattr(self, name)
        return atoms


def find_atoms(folder: Path, name: str) -> Path | None:
    """The file of a split, or of other atoms: `train.txt`, `train.csv`, `train.tsv` or `train.parquet`."""
    found = [path for suffix in (".txt", *SUFFIXES) if (path := folder / f"{name}{suffix}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} has {' and '.join(path.name for path in found)}; keep one of them")
    return found[0] if found else None


def read_knowledge(folder: Path) -> KnowledgeBase:
    """Reads a folder, of which only `train.txt` (or `.csv`, `.tsv`, `.parquet`) must be there, or one file.

    The atoms of `facts.txt`, which some standard splits have, are training atoms as well.
    """
    if folder.is_file():
        return KnowledgeBase(read_atoms(folder))
    if not folder.is_dir():
        raise FileNotFoundError(f"no knowledge base at {folder}: it is not a folder")
    if find_atoms(folder, "train") is None:
        raise FileNotFoundError(f"{folder} has no train.txt, where the facts of a knowledge base are")
    splits = {name: _optional_atoms(folder, name) for name in SPLITS}
    splits["train"] = tuple(dict.fromkeys((*_optional_atoms(folder, "facts"), *splits["train"])))
    depths = {}
    for name, atoms in splits.items():
        if (path := folder / f"{name}_depths.txt").is_file():
            depths[name] = read_depths(path, set(atoms), f"{name}.txt")
    rules = folder / "rules.txt"
    domains = folder / "domain2constants.txt"
    return KnowledgeBase(
        splits["train"],
        read_rules(rules) if rules.is_file() else (),
        splits["valid"],
        splits["test"],
        _optional_atoms(folder, "known"),
        depths,
        read_domains(domains) if domains.is_file() else {},
    )


def write_knowledge(folder: Path, base: KnowledgeBase) -> None:
    """Writes the files that `read_knowledge` reads; an existing folder keeps what is not replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*SPLITS, "facts", "known"):
        other = find_atoms(folder, name)
        if other is not None and (other.suffix != ".txt" or name == "facts"):
            raise ValueError(
                f"{other} would be read with what is written: remove it, or choose another folder"
            )
    for name in SPLITS:
        _write_lines(folder / f"{name}.txt", (f"{atom}." for atom in base.split(name)))
        if name in base.depths:
            write_depths(folder / f"{name}_depths.txt", base.depths[name])
    _write_lines(folder / "rules.txt", base.rules)
    _write_lines(folder / "known.txt", (f"{atom}." for atom in base.also_true))
    _write_lines(
        folder / "domain2constants.txt",
        (" ".join(map(quoted, [name, *constants])) for name, constants in base.domains.items()),
    )


def write_depths(path: Path, depths: Mapping[Atom, int]) -> None:
    """Writes `aunt(5,76) 2` for each atom."""
    _write_lines(path, (f"{atom} {depth}" for atom, depth in depths.items()))


def _write_lines(path: Path, lines: Iterable[object]) -> None:
    with atomic_write(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)


def _optional_atoms(folder: Path, name: str) -> tuple[Atom, ...]:
    path = find_atoms(folder, name)
    return () if path is None else read_atoms(path)


def read_atoms(path: Path) -> tuple[Atom, ...]:
    """The atoms of a file of `pred(a,b).` lines, of tab-separated triples, or of a table, each once.

    The first line of a text file says which of the two forms it has.
    """
    if path.suffix in SUFFIXES:
        return read_triples(path)
    text = _read_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if "\t" in first.strip() and _ATOMS.fullmatch(first) is None:
        triples = _every_line(path, text, _TRIPLES, f"{_TRIPLE_FORM}, as in the lines before it")
        return tuple(dict.fromkeys(Atom(relation, head, tail) for head, relation, tail in triples))
    found = _every_line(path, text, _ATOMS, _ATOM_FORM)
    return tuple(dict.fromkeys(_made_atoms(found, "'" in text)))


def _made_atoms(found: Iterable[tuple[str, ...]], quotes: bool) -> Iterator[Atom]:
    """Of what `ATOM` finds, where arguments that are not there are empty."""
    for parts in found:
        given = parts[: 4 if parts[3] else 3 if parts[2] else 2]
        # Half the time of `Atom(...)`, which counts where a file has a line for every fact.
        yield tuple.__new__(Atom, map(unquoted, given) if quotes else given)


def read_depths(path: Path, atoms: Collection[Atom] | None = None, source: str = "") -> dict[Atom, int]:
    """The depths of a file of `aunt(5,76) 2` lines; with `atoms`, of no others than these."""
    text = _read_text(path)
    found = _every_line(path, text, _DEPTHS, f"{ATOM_FORM}, and its depth, -1 for no proof")
    atoms_found = list(_made_atoms(found, quotes=True))
    depths = {atom: int(parts[4]) for atom, parts in zip(atoms_found, found, strict=True)}
    if len(depths) != len(found):
        twice = collections.Counter(atoms_found).most_common(1)[0][0]
        raise ValueError(f"{path}: {twice} has more than one depth")
    if atoms is not None and (strange := next((atom for atom in depths if atom not in atoms), None)):
        raise ValueError(f"{path}: {strange} is not in {source}; the depths are those of other queries")
    return depths


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file of `name:weight:body -> head` or `head :- body.` lines; names must differ.

    Lines that begin with % are left out, and rules without a name are called by their line, as `line7`.
    """
    rules: dict[str, Rule] = {}
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("%"):
            continue
        try:
            rule = parse_rule(line, f"line{number}")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        if rule.name in rules:
            raise ValueError(f"{path}:{number}: a rule above has the name {rule.name!r} too")
        rules[rule.name] = rule
    return tuple(rules.values())


def read_domains(path: Path) -> dict[str, tuple[str, ...]]:
    """The domains of a file of lines with a domain's name and its constants, blanks between them."""
    domains: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        name, *constants = map(unquoted, _NAMES.findall(line) if "'" in line else line.split())
        if not constants:
            raise ValueError(
                f"{path}:{number}: {line!r} has no constants; expected a domain, then its constants"
            )
        if name in domains:
            raise ValueError(f"{path}:{number}: the domain {name!r} is in a line above too")
        domains[name] = tuple(constants)
    return domains


def _every_line(path: Path, text: str, form: re.Pattern[str], expected: str) -> list[tuple[str, ...]]:
    """What `form` finds, having made sure that every line but blank ones has that form."""
    found: list[tuple[str, ...]] = form.findall(text)
    lines = text.split("\n")
    if len(found) != sum(map(bool, map(str.strip, lines))):
        for number, line in enumerate(lines, 1):
            if line.strip() and form.fullmatch(line) is None:
                raise ValueError(f"{path}:{number}: {line!r} is malformed; expected {expected}")
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8 text ({error.reason})") from error
