"""Knowledge bases in the shared folder, for tests that are skipped without it."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.proofs.program import Program

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "kg"
NAMES = ("countries_s3", "family", "umls", "nations", "wn18rr")
PADDING = {"countries_s3": 20, "family": 130, "umls": 64, "nations": 64, "wn18rr": 262}
_ATOM = re.compile(r"\s*([^\s(,]+)\(([^,]+),([^)]+)\)")


class SharedSet(NamedTuple):
    """A program, and its training and test queries."""

    program: Program
    rules: list
    train: np.ndarray
    test: np.ndarray


def present(name: str) -> bool:
    return (FOLDER / name / "train.txt").is_file()


def read(name: str) -> SharedSet:
    folder = FOLDER / name
    splits = {split: _atoms((folder / f"{split}.txt").read_text()) for split in ("train", "valid", "test")}
    rule_lines = (folder / "rules.txt").read_text().splitlines()
    rules = [_atoms(line.split(":", 2)[2]) for line in rule_lines if line.strip()]
    atoms = [atom for split in splits.values() for atom in split]
    predicates = _numbered({atom[0] for atom in [*atoms, *(atom for rule in rules for atom in rule)]})
    constants = _numbered({argument for atom in atoms for argument in atom[1:]})

    def triples(split: str) -> np.ndarray:
        rows = [(predicates[p], constants[a], constants[b]) for p, a, b in splits[split]]
        return np.array(rows, np.int32)

    encoded = []
    for *body, head in rules:
        names: dict[str, int] = {}
        for argument in [*head[1:], *(argument for atom in body for argument in atom[1:])]:
            names.setdefault(argument, -1 - len(names))
        atom_of = [(predicates[p], names[a], names[b]) for p, a, b in [head, *body]]
        encoded.append((atom_of[0], atom_of[1:]))
    program = Program.create(triples("train"), encoded, len(predicates), len(constants))
    return SharedSet(program, encoded, triples("train"), triples("test"))


def _atoms(text: str) -> list[tuple[str, str, str]]:
    return [(p, a.strip(), b.strip()) for p, a, b in _ATOM.findall(text)]


def _numbered(names: set[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names), 1)}
