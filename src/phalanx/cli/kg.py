"""`phalanx kg`: lists, shows, generates and downloads knowledge bases, mines rules, and answers queries."""

import collections
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, format_table, print_json, show_activity
from phalanx.cli.prove import ExcludeFacts, draw_proofs, proof_record, proof_tree
from phalanx.config import load_config
from phalanx.formatting import escape_untrusted, format_count, format_percent
from phalanx.io.atomic import atomic_directory
from phalanx.kg import (
    DATASETS,
    DEFAULT_TIES,
    Ensemble,
    KnowledgeBase,
    LinkPredictor,
    MiningConfig,
    PathNetwork,
    PathNetworkConfig,
    QueryAnswerer,
    Rule,
    RulePredictor,
    RuleSet,
    TieRule,
    TimeLimit,
    compute_proof_depths,
    download_dataset,
    evaluate_link_prediction,
    fit_path_network,
    mine_rules,
    parse_query,
)
from phalanx.kg.datasets import HOST, dataset_folder
from phalanx.kg.formats import list_knowledge_bases, load_rules, write_depths
from phalanx.kg.knowledge_base import GENERATED
from phalanx.kg.proof_depths import UNDECIDED
from phalanx.kg.rules.predictor import Aggregation
from phalanx.kg.rules.ruleset import HEAD_CONSTANT
from phalanx.kg.time_limit import ProgressReport, print_to_stderr

app = typer.Typer(
    name="kg",
    help="Knowledge graphs: list, show, generate, download, depths, mine, evaluate, query, path-network.",
    no_args_is_help=True,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="Folder of a knowledge base, or a file of triples.")
]
OptionalData = Annotated[
    Path,
    typer.Argument(
        metavar="[DATA]",
        help="Folder of a knowledge base, a file of triples, or `generated` for the built-in one.",
        envvar="PHALANX_KG",
    ),
]
EvaluationSplit = Literal["valid", "test"]
Evaluate = Annotated[
    EvaluationSplit | None, typer.Option("--evaluate", help="Also evaluate the result on a split.")
]
Ties = Annotated[TieRule, typer.Option(help="How answers with equal scores are ranked.")]
AggregationOption = Annotated[
    Aggregation, typer.Option(help="How the confidences of several rules are combined.")
]
Power = Annotated[
    float, typer.Option(min=1, help="Exponent of `power`: 1 is noisyor, larger values are closer to maxplus.")
]
KGERun = Annotated[
    Path | None, typer.Option("--kge", help="Combine with an embedding: a run of `phalanx train kge`.")
]
NumThreads = Annotated[
    int, typer.Option("--threads", min=1, help="Number of threads. Does not change the result.")
]

_MAX_SHOWN_ERRORS = 5
"""Maximum number of wrong entries in a depth file to print."""


@app.command("list")
def list_(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Folder with knowledge bases.", envvar="PHALANX_KG"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the knowledge bases in a folder. Without a folder, list the built-in knowledge base."""
    with user_errors():
        folders = [Path(GENERATED)] if path is None else list_knowledge_bases(path)
    if not folders:
        raise UserError(f"{path}: no folder in it has a train.txt")
    rows = [_load(folder).sizes() for folder in folders]
    if as_json:
        print_json(rows)
    else:
        typer.echo(format_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]))


@app.command()
def show(data: OptionalData = Path(GENERATED), as_json: AsJson = False) -> None:
    """Show the sizes, rules, proof depths and leaks of a knowledge base.

    A leak is a validation or test query that is also a training fact.
    """
    base = _load(data)
    sizes, leaks = base.sizes(), base.leaks()
    domains = {name: len(constants) for name, constants in base.domains.items()}
    body_lengths = _count(len(rule.body) for rule in base.rules)
    depths = {split: _count(given.values()) for split, given in base.split_depths.items()}
    if as_json:
        print_json(
            sizes
            | {
                "domains": domains,
                "rules_by_body": body_lengths,
                "depths": depths,
                "leaks": {split: [str(atom) for atom in atoms] for split, atoms in leaks.items()},
                "rule_lines": [str(rule) for rule in base.rules],
            }
        )
        return
    num_rules = sizes.pop("rules")
    lines: list[tuple[str, object]] = [*sizes.items()]
    lines += [("domains", _format_counts(domains) or "none"), ("rules", num_rules)]
    lines += [(f"  body of {length}", count) for length, count in body_lengths.items()]
    lines += [(f"{split} depths", _format_counts(counts)) for split, counts in depths.items()]
    for split, atoms in leaks.items():
        lines.append((f"{split} leaks", f"{len(atoms)} queries are facts, such as {atoms[0]}"))
    if not leaks:
        lines.append(("leaks", "none: no valid or test query is a fact"))
    typer.echo(format_fields(lines))


