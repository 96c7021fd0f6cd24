"""`phalanx data kg`: list and show knowledge bases, compute exact proof depths, generate families, fetch.

The reading is in `phalanx.kg.knowledge_base`, the depths in `chaining` beside it, addresses in `sources`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import columns, facts, print_json, working

if TYPE_CHECKING:
    from phalanx.kg.atoms import Atom
    from phalanx.kg.knowledge_base import DataHandler

app = typer.Typer(
    name="kg",
    help="Knowledge bases: list, show, depths, generate, fetch.",
    no_args_is_help=True,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Dataset = Annotated[
    str, typer.Argument(help="The name of a knowledge base in PATH; `generated` needs no path.")
]
DataPath = Annotated[
    Path | None,
    typer.Option("--path", "-p", help="The folder of a knowledge base, or of several.", envvar="PHALANX_KG"),
]

_SHOWN = 5
"""How many wrong lines of a depth file are shown."""


@app.command("list")
def list_(path: DataPath = None, as_json: AsJson = False) -> None:
    """List the knowledge bases in a folder, or the built-in one."""
    from phalanx.kg.knowledge_base import GENERATED, available_knowledge

    with user_errors():
        names = [(GENERATED, None)] if path is None else [(f.name, f) for f in available_knowledge(path)]
    if not names:
        raise UserError(f"{path}: no folder in it has a train.txt")
    rows = []
    for name, folder in names:
        with user_errors():
            rows.append(_sizes(_handler(name, folder)))
    if as_json:
        print_json(rows)
    else:
        shown = ("name", "entities", "predicates", "rules", "facts", "valid", "test")
        typer.echo(columns([key.upper() for key in shown], [[row[key] for key in shown] for row in rows]))


@app.command()
def show(dataset: Dataset = "generated", path: DataPath = None, as_json: AsJson = False) -> None:
    """Show a knowledge base: its sizes, rules, depths by split, and test queries that are facts."""
    with user_errors():
        data = _handler(dataset, path)
    found = _sizes(data) | {
        "domains": {name: len(constants) for name, constants in data.domains.items()},
        "rules_by_body": _counts(len(rule.body) for rule in data.rules),
        "depths": {
            split: _counts(depths.values())
            for split in ("train", "valid", "test")
            if (depths := data.depths(split)) is not None
        },
        "leaks": {split: [str(atom) for atom in atoms] for split, atoms in data.leaks().items()},
    }
    if as_json:
        print_json(found | {"rule_lines": [str(rule) for rule in data.rules]})
        return
    lines: list[tuple[str, object]] = [(name, found[name]) for name in ("name", "entities", "predicates")]
    lines += [("facts", found["facts"]), ("valid", found["valid"]), ("test", found["test"])]
    lines += [("domains", _pairs(found["domains"]) or "none given")]
    lines += [("rules", found["rules"])]
    lines += [(f"  body of {size}", count) for size, count in found["rules_by_body"].items()]
    lines += [(f"{split} depths", _pairs(counts)) for split, counts in found["depths"].items()]
    for split, atoms in found["leaks"].items():
        lines.append((f"{split} leaks", f"{len(atoms)} queries are facts, as {atoms[0]}"))
    if not found["leaks"]:
        lines.append(("leaks", "none: no valid or test query is a fact"))
    typer.echo(facts(lines))


@app.command()
def depths(
    dataset: Dataset = "generated",
    path: DataPath = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Which queries.")] = "test",
    max_depth: Annotated[int, typer.Option(help="The longest proof to look for.", min=1)] = 6,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a depth file.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Fail (exit code 1) where the given depth file is wrong.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the exact length of each query's shortest proof, and compare with the given depth file.

    A step replaces the first goal by a rule's body or a fact; ground goals that are facts cost nothing, and
    a query may not use itself. Deeper than the limit reads as -1, no proof. When the time is up, queries that
    are not settled are told apart, and left out of the file.
    """
    with user_errors():
        data = _handler(dataset, path)
        exact, unsettled = _exact_depths(data, split, max_depth, seconds)
    given = data.depths(split)
    if check and given is None:
        raise UserError(f"{data.dataset} has no {split}_depths.txt to check")
    wrong = [] if given is None else _wrong_depths(given, exact, max_depth)
    if out is not None:
        from phalanx.kg.formats import write_depths

        with user_errors():
            write_depths(out, exact)
    kinds = _counts((stated, depth) for _, stated, depth in wrong)
    if as_json:
        print_json(
            {
                "name": data.dataset,
                "split": split,
                "max_depth": max_depth,
                "queries": len(exact) + unsettled,
                "depths": _counts(exact.values()),
                "unsettled": unsettled,
                "given": None if given is None else len(given),
                "wrong": [
                    {"atom": str(atom), "given": stated, "exact": depth} for atom, stated, depth in wrong
                ],
                "out": None if out is None else str(out),
            }
        )
    else:
        counts = _counts(exact.values())
        rows: list[list[object]] = [[_depth_name(depth, max_depth), n] for depth, n in counts.items()]
        rows += [["not settled in time", unsettled]] if unsettled else []
        typer.echo(columns(["DEPTH", "QUERIES"], rows))
        if given is not None:
            typer.echo(f"{split}_depths.txt: {len(given):,} depths given, {len(wrong):,} wrong")
            for (stated, depth), count in kinds.items():
                typer.echo(f"  {count:,} given as {stated}, exactly {_depth_name(depth, max_depth)}")
            for atom, stated, depth in wrong[:_SHOWN]:
                typer.echo(f"  {atom}: given {stated}, exactly {_depth_name(depth, max_depth)}")
        if out is not None:
            typer.echo(f"{out}: {len(exact):,} depths written")
    if check and wrong:
        raise typer.Exit(1)


