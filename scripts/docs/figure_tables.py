"""The tables of measurements in README and docs that `figures.py` fills in.

A cell is an expression such as `arc_env.native-30x30-1024`, or fixed text.
"""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Text:
    """A table cell with fixed text, such as a number from a paper with a link to it."""

    text: str


@dataclasses.dataclass(frozen=True)
class System:
    """A table cell with the library that was measured, such as the fastest one that matches a pattern."""

    measurement: str


Cell = str | Text | System
"""An expression, fixed text, or the name of a library."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A generated table.

    Attributes:
        name: Name in the marker `<!--{{table NAME}}-->`.
        columns: Headings. The first column contains the labels of the rows.
        rows: Labels and the cells of the other columns.
        spread: Add the lowest and the highest repeat to each median.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    spread: bool = True


def _row(label: str, suite: str, *cells: str) -> tuple[str, list[Cell]]:
    """Return a row whose cells are ids of one suite, ratios of two ids, or empty."""
    expressions = (" / ".join(f"{suite}.{name}" for name in cell.split(" / ")) for cell in cells)
    return label, [Text("") if not cell else e for cell, e in zip(cells, expressions, strict=True)]


def _arc_env() -> Table:
    settings = ((30, 1), (30, 64), (30, 1024), (5, 1024))
    systems = {
        "native": "Phalanx, native",
        "xla": "Phalanx, XLA",
        "jaxarc-vmap": "JaxARC, `vmap`",
        "jaxarc-vmap-optimistic": "JaxARC, `vmap`, optimistic resets",
        "jaxarc-vmap-cached": "JaxARC, `vmap`, cached resets",
        "jaxarc-vmap-cached-2-devices": "JaxARC, `vmap`, cached resets, two devices",
        "jaxarc-map": "JaxARC, `lax.map`",
        "jaxarc-map-2-devices": "JaxARC, `lax.map`, two devices",
        "jaxarc-map-cached": "JaxARC, `lax.map`, cached resets",
        "jaxarc-map-cached-2-devices": "JaxARC, `lax.map`, cached resets, two devices",
        "arcle": "ARCLE",
    }
    rows = []
    for name, label in systems.items():
        ids = [f"{name}-{size}x{size}-{num_envs}" for size, num_envs in settings]
        if name == "jaxarc-vmap-optimistic" or name.endswith("2-devices"):
            ids[0] = ""  # These modes need several environments.
        rows.append(_row(label, "arc_env", *ids))
    columns = ("grid, environments", *(f"{size}x{size}, {num_envs:,}" for size, num_envs in settings))
    return Table("arc_env", columns, rows)


def _ppo() -> Table:
    rows = [_row("preset of `phalanx train ppo --env arc`, 4x4 grids", "ppo", "preset", "", "", "")]
    for network in ("small", "large"):
        systems = ("phalanx", "jaxarc-vmap", "jaxarc-vmap-optimistic", "jaxarc-map")
        ids = [f"{name}-{network}" for name in systems]
        rows.append(_row(f"{network} network, 30x30 grids", "ppo", *ids))
    columns = (
        "steps per second",
        "Phalanx",
        "JaxARC 1.0.3, `vmap`",
        "JaxARC 1.0.3, `vmap`, optimistic resets",
        "JaxARC 1.0.3, `lax.map`",
    )
    return Table("ppo", columns, rows)


def _arc_planner() -> Table:
    rows = [
        _row(
            label,
            "arc_planner",
            f"{name}-steps",
            f"{name}-ratio-to-cell-by-cell",
            f"{name}-cpu-time-per-pair",
        )
        for label, name in (("points", "point"), ("bounding boxes", "bbox"), ("masks", "mask"))
    ]
    rows.append(_row("filling each wrong cell", "arc_planner", "cell-by-cell-steps", "", ""))
    columns = ("actions", "median steps", "median ratio to filling each cell", "CPU time per pair")
    return Table("arc_planner", columns, rows)


def _proof_env() -> Table:
    names = {
        "generated": "generated families",
        "family": "family",
        "wn18rr": "WN18RR",
        "countries_s3": "Countries S3",
    }
    rows = [_row(label, "proof_env", f"native-{name}", f"xla-{name}") for name, label in names.items()]
    return Table("proof_env", ("steps per second", "native", "XLA"), rows)


def _rule_mining() -> Table:
    names = {"umls": "UMLS", "wn18rr": "WN18RR", "fb15k-237": "FB15k-237", "million": "million facts"}
    rows = [
        _row(label, "rule_mining", f"{name}-1-threads", f"{name}-2-threads") for name, label in names.items()
    ]
    return Table("rule_mining", ("dataset", "one thread", "two threads"), rows)


def _kge() -> Table:
    rows = []
    for name, label in (("kinship", "Kinship, ComplEx"), ("umls", "UMLS, DistMult")):
        ids = [f"{loop}-{name}" for loop in ("phalanx", "pykeen-symmetric", "pykeen-lcwa")]
        rows.append(_row(f"{label}: training triples per second", "kge", *ids))
        rows.append(
            _row(f"{label}: validation MRR after 20 epochs", "kge", *(f"{id}:valid_mrr" for id in ids))
        )
    columns = (
        "",
        "Phalanx",
        "PyKEEN 1.11.1, symmetric LCWA (two rows per triple)",
        "PyKEEN 1.11.1, LCWA (rows shared by triples)",
    )
    return Table("kge", columns, rows)


def _batch_planning() -> Table:
    def row(label: str, own: str, other: str, system: str) -> tuple[str, list[Cell]]:
        found = _row(label, "batch_planning", own, other, f"{own} / {other}" if other else "")
        return label, [found[1][0], Text(system), *found[1][1:]]

    rows = [
        row(
            "plan with buckets and create all ids, samples/s",
            "plan-buckets-ids",
            "chuk-lazarus-plan-buckets",
            "chuk-lazarus 0.4.1",
        ),
        row("plan with buckets, samples/s", "plan-buckets", "", ""),
        row("plan with sorted pools, samples/s", "plan-sorted", "", ""),
        row("plan with packing, samples/s", "plan-packed", "", ""),
        row(
            "assign to rows, log-normal lengths, samples/s",
            "assign-lognormal",
            "c-assign-lognormal",
            "our simple C program",
        ),
        row(
            "assign to rows, uniform lengths, samples/s",
            "assign-uniform",
            "c-assign-uniform",
            "our simple C program",
        ),
        *(
            row("pack tokens, tokens/s", "pack", f"trl-pack{suffix}", f"TRL 1.16.0, {label}")
            for suffix, label in (
                ("", "`bfd`, one batch"),
                ("-default-batches", "`bfd`, 1,000 samples at a time (default)"),
                ("-split", "`bfd_split`, one batch"),
                ("-split-default-batches", "`bfd_split`, 1,000 samples at a time"),
            )
        ),
        row("real tokens with buckets", "padding-buckets", "", ""),
        row("real tokens with sorted pools", "padding-sorted", "", ""),
        row("real tokens with packing", "padding-packed", "", ""),
    ]
    return Table("batch_planning", ("", "Phalanx", "compared with", "result", "ratio"), rows)


def _packing_modes() -> Table:
    modes = {
        "first fit": ("pack-2000-first-fit", "chuk-lazarus-pack-2000-first-fit"),
        "best fit": ("pack-2000-best-fit", "chuk-lazarus-pack-2000-best-fit"),
        "decreasing (Phalanx: best fit, chuk-lazarus: first fit)": (
            "pack-2000",
            "chuk-lazarus-pack-2000-greedy",
        ),
    }
    rows = [
        _row(label, "batch_planning", own, other, f"{own} / {other}") for label, (own, other) in modes.items()
    ]
    return Table(
        "packing_modes", ("pack 2,000 samples, tokens/s", "Phalanx", "chuk-lazarus 0.4.1", "ratio"), rows
    )


def _simple(
    name: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]], spread: bool = True
) -> Table:
    return Table(name, columns, [_row(label, name, *cells) for label, cells in rows.items()], spread)


def _puzzles() -> Table:
    rows = {}
    for kind in ("sudoku", "futoshiki", "sokoban", "countdown", "knights"):
        for work in ("generate", "verify"):
            own = f"{work}-{kind}"
            rows[f"{work} `{kind}`"] = (own, f"reasoning-gym-{own}", f"{own} / reasoning-gym-{own}")
    for kind in ("binary", "bridges", "hitori", "lights-out", "nonogram"):
        rows[f"generate `{kind.replace('-', '_')}`"] = (f"generate-{kind}", "", "")
    return _simple("puzzles", ("puzzles per second", "Phalanx", "reasoning-gym 0.1.25", "ratio"), rows)


def _lm() -> Table:
    rows = {}
    for model, label in (("small", "small model"), ("medium", "medium model")):
        for batch in (1, 64):
            own = f"generate-{model}-batch-{batch}"
            rows[f"generate, {label}, batch of {batch}"] = (
                own,
                f"huggingface-{own}",
                f"huggingface-{own}-compiled",
            )
        own = f"train-{model}"
        rows[f"train, {label}"] = (own, f"huggingface-{own}", f"huggingface-{own}-compiled")
    columns = ("tokens per second", "Phalanx", "transformers", "transformers, `torch.compile`")
    return _simple("lm", columns, rows)


def _link_prediction() -> Table:
    def own(label: str, id: str, ties: str, name: str) -> tuple[str, list[Cell]]:
        cells = [f"link_prediction.{id}-mrr-{name}", f"link_prediction.{id}-hits-at-10-{name}"]
        return label, [Text(ties), *cells]

    rows: list[tuple[str, Sequence[Cell]]] = []
    for dataset, id in (
        ("WN18RR", "rules-wn18rr"),
        ("WN18RR", "path-network-wn18rr"),
        ("FB15k-237", "rules-fb15k-237"),
    ):
        method = "path network" if id.startswith("path") else "mined rules"
        rows.append(own(f"{dataset}, {method}", id, "random", "random-ties"))
        rows.append(own(f"{dataset}, {method}", id, "worst case", "worst-case-ties"))
        if dataset == "WN18RR":
            for suffix, text in (("reverse-in-training", "with"), ("no-reverse-in-training", "without")):
                label = f"{dataset}, {method}, queries {text} a reverse training triple"
                rows.append((label, [Text("worst case"), f"link_prediction.{id}-mrr-{suffix}", Text("")]))
    published = (
        ("WN18RR", "[AnyBURL-22](https://web.informatik.uni-mannheim.de/AnyBURL/)", "", "0.493", "0.574"),
        ("WN18RR", "[NBFNet](https://github.com/DeepGraphLearning/NBFNet)", "worst case", "0.551", "0.666"),
        ("WN18RR", "[RED-GNN](https://github.com/LARS-research/RED-GNN)", "", "0.533", "0.624"),
        ("WN18RR", "[AdaProp](https://github.com/LARS-research/AdaProp)", "", "0.562", "0.661"),
        (
            "FB15k-237",
            "[NBFNet](https://github.com/DeepGraphLearning/NBFNet)",
            "worst case",
            "0.415",
            "0.599",
        ),
        (
            "FB15k-237",
            "[AnyBURL-RE](https://web.informatik.uni-mannheim.de/AnyBURL/)",
            "",
            "",
            "0.522",
        ),
        ("FB15k-237", "[RED-GNN](https://github.com/LARS-research/RED-GNN)", "", "0.374", "0.558"),
        ("FB15k-237", "[AdaProp](https://github.com/LARS-research/AdaProp)", "", "0.417", "0.585"),
    )
    for dataset, method, *cells in published:
        rows.append((f"{dataset}, {method}", [Text(cell) for cell in cells]))
    return Table("link_prediction", ("dataset, method", "ties", "MRR", "Hits@10"), rows, spread=False)


def _inductive() -> Table:
    grail = {"wn18rr": (0.825, 0.787, 0.584, 0.734), "fb237": (0.642, 0.818, 0.828, 0.893)}
    nbfnet = {"wn18rr": (0.948, 0.905, 0.893, 0.890), "fb237": (0.834, 0.949, 0.951, 0.960)}
    rows = []
    for graph, title in (("wn18rr", "WN18RR"), ("fb237", "FB15k-237")):
        for version in (1, 2, 3, 4):
            id = f"link_prediction.inductive-{graph}_v{version}"
            values = [Text(f"{table[graph][version - 1]:.3f}") for table in (grail, nbfnet)]
            rows.append((f"{title} v{version}", [f"{id}-rules-only", f"{id}-rules-and-roles", *values]))
    columns = (
        "Hits@10",
        "rules",
        "rules and roles",
        "[GraIL](https://arxiv.org/abs/1911.06962)",
        "[NBFNet](https://github.com/DeepGraphLearning/NBFNet)",
    )
    return Table("link_prediction_inductive", columns, rows, spread=False)


def _proof_search() -> Table:
    methods = {
        "uniform": "uniform",
        "breadth-first": "breadth-first",
        "rule-confidence": "rule confidence",
        "nearness": "nearness (untrained)",
        "trained": "trained",
    }
    rows = {
        label: (
            "" if name == "rule-confidence" else f"genealogy-{name}",
            f"kinship-{name}",
            f"fb15k-237-{name}",
        )
        for name, label in methods.items()
    }
    columns = ("proofs per 1,000 expansions", "genealogy", "Kinship", "FB15k-237")
    return _simple("proof_search", columns, rows, spread=False)


def _arc_program_search() -> Table:
    search = {
        "program search": ("training-solved", "evaluation-solved"),
        "copying the input": ("training-copy-input", "evaluation-copy-input"),
    }
    return _simple("arc_program_search", ("tasks solved, of 400", "training", "evaluation"), search)


def _lm_puzzles() -> tuple[Table, Table]:
    methods = {
        "untrained": "untrained",
        "random": "random moves",
        "initial": "SFT",
        "grpo": "SFT, then GRPO",
        "more-sft": "SFT, then more SFT (about the same CPU time)",
    }
    rows = [
        _row(label, "lm_puzzles", f"{name}-binary", f"{name}-nonogram") for name, label in methods.items()
    ]
    kinds = (
        "all",
        "binary",
        "bridges",
        "countdown",
        "futoshiki",
        "hitori",
        "knights",
        "lights-out",
        "nonogram",
        "sokoban",
        "sudoku",
    )
    names = {kind: "mean" if kind == "all" else f"`{kind.replace('-', '_')}`" for kind in kinds}
    sft = [_row(names[kind], "lm_puzzles", f"sft-{kind}", f"sft-{kind}-random") for kind in kinds]
    return (
        Table("lm_puzzles", ("success rate", "`binary`", "`nonogram`"), rows, spread=False),
        Table("lm_puzzles_sft", ("success rate", "SFT", "random moves"), sft, spread=False),
    )


def _readme() -> Table:
    def row(label: str, own: str, library: str, other: str) -> tuple[str, list[Cell]]:
        return label, [own, Text(library) if library else System(other), other, f"{own} / {other}"]

    rows = [
        row(
            f"ARC, {size}x{size} grids, 1,024 environments, {label} backend: steps/s",
            f"arc_env.{backend}-{size}x{size}-1024",
            "",
            f"arc_env.jaxarc-*-{size}x{size}-1024",
        )
        for size in (30, 5)
        for backend, label in (("native", "native"), ("xla", "XLA"))
    ]
    rows += [
        row(
            "plan batches for a million samples: samples/s",
            "batch_planning.plan-buckets-ids",
            "chuk-lazarus 0.4.1",
            "batch_planning.chuk-lazarus-plan-buckets",
        ),
        row(
            "pack 100,000 samples: tokens/s",
            "batch_planning.pack",
            "",
            "batch_planning.trl-pack*",
        ),
        row(
            "generate Sudoku puzzles with 50 empty cells: puzzles/s",
            "puzzles.generate-sudoku",
            "reasoning-gym 0.1.25",
            "puzzles.reasoning-gym-generate-sudoku",
        ),
    ]
    return Table("readme", ("", "Phalanx", "compared with", "its result", "ratio"), rows, spread=False)


TABLES: tuple[Table, ...] = (
    _readme(),
    _arc_env(),
    _ppo(),
    _arc_planner(),
    _proof_env(),
    _rule_mining(),
    _kge(),
    _batch_planning(),
    _packing_modes(),
    _simple(
        "data_loaders",
        ("tokens per second", "result"),
        {
            "Phalanx, plan": ["plan"],
            "Phalanx, streaming plan": ["streaming"],
            "TRL 1.16.0, `DataLoader`": ["trl"],
            "Grain 0.2.18, default threads": ["grain"],
            "Grain 0.2.18, no threads": ["grain-no-threads"],
        },
    ),
    _simple(
        "streaming_plans",
        ("", "result"),
        {
            "samples per second": ["packed-mixture"],
            "real tokens": ["padding-efficiency"],
            "largest deviation from the mixture": ["mixture-error"],
            "memory": ["memory"],
            "size of the state in bytes": ["state-size"],
        },
    ),
    _simple(
        "replay_buffer",
        ("", "Phalanx", "chuk-lazarus 0.4.1"),
        {
            "add, samples/s": ["add", "chuk-lazarus-add"],
            "sample 32, samples/s": ["sample", "chuk-lazarus-sample"],
        },
    ),
    _puzzles(),
    _lm(),
    _simple(
        "serving",
        ("", "without pauses", "with pauses"),
        {
            "steps per second": ["steps-saturated", "steps-pauses"],
            "median latency": ["latency-median-saturated", "latency-median-pauses"],
            "99th percentile of latency": [
                "latency-99th-percentile-saturated",
                "latency-99th-percentile-pauses",
            ],
        },
    ),
    _simple(
        "puzzle_server",
        ("episodes per second", "Phalanx", "Phalanx, 8 connections", "minimal client"),
        {
            f"`{game}`": [f"client-{game}", f"client-8-connections-{game}", f"simple-client-{game}"]
            for game in ("sudoku", "binary", "lights")
        },
    ),
    _simple(
        "gymnasium_vector",
        ("steps per second", "result"),
        {
            "`gym.make_vec`, 64 environments": ["phalanx-64"],
            "`gym.make_vec`, 1,024 environments": ["phalanx-1024"],
        },
    ),
    _simple(
        "logging",
        ("", "result"),
        {
            "Phalanx, records/s": ["records"],
            "`csv`, records/s": ["csv-records"],
            "`SummaryWriter`, default queue, records/s": ["tensorboard-records"],
            "`SummaryWriter`, long queue, records/s": ["tensorboard-records-long-queue"],
            "PPO update": ["ppo-update"],
            "logging the update": ["log-update"],
        },
    ),
    _simple(
        "arc_demo",
        ("", "result"),
        {
            "success rate before training": ["before-training"],
            "success rate after training": ["after-training"],
            "copying the input": ["copy-input"],
            "random actions": ["random-actions"],
            "hand-written rule": ["hand-written-rule"],
            "CPU time of the command": ["cpu-time"],
            "held-out inputs that are rotated, reflected or recolored training inputs": [
                "inputs-similar-to-training"
            ],
        },
        spread=False,
    ),
    _link_prediction(),
    _inductive(),
    _proof_search(),
    *_lm_puzzles(),
    _arc_program_search(),
)
"""All tables that README and docs may contain."""
