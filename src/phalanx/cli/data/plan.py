"""`phalanx data batchplan`: plan batches from lengths, look at a plan, check that it comes out again, shard.

Plans are `phalanx.data.BatchPlan`; what a folder holds is told in docs/tokens.md.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.data.options import AsJson, BucketEdges, PackMode, parse_edges, read_lengths, read_plan
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, format_table, print_json, progress, show_activity

if TYPE_CHECKING:
    from phalanx.data.lengths import SkippedSample
    from phalanx.data.plans.batch_plan import BatchPlan

app = typer.Typer(
    name="batchplan",
    help="Batch plans: build, info, verify, shard.",
    no_args_is_help=True,
    add_completion=False,
)

PlanPath = Annotated[Path, typer.Option("--plan", "-p", help="The folder of a plan.")]
LengthsPath = Annotated[Path, typer.Option("--lengths", "-l", help="A length cache.")]
Policy = Annotated[
    Literal["pad", "repeat", "drop"],
    typer.Option(help="If batches do not divide by ranks: halve some, repeat some, or drop some."),
]
Balance = Annotated[bool, typer.Option(help="Give all ranks batches of like attention cost in each step.")]
ModelWidth = Annotated[
    int | None,
    typer.Option(min=1, help="Balance the FLOPs of a model of this hidden size, not attention alone."),
]
_SHOWN = 10


@app.command()
def build(
    lengths: LengthsPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    epochs: Annotated[int, typer.Option("--epochs", "-e", min=1, help="Epochs to plan.")] = 1,
    token_budget: Annotated[
        int, typer.Option("--token-budget", "-b", help="Most tokens in a batch, padding included.")
    ] = 4096,
    bucket_edges: BucketEdges = "128,256,512",
    overflow_max: Annotated[
        int, typer.Option(help="Longest length of the last bucket; longer samples are skipped and reported.")
    ] = 2048,
    predictable: Annotated[
        bool,
        typer.Option(
            "--predictable",
            "-p",
            help="Cut batches from buckets, few shapes; otherwise from sorted pools, hardly any padding.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Decides every order, with the epoch.")] = 42,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Drop batches that are not full.")] = False,
    pool_batches: Annotated[
        int, typer.Option(help="Batches' worth of samples sorted together: more, less padding; fewer, freer.")
    ] = 128,
    pack: Annotated[bool, typer.Option("--pack", help="Pack several samples into each row.")] = False,
    pack_length: Annotated[
        int | None, typer.Option(help="Tokens in a pack.", show_default="overflow-max, or less by budget")
    ] = None,
    pack_mode: Annotated[
        PackMode, typer.Option(help="How samples choose their packs.")
    ] = "best_fit_decreasing",
    overlong: Annotated[
        Literal["error", "skip", "truncate"], typer.Option(help="What to do with samples longer than a pack.")
    ] = "error",
    dataset_hash: Annotated[str, typer.Option(help="Names the dataset; part of the fingerprint.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a plan that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Plan every batch of every epoch from a length cache."""
    from phalanx.data.packing_config import PackingConfig
    from phalanx.data.plans.batching_config import BatchingConfig
    from phalanx.data.plans.builder import BatchPlanBuilder
    from phalanx.data.plans.plan_files import save_batch_plan

    edges = parse_edges(bucket_edges)
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]) and not overwrite:
        raise UserError(f"{output} already exists; choose another name, or pass --overwrite")
    cache = read_lengths(lengths)
    make = BatchingConfig.predictable if predictable else BatchingConfig.throughput
    with user_errors():
        config = make(
            token_budget,
            edges,
            overflow_max,
            seed,
            drop_last=drop_last,
            pool_batches=pool_batches,
        )
        packing = None
        if pack:
            packing = PackingConfig(
                mode=pack_mode, max_length=pack_length or min(overflow_max, token_budget), overlong=overlong
            )
        builder = BatchPlanBuilder(cache.table(), config, dataset_hash, cache.tokenizer_hash, packing)
    with show_activity("planning"):
        plan = builder.build_now(epochs)
    with user_errors():
        save_batch_plan(plan, output, overwrite=overwrite)
    if as_json:
        print_json({"output": str(output), **_summary(plan), "skipped": _skipped(plan)})
        return
    typer.echo(_text(plan, output))
    if plan.num_skipped:
        typer.echo(_skipped_text(plan.skipped))