@app.command()
def depths(
    data: OptionalData = Path(GENERATED),
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Split of the queries.")] = "test",
    max_depth: Annotated[int, typer.Option(help="Maximum number of steps in a proof.", min=1)] = 6,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a depth file.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Fail (exit code 1) if the existing depth file is wrong.")
    ] = False,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Time limit in seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the depth of each query: the exact number of steps in its shortest proof.

    If the knowledge base contains a depth file for the split (SPLIT_depths.txt), the depths are compared with
    it. A step replaces the first goal with the body of a rule or unifies it with a fact. Proving a goal that
    has no variables and is a fact does not count as a step. A query is never used in its own proof. Queries
    without a proof of at most --max-depth steps have depth -1. Queries that are undecided at the time limit
    are counted separately and not written to --out.
    """
    base = _load(data)
    with user_errors():
        time_limit = TimeLimit(max_seconds, print_to_stderr)
        facts, rules = base.triples("train"), base.encoded_rules
        found = compute_proof_depths(base.triples(split), facts, rules, max_depth, time_limit).tolist()
    pairs = zip(base.queries(split), found, strict=True)
    exact = {query: depth for query, depth in pairs if depth != UNDECIDED}
    undecided, counts = found.count(UNDECIDED), _count(exact.values())
    given = base.depths(split)
    if check and given is None:
        raise UserError(f"{base.name} has no {split}_depths.txt to check")
    # A given depth above --max-depth is correct if there is no proof of at most --max-depth steps.
    wrong = [
        (atom, stated, exact[atom])
        for atom, stated in (given or {}).items()
        if atom in exact and exact[atom] != (stated if stated <= max_depth else -1)
    ]
    if out is not None:
        with user_errors():
            write_depths(out, exact)
    if as_json:
        print_json(
            {
                "name": base.name,
                "split": split,
                "max_depth": max_depth,
                "queries": len(found),
                "depths": counts,
                "undecided": undecided,
                "given": None if given is None else len(given),
                "wrong": [{"atom": str(atom), "given": stated, "exact": d} for atom, stated, d in wrong],
                "out": None if out is None else str(out),
            }
        )
    else:

        def name(depth: int) -> str:
            return f"none to {max_depth}" if depth < 0 else str(depth)

        rows: list[list[object]] = [[name(depth), count] for depth, count in counts.items()]
        rows += [["undecided", undecided]] if undecided else []
        lines = [format_table(["DEPTH", "QUERIES"], rows)]
        if given is not None:
            lines.append(f"{split}_depths.txt: {len(given):,} depths, {len(wrong):,} wrong")
            for (stated, depth), count in _count((stated, depth) for _, stated, depth in wrong).items():
                lines.append(f"  {count:,} given as {stated}, exact {name(depth)}")
            for atom, stated, depth in wrong[:_MAX_SHOWN_ERRORS]:
                lines.append(f"  {atom}: given {stated}, exact {name(depth)}")
        if out is not None:
            lines.append(f"{out}: {len(exact):,} depths written")
        typer.echo("\n".join(lines))
    if check and wrong:
        raise typer.Exit(1)


@app.command()
def generate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    families: Annotated[int, typer.Option(help="Number of founding couples.", min=1)] = 8,
    generations: Annotated[int, typer.Option(help="Number of generations, with the founders.", min=2)] = 4,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
) -> None:
    """Generate a knowledge base about families and save it as a folder."""
    base = KnowledgeBase.generate(families, generations, seed=seed)
    with user_errors():
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(out) as folder:
            base.save(folder)
    typer.echo(f"{out}: {len(base.domains['people']):,} people, {base.format_sizes()}")


@app.command()
def download(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Such as wn18rr or deepprooflog/family; without a name, list all."
        ),
    ] = None,
    to: Annotated[Path, typer.Option(help="Parent folder of kg-standard/NAME and kg/NAME.")] = Path("data"),
    host: Annotated[str, typer.Option(help="Address of a mirror.")] = HOST,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Save files whose digest is not the expected one.")
    ] = False,
) -> None:
    """Download published knowledge bases. All files are verified and parsed before anything is saved."""
    if not names:
        rows = [[name, str(dataset_folder(name, to)), one.description] for name, one in DATASETS.items()]
        typer.echo(format_table(["NAME", "FOLDER", "DESCRIPTION"], rows))
    for name in names or ():
        with user_errors(), show_activity(f"downloading {name}"):
            folder, base = download_dataset(name, to, host=host, verify=not no_verify)
        typer.echo(f"{folder}: {base.format_sizes()}")


@app.command()
def mine(
    data: Data,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as max_length=2 min_support=5."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to save the rules.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.1, help="Time limit in seconds.")] = None,
    num_threads: NumThreads = 2,
    evaluate: Evaluate = None,
    aggregation: AggregationOption = "maxplus",
    power: Power = 2.0,
    kge: KGERun = None,
    ties: Ties = DEFAULT_TIES,
    as_json: AsJson = False,
) -> None:
    """Mine rules from the training triples of a knowledge base."""
    started, report = time.process_time(), ProgressReport()
    overrides = [f"num_threads={num_threads}", *([f"max_seconds={max_seconds}"] if max_seconds else [])]
    with user_errors():
        config = load_config(MiningConfig, None, (*overrides, *(settings or ())))
        base = _load(data).binary()
        if not base.facts:
            raise ValueError(f"{data} has no triples to mine rules from")
        rules = mine_rules(base, config, report)
        mining_seconds = time.process_time() - started
        if out is not None:
            print_to_stderr(f"writing {format_count(len(rules), 'rule')}")
            rules.save(out)
    num_paths = int((rules.rows[:, HEAD_CONSTANT] < 0).sum())
    record: dict[str, Any] = {
        "dataset": base.name,
        "facts": len(base.facts),
        "rules": len(rules),
        "path_rules": num_paths,
        "complete": rules.is_complete,
        "mining_cpu_seconds": round(mining_seconds, 2),
    }
    if not as_json:
        kinds = f"{num_paths:,} paths and {len(rules) - num_paths:,} with constants"
        note = "" if rules.is_complete else "; the time limit was reached before mining was complete"
        typer.echo(
            f"{format_count(len(rules), 'rule')} from {format_count(len(base.facts), 'fact')}: {kinds}{note}"
        )
        for index in range(0 if out or evaluate else min(10, len(rules))):
            typer.echo(f"  {rules[index]}")
    if evaluate is not None:
        options = {
            "power": power,
            "num_threads": num_threads,
            "max_paths_per_entity": config.max_paths_per_entity,
        }
        started = time.process_time()
        predictor = _fit_predictor(rules, base, aggregation, kge, **options)
        record |= _evaluate(predictor, base, evaluate, ties, as_json, started)
    if as_json:
        print_json(record)


@app.command()
def evaluate(
    data: Data,
    rules: Annotated[Path, typer.Option("--rules", help="A file of rules, as saved by `kg mine`.")],
    split: Annotated[EvaluationSplit, typer.Option(help="Split of the queries.")] = "test",
    aggregation: AggregationOption = "maxplus",
    power: Power = 2.0,
    kge: KGERun = None,
    ties: Ties = DEFAULT_TIES,
    num_threads: NumThreads = 2,
    as_json: AsJson = False,
) -> None:
    """Evaluate rules by link prediction. Prints filtered MRR and Hits@k for rankings of all entities."""
    with user_errors():
        base = _load(data).binary()
        found, unsupported = RuleSet.from_rules(load_rules(rules), base.vocabulary)
    _warn_about_unsupported(unsupported)
    started = time.process_time()
    predictor = _fit_predictor(found, base, aggregation, kge, power=power, num_threads=num_threads)
    record = _evaluate(predictor, base, split, ties, as_json, started)
    if as_json:
        print_json({"dataset": base.name, "facts": len(base.facts), "rules": len(found)} | record)


@app.command("path-network")
def path_network(
    data: Data,
    file: Annotated[Path, typer.Argument(help="Network file. If it does not exist, a network is trained.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Training settings, such as num_layers=4."),
    ] = None,
    evaluate: Evaluate = None,
    kge: KGERun = None,
    ties: Ties = DEFAULT_TIES,
    num_threads: NumThreads = 2,
    as_json: AsJson = False,
) -> None:
    """Train a path network, or load it if the file exists, and optionally evaluate it by link prediction."""
    started, report = time.process_time(), ProgressReport()
    with user_errors():
        base = _load(data).binary()
        if not file.exists():
            config = load_config(PathNetworkConfig, None, settings or ())
            network = fit_path_network(base, config, num_threads=num_threads, report=report)
            network.save(file)
        elif settings:
            raise ValueError(f"{file} already exists, so settings have no effect: remove it to train again")
        else:
            network = PathNetwork.load(file, base, num_threads)
    trained = time.process_time()
    record: dict[str, Any] = {"dataset": base.name, "facts": len(base.facts)}
    record["training_cpu_seconds"] = round(trained - started, 2)
    if evaluate is not None:
        predictor: LinkPredictor = network
        with user_errors():
            if (embedding := _load_embedding(kge, base)) is not None:
                predictor = Ensemble.fit([network], embedding, base, report)
        record |= _evaluate(predictor, base, evaluate, ties, as_json, trained)
    elif not as_json:
        typer.echo(f"{file}: path network with {network.parameters.size:,} parameters")
    if as_json:
        print_json(record)


@app.command()
def query(
    data: Data,
    query: Annotated[
        str, typer.Argument(help="An atom with one variable, as in nephew(X,bob), or without variables.")
    ],
    top: Annotated[int, typer.Option(min=1, help="Maximum number of answers to show.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show the best proofs of each answer.")] = False,
    exclude_facts: ExcludeFacts = False,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="File of rules to use.", show_default="those of DATA, or mined ones"),
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time limit for mining in seconds, if rules are mined.")
    ] = 30.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the best proof of each answer as SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a query by applying rules to facts. The exit code is 1 if there is no answer."""
    with user_errors():
        base, given = _load(data), None
        if rules is not None and set(base.arities.values()) != {2}:
            # Other arities need exact proving, which supports rules of any form.
            base = base.replace(rules=load_rules(rules))
        elif rules is not None:
            given, unsupported = RuleSet.from_rules(load_rules(rules), base.vocabulary)
            _warn_about_unsupported(unsupported)
        parsed = parse_query(base, query)
        if rules is None and not base.rules and len(parsed.free) == 2:
            print_to_stderr(f"{base.name} has no rules.txt: mining rules for at most {max_seconds:g} s")
            given = mine_rules(base, report=ProgressReport(), max_seconds=max_seconds)
        answerer = QueryAnswerer(base, given)
        _warn_about_unsupported(answerer.unsupported_rules)
        answers = answerer.query(query, top, explain=explain or out is not None, exclude_facts=exclude_facts)
    drawings = draw_proofs([proof for answer in answers for proof in answer.proofs[:1]], out)
    if as_json:
        found = [
            {
                "atom": str(answer.atom),
                "probability": answer.probability,
                "confidence": answer.confidence,
                "fact": answer.is_fact,
                "rules": [str(rule) for rule in answer.rules],
                "proofs": [proof_record(proof) for proof in answer.proofs],
            }
            for answer in answers
        ]
        print_json({"query": query, "answers": found, "drawings": [str(path) for path in drawings]})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for answer in answers:
            note = "fact" if answer.is_fact else f"confidence {answer.confidence:.3f}"
            console.print(
                f"{format_percent(answer.probability):>6}  {escape_untrusted(answer.atom)}  {note}",
                markup=False,
            )
            for proof in answer.proofs if explain else ():
                console.print(proof_tree(proof))
            for rule in answer.rules[: len(answer.proofs)] if explain else ():
                console.print(f"        {escape_untrusted(rule)}", markup=False)
        for path in drawings:
            typer.echo(str(path))
        if not answers:
            typer.echo(f"{escape_untrusted(query)}: no answer")
    if not answers:
        raise typer.Exit(1)


