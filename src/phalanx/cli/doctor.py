"""`phalanx doctor`: detects the type of files and folders and checks that they are intact."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from phalanx.cli.errors import UserError
from phalanx.formatting import escape_untrusted, format_count
from phalanx.io.archive import ARCHIVE_SUFFIXES, is_archive

app = typer.Typer(add_completion=False)


class FileCheckResult(NamedTuple):
    """Result of checking whether a file or folder is intact."""

    path: Path
    description: str
    """Name of the format, followed by a summary of the contents if they are intact."""
    error: str
    """Description of what is corrupt. Empty if the contents are intact."""


@dataclasses.dataclass(frozen=True)
class FileFormatChecker:
    """A format that `phalanx doctor` can check."""

    name: str
    check: Callable[[Path], str]
    """Function that reads the complete file or folder and returns a summary. It raises `ValueError` or
    `OSError` if anything is invalid."""
    marker: str = ""
    """Name of a file that identifies a folder of this format. Empty if this format is not stored in
    folders."""
    suffixes: tuple[str, ...] = ()
    """File name suffixes that identify a file of this format. Empty if this format is not stored in single
    files."""


@app.command()
def doctor(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Run folders, other folders or files.", show_default=False),
    ],
) -> None:
    """Check that files and run folders are intact. Nothing is changed.

    Supports runs, checkpoints, embeddings, batch plans, batch files, samples, ARC tasks and knowledge bases.

    The exit code is 1 if anything is corrupt.
    """
    is_intact = True
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        for result in check_path(path):
            is_intact = is_intact and not result.error
            state = (
                f"CORRUPT {result.description}: {result.error}"
                if result.error
                else f"OK, {result.description}"
            )
            typer.echo(escape_untrusted(f"{result.path}: {state}"))
    raise typer.Exit(0 if is_intact else 1)


def check_path(path: Path) -> Iterator[FileCheckResult]:
    """Check a file or folder and yield the results.

    A run folder yields several results, for example one for each checkpoint.
    """
    if (path / "run.json").is_file():
        yield from _check_run(path)
    else:
        yield _check(path, _find_format(path))


def _check(path: Path, format: FileFormatChecker) -> FileCheckResult:
    # Reading from a pipe would block.
    if not path.is_file() and not path.is_dir():
        return FileCheckResult(path, format.name, "it is neither a file nor a folder")
    try:
        summary = format.check(path)
    except (ValueError, OSError) as error:
        return FileCheckResult(path, format.name, " ".join(str(error).split()))
    return FileCheckResult(path, f"{format.name}: {summary}" if summary else format.name, "")


def _find_format(path: Path) -> FileFormatChecker:
    if path.is_dir():
        return next((format for format in FORMATS if format.marker and (path / format.marker).exists()), ARC)
    name = path.name.lower()
    for format in FORMATS:
        if format.suffixes and name.endswith(format.suffixes):
            return format
    if is_archive(path):
        return ARCHIVE
    raise UserError(f"{path}: unknown file format")


def _check_run(path: Path) -> Iterator[FileCheckResult]:
    from phalanx.io.atomic import is_stale_temporary

    yield _check(path, RUN)
    yield _check(path / "config.yaml", SETTINGS)
    steps = [step for step in _list_folder(path / "checkpoints") if step.name.isdecimal()]
    for step in sorted(steps, key=lambda step: int(step.name)):
        yield _check(step, CHECKPOINT)
    if (path / "kge").is_dir():
        yield _check(path / "kge", EMBEDDING)
    for file in sorted(path.rglob("*.jsonl")):
        yield _check(file, JSON_LINES)
    for file in _list_folder(path):
        if is_stale_temporary(file.name):
            yield FileCheckResult(
                file, "temporary file of a killed process, removed when the run is resumed", ""
            )


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _check_metadata(path: Path) -> str:
    from phalanx.training.run_dir import load_metadata

    metadata = load_metadata(path)
    return f"{metadata.get('algorithm')}, {metadata.get('status')}, {metadata.get('updates', 0)} updates"


def _check_checkpoint(path: Path) -> str:
    from phalanx.training.checkpoints import verify_checkpoint

    return format_count(verify_checkpoint(path), "file")


def _check_plan(path: Path) -> str:
    from phalanx.data.plans.plan_files import load_batch_plan

    plan = load_batch_plan(path, verify=True)
    samples = format_count(len(plan.table.as_dict()), "sample")
    return f"{samples}, {format_count(plan.num_epochs, 'epoch')}, fingerprint {plan.fingerprint}"


def _check_batches(path: Path) -> str:
    from phalanx.data.batch_files import BatchReader

    reader = BatchReader(path)
    num_batches = reader.verify()
    return f"{num_batches:,} batch{'' if num_batches == 1 else 'es'} of plan {reader.fingerprint}"


def _check_embedding(path: Path) -> str:
    from phalanx.kg.kge.embedding import check_kge

    entities, relations = check_kge(path)
    return f"{entities:,} entities, {relations:,} relations"


def _check_knowledge_base(path: Path) -> str:
    from phalanx.kg.knowledge_base import KnowledgeBase

    return format_count(len(KnowledgeBase.load(path).facts), "fact")


def _check_arc_tasks(path: Path) -> str:
    from phalanx.arc.task_files import load_task_splits

    return format_count(sum(map(len, load_task_splits(path).values())), "task")


def _check_archive(path: Path) -> str:
    from phalanx.io.archive import unpack

    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        unpack(path, Path(folder), str(path))
        return _check_arc_tasks(Path(folder))


def _check_arrays(path: Path) -> str:
    import numpy as np

    from phalanx.io.checksum import open_verified

    with open_verified(path) as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if "id_bytes" in names:
            return f"length cache, {_check_lengths(path)}"
        if "serials" in names:
            from phalanx.data.samples import load_packed_samples

            _, header, _ = load_packed_samples(path)
            kind = "replay buffer" if "buffer" in header else "samples"
            return f"{kind}, {format_count(header['samples'], 'sample')}"
        return ", ".join(names)


def _check_lengths(path: Path) -> str:
    from phalanx.data.length_cache import LengthCache

    cache = LengthCache.load(path)
    samples = format_count(len(cache.get_all()), "sample")
    return f"{samples}, {int(cache.lengths.sum()):,} tokens, tokenizer {cache.tokenizer_hash}"


def _check_json_lines(path: Path) -> str:
    from phalanx.io.untrusted import parse_json

    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                raise ValueError(f"{path}:{number}: the last line is incomplete")
            parse_json(line, f"{path}:{number}")
    return format_count(number, "line")


def _check_json(path: Path) -> str:
    from phalanx.arc.task_files import load_task_file
    from phalanx.io.checksum import CHECKSUM_FIELD, read_verified_json
    from phalanx.io.untrusted import read_json

    value: Any = read_json(path)
    if isinstance(value, dict) and CHECKSUM_FIELD in value:
        return f"fields {', '.join(read_verified_json(path))}"
    return f"ARC, {format_count(len(load_task_file(path)), 'task')}"


def _check_settings(path: Path) -> str:
    from phalanx.io.yaml_files import read_yaml

    value = read_yaml(path)
    return format_count(len(value) if isinstance(value, dict) else 0, "section")


RUN = FileFormatChecker("run", _check_metadata, marker="run.json")
CHECKPOINT = FileFormatChecker("checkpoint", _check_checkpoint, marker="_CHECKPOINT_METADATA")
EMBEDDING = FileFormatChecker("embedding", _check_embedding, marker="config.json")
ARC = FileFormatChecker("ARC tasks", _check_arc_tasks)
ARCHIVE = FileFormatChecker("archive", _check_archive, suffixes=ARCHIVE_SUFFIXES)
JSON_LINES = FileFormatChecker("JSON Lines", _check_json_lines, suffixes=(".jsonl",))
SETTINGS = FileFormatChecker("settings", _check_settings, suffixes=(".yaml",))
FORMATS = (
    # A folder of batch files also contains their plan.
    FileFormatChecker("batch files", _check_batches, marker="manifest.json"),
    FileFormatChecker("batch plan", _check_plan, marker="batch.plan", suffixes=(".plan",)),
    EMBEDDING,
    CHECKPOINT,
    FileFormatChecker("checkpoint", _check_checkpoint, marker="checksums.json"),
    FileFormatChecker("knowledge base", _check_knowledge_base, marker="train.txt"),
    FileFormatChecker("arrays", _check_arrays, suffixes=(".npz",)),
    JSON_LINES,
    FileFormatChecker("JSON", _check_json, suffixes=(".json",)),
    SETTINGS,
    ARCHIVE,
)
"""Formats in the order in which they are tried. A folder that has none of these formats is checked as a
folder of ARC tasks."""