@app.command()
def info(
    plan: PlanPath,
    show_batches: Annotated[
        int, typer.Option("--show-batches", "-n", min=0, help="Show the first batches of the first epoch.")
    ] = 0,
    rank: Annotated[int | None, typer.Option("--rank", "-r", help="Show this rank's part.")] = None,
    world_size: Annotated[int | None, typer.Option("--world-size", "-w", help="Of so many ranks.")] = None,
    policy: Policy = "pad",
    balance: Balance = False,
    model_width: ModelWidth = None,
    as_json: AsJson = False,
) -> None:
    """Show what a plan holds, or what one rank of it would."""
    if (rank is None) != (world_size is None):
        raise UserError("--rank and --world-size go together: give both, or neither")
    opened = read_plan(plan)
    if rank is not None and world_size is not None:
        with user_errors():
            opened = opened.shard(rank, world_size, policy, balance, model_width)
    batches = [
        {
            "index": batch.index,
            "samples": len(batch.samples),
            "rows": batch.num_packs,
            "max_len": batch.max_len,
            "bucket": batch.bucket_id,
            "tokens": batch.token_count,
            "first": batch.samples[0] if batch.samples else "",
        }
        for batch in (opened.epochs[0][:show_batches] if opened.epochs else [])
    ]
    if as_json:
        print_json({"plan": str(plan), **_summary(opened), "batches": batches})
        return
    typer.echo(_text(opened, plan))
    if batches:
        typer.echo("")
        typer.echo(
            format_table([name.upper() for name in batches[0]], [list(row.values()) for row in batches])
        )


@app.command()
def verify(plan: PlanPath, lengths: LengthsPath, as_json: AsJson = False) -> None:
    """Plan the same lengths again and compare; exit code 1 if anything differs."""
    from phalanx.data.plans.builder import verify_batch_plan
    from phalanx.data.plans.plan_files import load_batch_plan

    opened = read_plan(plan)
    cache = read_lengths(lengths)
    cause: str | None = None
    where: dict[str, int | None] = {"epoch": None, "batch": None}
    made = opened.meta.tokenizer_hash
    if made and made != cache.tokenizer_hash:
        cause = "tokenizer"
        message = (
            f"tokenizer changed: the plan was made with {made!r}, the lengths with {cache.tokenizer_hash!r}"
        )
    else:
        with user_errors():
            difference = verify_batch_plan(opened, cache.table())
        if difference is not None:
            cause, message = difference.cause, difference.message
            where = {"epoch": difference.epoch, "batch": difference.batch}
        else:
            try:
                # The same batches; the header must say so too.
                load_batch_plan(plan, verify=True)
            except ValueError as error:
                cause, message = "fingerprint", str(error)
    if as_json:
        details = {"cause": cause, "message": message, **where} if cause else {}
        print_json({"verified": cause is None, "fingerprint": opened.fingerprint, **details})
    elif cause is None:
        batches = opened.total_microbatches
        typer.echo(f"verified: {batches:,} batches come out the same, fingerprint {opened.fingerprint}")
    else:
        typer.echo(f"NOT verified: {message}", err=True)
    if cause is not None:
        raise typer.Exit(1)


