"""`phalanx doctor`: what files and folders are, and whether they are whole.

How each format is read and checked is in its own room; nothing here is written or mended.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.errors import UserError
from phalanx.formatting import escape_untrusted, format_count

app = typer.Typer(add_completion=False)

Finding = tuple[Path, str, str]
"""Where, what it is, and what is wrong with it; an empty text where nothing is."""


@app.command()
def doctor(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Runs, files or folders.", show_default=False)
    ],
) -> None:
    """Say of each path what it is and whether it is whole: exit code 0 if all are, 1 if one is not.

    Reads runs with their checkpoints, embeddings, plans, batch files, length caches, samples, replay buffers,
    packs, ARC tasks and archives, knowledge bases and settings. Nothing is changed.
    """
    ill = False
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        for place, what, wrong in examine(path):
            ill = ill or bool(wrong)
            typer.echo(escape_untrusted(f"{place}: {what}, " + (f"NOT WHOLE: {wrong}" if wrong else "whole")))
    raise typer.Exit(1 if ill else 0)


def examine(path: Path) -> Iterator[Finding]:
    """What a path is; a run also tells of its parts."""
    if (path / "run.json").is_file():
        yield from _run(path)
        return
    name, read = _kind(path)
    yield _read(path, name, read)


def _read(path: Path, name: str, read: Callable[[Path], str]) -> Finding:
    if not path.is_file() and not path.is_dir():  # reading a pipe would wait for ever
        return path, name, "it is neither a file nor a folder"
    try:
        told = read(path)
    except (ValueError, OSError) as error:
        return path, name, " ".join(str(error).split())
    return path, f"{name}{' of ' if told else ''}{told}", ""


def _kind(path: Path) -> tuple[str, Callable[[Path], str]]:
    """What a path seems to be, and what reads all of it."""
    if path.is_dir():
        for mark, name, read in (
            ("manifest.json", "batch files", _batches),
            ("batch.plan", "a batch plan", _plan),
            ("config.json", "an embedding", _embedding),
            ("_CHECKPOINT_METADATA", "a checkpoint", _checkpoint),
            ("checksums.json", "a checkpoint", _checkpoint),
            ("train.txt", "a knowledge base", _knowledge),
        ):
            if (path / mark).exists():
                return name, read
        return "ARC tasks", _tasks
    from phalanx.io.archive import ARCHIVE_SUFFIXES, is_archive

    endings: Any = (
        (".npz", "sealed arrays", _arrays),
        (".plan", "a batch plan", _plan),
        (".jsonl", "lines of JSON", _lines),
        (".json", "JSON", _json),
        (".yaml", "settings", _settings),
        (ARCHIVE_SUFFIXES, "an archive", _archive),
    )
    for ending, name, read in endings:
        if path.name.lower().endswith(ending):
            return name, read
    if is_archive(path):
        return "an archive", _archive
    raise UserError(f"{path}: no kind of file that Phalanx writes or reads, by its name and first bytes")


def _run(path: Path) -> Iterator[Finding]:
    from phalanx.io.atomic import is_stale_temporary
    from phalanx.training.run_dir import read_metadata

    def facts(run: Path) -> str:
        about = read_metadata(run)
        return f"algorithm {about.get('algorithm')}, {about.get('status')}, {about.get('updates', 0)} updates"

    yield _read(path, "a run", facts)
    yield _read(path / "config.yaml", "settings", _settings)
    steps = [one for one in _inside(path / "checkpoints") if one.name.isdecimal()]
    for step in sorted(steps, key=lambda one: int(one.name)):
        yield _read(step, "a checkpoint", _checkpoint)
    if (path / "kge").is_dir():
        yield _read(path / "kge", "an embedding", _embedding)
    for lines in sorted(path.rglob("*.jsonl")):
        yield _read(lines, "lines of JSON", _lines)
    for left in _inside(path):
        if is_stale_temporary(left.name):
            yield left, "left by a process that was killed; the next start removes it", ""


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _checkpoint(path: Path) -> str:
    from phalanx.training.checkpoints import verify_checkpoint

    return format_count(verify_checkpoint(path), "file")


def _plan(path: Path) -> str:
    from phalanx.data.plans.plan_files import load_batch_plan

    plan = load_batch_plan(path, verify=True)
    samples = format_count(len(plan.table.as_dict()), "sample")
    return f"{samples} and {format_count(plan.num_epochs, 'epoch')}, fingerprint {plan.fingerprint}"


def _batches(path: Path) -> str:
    from phalanx.data.batch_files import BatchReader

    reader = BatchReader(path)
    return f"{format_count(reader.verify(), 'batch')} of plan {reader.fingerprint}".replace(
        "batchs", "batches"
    )


def _embedding(path: Path) -> str:
    from phalanx.kg.kge.embedding import check_kge

    entities, relations = check_kge(path)
    return f"{entities:,} entities and {relations:,} relations"


def _knowledge(path: Path) -> str:
    from phalanx.kg.knowledge_base import KnowledgeBase

    base = KnowledgeBase.load(path)
    return format_count(len(base.facts), "fact")


def _tasks(path: Path) -> str:
    from phalanx.arc.task_files import read_splits

    return format_count(sum(map(len, read_splits(path).values())), "task")


def _archive(path: Path) -> str:
    from phalanx.arc.task_files import read_splits
    from phalanx.io.archive import unpack

    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        unpack(path, Path(scratch), str(path))
        return format_count(sum(map(len, read_splits(Path(scratch)).values())), "task")


def _arrays(path: Path) -> str:
    """Sealed NPZ files: length caches, samples, replay buffers, packs and single batches."""
    import numpy as np

    from phalanx.io.checksum import open_verified

    with open_verified(path) as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if "id_bytes" in names:
            return f"a length cache: {_lengths(path)}"
        if "serials" in names:
            from phalanx.data.samples import read_packed_samples

            _, header, _ = read_packed_samples(path)
            kind = "a replay buffer" if "buffer" in header else "samples"
            return f"{kind}: {format_count(header['samples'], 'sample')}"
        return ", ".join(names)


def _lengths(path: Path) -> str:
    from phalanx.data.length_cache import LengthCache

    cache = LengthCache.load(path)
    samples = format_count(len(cache.get_all()), "sample")
    return f"{samples} and {int(cache.lengths.sum()):,} tokens by {cache.tokenizer_hash}"


def _lines(path: Path) -> str:
    from phalanx.io.untrusted import parse_json

    count = 0
    with path.open("rb") as file:
        for count, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                raise ValueError(f"{path}:{count}: the last line is cut off")
            parse_json(line, f"{path}:{count}")
    return format_count(count, "line")


def _json(path: Path) -> str:
    from phalanx.arc.task_files import read_task_file
    from phalanx.io.checksum import CHECKSUM_FIELD, read_verified_json
    from phalanx.io.untrusted import read_json

    value: Any = read_json(path)
    if isinstance(value, dict) and CHECKSUM_FIELD in value:
        return f"sealed fields {', '.join(read_verified_json(path))}"
    return f"ARC tasks: {format_count(len(read_task_file(path)), 'task')}"


def _settings(path: Path) -> str:
    from phalanx.io.untrusted import read_yaml

    value = read_yaml(path)
    return format_count(len(value) if isinstance(value, dict) else 0, "section")
