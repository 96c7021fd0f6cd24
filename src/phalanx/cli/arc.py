"""`phalanx arc`: lists ARC datasets and their tasks, shows a task, and downloads a dataset."""

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_table, print_json, show_activity
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from phalanx.arc.tasks import ArcTask

app = typer.Typer(
    name="arc", help="ARC datasets: list, show, download.", no_args_is_help=True, add_completion=False
)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of datasets.", envvar="PHALANX_DATA", show_default="~/.cache/phalanx/arc"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Families = Annotated[list[str] | None, typer.Option(help="Only this family or concept; can be repeated.")]
Palette = Annotated[
    Literal["arc", "safe"], typer.Option(help="ARC's colors, or colors that are safe for color blindness.")
]
NumTasks = Annotated[int, typer.Option(help="Number of tasks to generate (generated only).", min=1)]
Seed = Annotated[int, typer.Option(help="Random seed (generated only).")]


@app.command("list")
def list_(
    source: Annotated[
        str, typer.Argument(help="Dataset or path whose tasks are listed. Default: list the datasets.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            help="training, evaluation, another split of the source, or all.",
            show_default="all; generated: training",
        ),
    ] = "",
    family: Families = None,
    max_size: Annotated[
        str, typer.Option(metavar="N or HxW", help="List only tasks whose grids have at most this size.")
    ] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    num_tasks: NumTasks = 64,
    seed: Seed = 0,
) -> None:
    """List the datasets, or the tasks of one dataset with their size, number of pairs and family."""
    if not source:
        rows = _dataset_rows(data_dir)
        if as_json:
            print_json(rows)
        else:
            cells = [[row["name"], row["about"], _dataset_state(row)] for row in rows]
            typer.echo(format_table(["NAME", "WHAT", "TASKS"], cells))
        return
    from phalanx.arc.datasets import load_tasks

    with user_errors():
        tasks = load_tasks(
            source,
            split or ("training" if source == "generated" else "all"),
            families=family,
            max_size=_parse_size(max_size),
            data_dir=data_dir,
            num_tasks=num_tasks,
            seed=seed,
        )
    rows = []
    for task in tasks:
        height, width = task.max_shape
        counts = {"demos": len(task.demos), "tests": len(task.tests)}
        rows.append({"id": task.id, "family": task.family, **counts, "height": height, "width": width})
    if as_json:
        print_json(rows)
        return
    cells = [
        [row["id"], f"{row['height']}x{row['width']}", str(row["demos"]), str(row["tests"]), row["family"]]
        for row in rows
    ]
    typer.echo(format_table(["ID", "LARGEST", "DEMOS", "TESTS", "FAMILY"], cells))
    typer.echo(format_count(len(rows), "task"))


@app.command()
def show(
    task_id: Annotated[str, typer.Argument(help="Id of the task, as shown by `list SOURCE`.")],
    source: Annotated[
        str, typer.Option(help="Dataset or path of the task. Default: search all datasets.")
    ] = "",
    svg: Annotated[Path | None, typer.Option(help="Save an SVG to this file instead.")] = None,
    palette: Palette = "arc",
    data_dir: DataDir = None,
    num_tasks: NumTasks = 64,
    seed: Seed = 0,
) -> None:
    """Show a task in the terminal, or save it as SVG."""
    from rich.console import Console

    from phalanx.arc.rendering import draw_task, render_task, save_svg

    with user_errors():
        task = _find_task(task_id, source, data_dir, num_tasks, seed)
        if svg is not None:
            typer.echo(str(save_svg(draw_task(task, palette=palette), svg)))
            return
    task = dataclasses.replace(task, id=escape_untrusted(task.id), family=escape_untrusted(task.family))
    Console().print(render_task(task, palette=palette))