@app.command()
def generate(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    families: Annotated[int, typer.Option(help="Founding couples.", min=1)] = 8,
    generations: Annotated[int, typer.Option(help="Generations, founders included.", min=2)] = 4,
    seed: Annotated[int, typer.Option(help="What to generate them from.", min=0)] = 0,
) -> None:
    """Write a generated family knowledge base in the files that `--path` reads."""
    from phalanx.io.atomic import atomic_directory
    from phalanx.kg.family_generator import generate_family
    from phalanx.kg.formats import write_knowledge

    base = generate_family(families, generations, seed=seed)
    with user_errors():
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(out) as folder:
            write_knowledge(folder, base)
    typer.echo(
        f"{out}: {len(base.domains['people']):,} people, {len(base.train):,} facts, {len(base.rules)} rules, "
        f"{len(base.valid)} valid and {len(base.test)} test queries"
    )


@app.command()
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="As wn18rr or deepprooflog/family; none lists them all."),
    ] = None,
    to: Annotated[
        Path, typer.Option(help="What kg-standard/NAME and, for DeepProofLog's, kg/NAME are put into.")
    ] = Path("data"),
    host: Annotated[
        str | None,
        typer.Option(help="A mirror to ask instead.", show_default="https://raw.githubusercontent.com"),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Take it though it is not the version known here.")
    ] = False,
) -> None:
    """Fetch knowledge bases that are published: nothing appears that is not the version known here."""
    from phalanx.kg.datasets import DATASETS, HOST, download_dataset, folder_of

    if not names:
        rows = [[name, str(folder_of(name, to)), source.about] for name, source in DATASETS.items()]
        typer.echo(columns(["NAME", "FOLDER", "WHAT IT IS"], rows))
        return
    for name in names:
        with user_errors(), working(f"fetching {name}"):
            folder, base = download_dataset(name, to, host=host or HOST, unchecked=unchecked)
        typer.echo(
            f"{folder}: {len(base.train):,} facts, {len(base.rules)} rules, {len(base.valid):,} valid and "
            f"{len(base.test):,} test queries"
        )


def _handler(dataset: str, path: Path | None) -> "DataHandler":
    from phalanx.kg.knowledge_base import DataHandler

    return DataHandler(dataset, path, on_leak="allow")


def _sizes(data: "DataHandler") -> dict[str, Any]:
    return {
        "name": data.dataset,
        "entities": len(data.entities),
        "predicates": len(data.predicates),
        "rules": len(data.rules),
        "facts": len(data.facts),
        "valid": len(data.valid_queries),
        "test": len(data.test_queries),
    }


def _exact_depths(
    data: "DataHandler", split: str, max_depth: int, seconds: float | None
) -> tuple[dict["Atom", int], int]:
    """The depths that are settled in time, and how many are not."""
    from phalanx.kg.chaining import depths_in_time
    from phalanx.kg.time_limit import TimeLimit, to_stderr
    from phalanx.kg.vocabulary import IndexManager

    index = IndexManager(data)
    queries = data.queries(split)
    facts, rules = index.encode_atoms(data.facts), index.encode_rules(data.rules)
    budget = TimeLimit(seconds, to_stderr)
    depths, settled = depths_in_time(index.encode_atoms(queries), facts, rules, max_depth, budget)
    found = zip(queries, depths.tolist(), settled.tolist(), strict=True)
    return {query: depth for query, depth, sure in found if sure}, int((~settled).sum())


def _wrong_depths(
    given: Mapping["Atom", int], exact: dict["Atom", int], max_depth: int
) -> list[tuple["Atom", int, int]]:
    """Where a depth file differs; what it has beyond the limit is right as long as nothing shorter is."""
    return [
        (atom, stated, exact[atom])
        for atom, stated in given.items()
        if atom in exact and exact[atom] != (stated if stated <= max_depth else -1)
    ]


def _counts(values: Any) -> dict[Any, int]:
    import collections

    return dict(sorted(collections.Counter(values).items()))


def _pairs(counts: dict[Any, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _depth_name(depth: int, max_depth: int) -> str:
    return f"none to {max_depth}" if depth < 0 else str(depth)