@app.command()
def shard(
    plan: PlanPath,
    world_size: Annotated[int, typer.Option("--world-size", "-w", min=1, help="How many ranks.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write, rank_0 and so on.")],
    policy: Policy = "pad",
    balance: Balance = False,
    model_width: ModelWidth = None,
    as_json: AsJson = False,
) -> None:
    """Write one plan for each rank: disjoint, complete, and equally many batches each."""
    from phalanx.data.plans.plan_files import save_batch_plan
    from phalanx.data.plans.sharding import ShardSpec
    from phalanx.io.atomic import atomic_directory

    opened = read_plan(plan)
    spec = ShardSpec(world_size=world_size, policy=policy, balance=balance, model_width=model_width)
    rows: list[dict[str, Any]] = []
    with (
        user_errors(),
        progress("sharding", "ranks", world_size, quiet=as_json) as advance,
        atomic_directory(output) as folder,
    ):
        for rank in range(world_size):
            part = opened.shard(rank, spec)
            save_batch_plan(part, folder / f"rank_{rank}")
            rows.append({"rank": rank, **_totals(part)})
            advance(1)
    slowest = [opened.measure_balance(epoch.epoch, spec).by_rank for epoch in opened.epochs]
    if as_json:
        print_json({"output": str(output), "policy": policy, "slowest_over_ideal": slowest, "ranks": rows})
        return
    typer.echo(format_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]))
    cost = "attention cost" if model_width is None else f"FLOPs of a model of width {model_width}"
    typer.echo(f"{output}: {world_size} ranks, slowest over ideal {max(slowest, default=1.0):.4f} in {cost}")


def _totals(plan: "BatchPlan") -> dict[str, int]:
    return {
        "batches": plan.total_microbatches,
        "samples": sum(epoch.total_samples for epoch in plan.epochs),
        "tokens": sum(epoch.total_tokens for epoch in plan.epochs),
    }


def _epoch_rows(plan: "BatchPlan") -> list[dict[str, Any]]:
    rows = []
    for epoch in plan.epochs:
        metrics = plan.compute_metrics(epoch.epoch)
        rows.append(
            {
                "epoch": epoch.epoch,
                "batches": len(epoch),
                "samples": epoch.total_samples,
                "tokens": metrics.total_tokens,
                "padded": metrics.padded_tokens,
                "full": round(metrics.efficiency, 4),
            }
        )
    return rows


def _summary(plan: "BatchPlan") -> dict[str, Any]:
    """A plan in JSON, without its batches."""
    return {
        "fingerprint": plan.fingerprint,
        "samples": len(plan.table),
        "num_skipped": plan.num_skipped,
        "total_microbatches": plan.total_microbatches,
        "epochs": _epoch_rows(plan),
        "meta": plan.meta.model_dump(mode="json"),
    }


def _text(plan: "BatchPlan", path: Path) -> str:
    meta = plan.meta
    packing = meta.pack_config
    lines: list[tuple[str, object]] = [
        ("plan", path),
        ("fingerprint", plan.fingerprint),
        (
            "mode",
            f"{meta.batching.mode}, {meta.pad_policy}, budget {meta.token_budget:,}, seed {meta.base_seed}",
        ),
        ("buckets", f"{','.join(map(str, meta.bucket_edges))} overflow {meta.overflow_max}"),
    ]
    if packing is not None:
        lines.append(("packing", f"{packing.mode} into {packing.max_length}"))
    if meta.shard is not None:
        part = meta.shard
        lines.append(
            ("shard", f"rank {part.rank} of {part.world_size}, {part.policy}, balance {part.balance}")
        )
    lines.append(("samples", f"{len(plan.table):,}, {plan.num_skipped:,} skipped"))
    rows = _epoch_rows(plan)
    table = (
        format_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]) if rows else ""
    )
    return f"{format_fields(lines)}\n\n{table}"


def _skipped(plan: "BatchPlan") -> list[dict[str, Any]]:
    return [sample.model_dump() for sample in plan.skipped]


def _skipped_text(skipped: "Sequence[SkippedSample]") -> str:
    reasons = Counter(sample.reason for sample in skipped)
    lines = [f"skipped: {count:,} {reason}" for reason, count in reasons.most_common()]
    lines += [f"  {sample.sample_id}  {sample.length:,} tokens" for sample in skipped[:_SHOWN]]
    if len(skipped) > _SHOWN:
        lines.append(f"  and {len(skipped) - _SHOWN:,} more; --json lists all")
    return "\n".join(lines)