@app.command()
def download(
    source: Annotated[
        str,
        typer.Argument(
            help="Name of a dataset, URL or path of a ZIP or tar archive, a folder or one JSON file."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name to save it under. Default: the name of the source.")] = "",
    sha256: Annotated[str, typer.Option(help="Expected SHA-256 of the file.")] = "",
    data_dir: DataDir = None,
) -> None:
    """Download a dataset. All tasks are validated first; if any task is invalid, nothing is saved."""
    from phalanx.arc.datasets import download_dataset

    with user_errors(), _tidy_when_terminated(), _progress_bar() as progress:
        folder, counts = download_dataset(source, name, sha256=sha256, data_dir=data_dir, progress=progress)
    typer.echo(escape_untrusted(f"{folder.name}: {_count_text(counts)} in {folder}"))


def _dataset_rows(data_dir: Path | None) -> list[dict[str, Any]]:
    """Return one record for each dataset in `DATASETS`, and one for each other available dataset."""
    from phalanx.arc.datasets import DATASETS, GENERATED, available_datasets, load_splits

    rows = []
    places = available_datasets(data_dir)
    for name in [*DATASETS, *(name for name in places if name not in DATASETS)]:
        row: dict[str, Any] = {"name": name, "where": places.get(name), "tasks": None, "error": None}
        row["about"] = DATASETS[name].description if name in DATASETS else ""
        if name in places and name != GENERATED:
            try:
                splits = load_splits(name, data_dir=data_dir)
                row["tasks"] = {split or "training": len(tasks) for split, tasks in splits.items()}
            except (ValueError, OSError) as error:  # list the other datasets anyway
                row["error"] = str(error)
        rows.append(row)
    return rows


def _dataset_state(row: dict[str, Any]) -> str:
    """Describe the state of a dataset: invalid, not downloaded, or its number of tasks and its location."""
    if row["error"]:
        return f"invalid: {row['error']}"
    if row["where"] is None:
        return f"not downloaded; `phalanx arc download {row['name']}`"
    return f"{_count_text(row['tasks'])} in {row['where']}" if row["tasks"] else row["where"]


def _count_text(counts: dict[str, int]) -> str:
    """Format `{"training": 400, "evaluation": 400}` as "800 tasks (400 training, 400 evaluation)"."""
    parts = ", ".join(f"{count} {split}" for split, count in counts.items())
    return format_count(sum(counts.values()), "task") + (f" ({parts})" if len(counts) > 1 else "")


def _parse_size(text: str) -> int | tuple[int, int] | None:
    """Parse a grid size such as `7` or `5x7` (rows first). An empty string means no limit (None)."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"--max-size must be a number or ROWSxCOLUMNS, such as 7 or 5x7, got {text!r}")
    return (int(sides[0]), int(sides[1])) if len(sides) == 2 else int(sides[0])


def _find_task(task_id: str, source: str, data_dir: Path | None, num_tasks: int, seed: int) -> "ArcTask":
    from phalanx.arc.datasets import GENERATED, available_datasets, load_tasks

    options: dict[str, Any] = {"data_dir": data_dir, "num_tasks": num_tasks, "seed": seed}
    if source:
        return load_tasks(source, "all", ids=[task_id], **options)[0]
    # Files first, because generating tasks takes longer.
    names = sorted(available_datasets(data_dir), key=lambda name: name == GENERATED)
    for name in names:
        for task in load_tasks(name, "all", **options):
            if task.id == task_id:
                return task
    raise UserError(f"no task {task_id!r} in {', '.join(names)}; set the dataset or path with --source")


@contextlib.contextmanager
def _tidy_when_terminated() -> Iterator[None]:
    """Raise `SystemExit` if SIGTERM arrives in the `with` block, so that temporary files are removed."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on stderr. If stderr is not a terminal, print a line every ten seconds.

    Yields:
        A function to call with the number of downloaded bytes and the total number of bytes (None if
        unknown).
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        with show_activity("downloading"):
            yield lambda done, total: None
        return
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("downloading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