def _load(data: Path) -> KnowledgeBase:
    with user_errors():
        return KnowledgeBase.load(str(data), on_leak="allow")


def _load_embedding(run: Path | None, base: KnowledgeBase) -> LinkPredictor | None:
    if run is None:
        return None
    from phalanx.kg.kge.embedding import load_kge  # imports JAX

    return load_kge(run, base.vocabulary)


def _fit_predictor(
    rules: RuleSet, base: KnowledgeBase, aggregation: Aggregation, kge: Path | None, **options: Any
) -> LinkPredictor:
    """Create a predictor from rules and, if `kge` is given, an embedding.

    `options` are additional arguments to `RulePredictor.fit`.
    """
    options["report"] = ProgressReport()
    with user_errors():
        return RulePredictor.fit(rules, base, aggregation, kge=_load_embedding(kge, base), **options)


def _evaluate(
    predictor: LinkPredictor, base: KnowledgeBase, split: str, ties: TieRule, as_json: bool, started: float
) -> dict[str, Any]:
    """Evaluate a predictor by link prediction, and print the result unless `as_json` is true.

    Returns:
        The result and the CPU time since `started` (a value of `time.process_time`), as JSON values.
    """
    print_to_stderr(f"ranking {len(base.queries(split)):,} queries")
    with user_errors():
        result = evaluate_link_prediction(predictor, base, split, ties=ties, report=ProgressReport())
    if not as_json:
        typer.echo(str(result))
    seconds = round(time.process_time() - started, 2)
    return {**result.as_record(), "evaluation_cpu_seconds": seconds}


def _warn_about_unsupported(rules: tuple[Rule, ...]) -> None:
    if rules:
        print_to_stderr(
            f"{format_count(len(rules), 'rule')} left out because their form is not supported, such as "
            f"{rules[0].name}"
        )


def _count(values: Iterable[Any]) -> dict[Any, int]:
    return dict(sorted(collections.Counter(values).items()))


def _format_counts(counts: dict[Any, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())
