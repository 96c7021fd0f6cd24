"""`phalanx data plan`: builds, shows, verifies and shards batch plans."""

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
    name="plan",
    help="Batch plans: build, info, verify, shard.",
    no_args_is_help=True,
    add_completion=False,
)

PlanPath = Annotated[Path, typer.Option("--plan", "-p", help="Plan: a .plan file, or the folder with it.")]
LengthsPath = Annotated[Path, typer.Option("--lengths", "-l", help="Length cache.")]
Policy = Annotated[
    Literal["split", "repeat", "drop"],
    typer.Option(help="How to handle batches that cannot be divided evenly among the ranks."),
]
Balance = Annotated[bool, typer.Option(help="Give all ranks batches of similar cost in each step.")]
DModel = Annotated[
    int | None,
    typer.Option(min=1, help="Hidden size of the model. If set, balance all FLOPs, not only attention."),
]
_NUM_LISTED = 10


@app.command()
def build(
    lengths: LengthsPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="File that ends in .plan, or folder.")],
    epochs: Annotated[int, typer.Option("--epochs", "-e", min=1, help="Number of epochs to plan.")] = 1,
    token_budget: Annotated[
        int,
        typer.Option("--token-budget", "-b", help="Maximum number of tokens in a batch, including padding."),
    ] = 4096,
    bucket_edges: BucketEdges = "128,256,512",
    overflow_max: Annotated[
        int, typer.Option(help="Maximum length of the last bucket; longer samples are skipped.")
    ] = 2048,
    predictable: Annotated[
        bool,
        typer.Option(
            "--predictable",
            "-p",
            help="Cut batches from buckets (few shapes) instead of sorted pools (little padding).",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Seed of the shuffles.")] = 42,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Drop incomplete batches.")] = False,
    pool_batches: Annotated[
        int, typer.Option(help="Size of the sorted pools in batches. Larger pools need less padding.")
    ] = 128,
    pack: Annotated[bool, typer.Option("--pack", help="Pack several samples into each row.")] = False,
    max_length: Annotated[
        int | None,
        typer.Option(help="Row length with --pack.", show_default="overflow-max, at most the budget"),
    ] = None,
    pack_mode: Annotated[PackMode, typer.Option(help="Packing algorithm.")] = "best_fit_decreasing",
    overlong: Annotated[
        Literal["error", "skip", "truncate"], typer.Option(help="How to handle samples longer than a row.")
    ] = "error",
    dataset_hash: Annotated[str, typer.Option(help="Hash of the dataset, part of the fingerprint.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Plan every batch of every epoch from a length cache."""
    from phalanx.data.packing import PackingConfig
    from phalanx.data.plans.batch_plan import BatchPlanBuilder
    from phalanx.data.plans.batching_config import BatchingConfig
    from phalanx.data.plans.plan_files import plan_path, save_batch_plan

    edges = parse_edges(bucket_edges)
    if plan_path(output).exists() and not overwrite:
        raise UserError(f"{plan_path(output)} already exists; choose another name, or pass --overwrite")
    cache = read_lengths(lengths)
    create = BatchingConfig.predictable if predictable else BatchingConfig.throughput
    with user_errors():
        config = create(
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
                mode=pack_mode, max_length=max_length or min(overflow_max, token_budget), overlong=overlong
            )
        builder = BatchPlanBuilder(cache.table(), config, dataset_hash, cache.tokenizer_hash, packing)
    with show_activity("planning"):
        plan = builder.build(epochs)
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
        int, typer.Option("--show-batches", "-n", min=0, help="Number of batches of the first epoch to show.")
    ] = 0,
    rank: Annotated[int | None, typer.Option("--rank", "-r", help="Show the part of this rank.")] = None,
    world_size: Annotated[int | None, typer.Option("--world-size", "-w", help="Number of ranks.")] = None,
    policy: Policy = "split",
    balance: Balance = False,
    d_model: DModel = None,
    as_json: AsJson = False,
) -> None:
    """Show a summary of a plan, or of the part of one rank."""
    if (rank is None) != (world_size is None):
        raise UserError("--rank and --world-size must be used together")
    from phalanx.data.plans.sharding import ShardSpec

    loaded = read_plan(plan)
    if rank is not None and world_size is not None:
        with user_errors():
            spec = ShardSpec(world_size=world_size, policy=policy, balance=balance, d_model=d_model)
            loaded = loaded.shard(rank, spec)
    batches = [
        {
            "index": batch.index,
            "samples": batch.batch_size,
            "rows": batch.num_packs,
            "max_length": batch.max_length,
            "bucket": batch.bucket_id,
            "tokens": batch.token_count,
            "first": batch.sample_ids[0] if batch.batch_size else "",
        }
        for batch in (loaded.epochs[0][:show_batches] if loaded.epochs else [])
    ]
    if as_json:
        print_json({"plan": str(plan), **_summary(loaded), "batches": batches})
        return
    typer.echo(_text(loaded, plan))
    if batches:
        typer.echo("")
        typer.echo(
            format_table([name.upper() for name in batches[0]], [list(row.values()) for row in batches])
        )


@app.command()
def verify(plan: PlanPath, lengths: LengthsPath, as_json: AsJson = False) -> None:
    """Build a plan again from its lengths and compare the two. The exit code is 1 if they differ."""
    from phalanx.data.plans.plan_comparison import verify_batch_plan
    from phalanx.data.plans.plan_files import load_batch_plan

    loaded = read_plan(plan)
    cache = read_lengths(lengths)
    cause: str | None = None
    where: dict[str, int | None] = {"epoch": None, "batch": None}
    expected = loaded.meta.tokenizer_hash
    if expected and expected != cache.tokenizer_hash:
        cause = "tokenizer"
        message = (
            f"tokenizer changed: the plan was built with {expected!r}, "
            f"the lengths with {cache.tokenizer_hash!r}"
        )
    else:
        with user_errors():
            difference = verify_batch_plan(loaded, cache.table())
        if difference is not None:
            cause, message = difference.cause, difference.message
            where = {"epoch": difference.epoch, "batch": difference.batch}
        else:
            try:
                # The batches are the same; check that the header has the same fingerprint.
                load_batch_plan(plan, verify=True)
            except ValueError as error:
                cause, message = "fingerprint", str(error)
    if as_json:
        details = {"cause": cause, "message": message, **where} if cause else {}
        print_json({"verified": cause is None, "fingerprint": loaded.fingerprint, **details})
    elif cause is None:
        batches = loaded.num_batches
        typer.echo(f"verified: {batches:,} batches are the same, fingerprint {loaded.fingerprint}")
    else:
        typer.echo(f"NOT verified: {message}", err=True)
    if cause is not None:
        raise typer.Exit(1)


@app.command()
def shard(
    plan: PlanPath,
    world_size: Annotated[int, typer.Option("--world-size", "-w", min=1, help="Number of ranks.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write, with rank_0, rank_1, ...")],
    policy: Policy = "split",
    balance: Balance = False,
    d_model: DModel = None,
    as_json: AsJson = False,
) -> None:
    """Divide a plan into one plan per rank. All ranks have the same number of batches."""
    from phalanx.data.plans.plan_files import save_batch_plan
    from phalanx.data.plans.sharding import ShardSpec
    from phalanx.io.atomic import atomic_directory

    loaded = read_plan(plan)
    spec = ShardSpec(world_size=world_size, policy=policy, balance=balance, d_model=d_model)
    rows: list[dict[str, Any]] = []
    with (
        user_errors(),
        progress("sharding", "ranks", world_size, quiet=as_json) as advance,
        atomic_directory(output) as folder,
    ):
        for rank in range(world_size):
            part = loaded.shard(rank, spec)
            save_batch_plan(part, folder / f"rank_{rank}")
            rows.append({"rank": rank, **_totals(part)})
            advance(1)
    slowest = [loaded.measure_balance(epoch.epoch, spec).by_rank for epoch in loaded.epochs]
    if as_json:
        print_json({"output": str(output), "policy": policy, "slowest_over_ideal": slowest, "ranks": rows})
        return
    typer.echo(format_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]))
    cost = "attention cost" if d_model is None else f"FLOPs with d_model {d_model}"
    typer.echo(f"{output}: {world_size} ranks, slowest over ideal {max(slowest, default=1.0):.4f} in {cost}")


def _totals(plan: "BatchPlan") -> dict[str, int]:
    return {
        "batches": plan.num_batches,
        "samples": sum(epoch.num_samples for epoch in plan.epochs),
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
                "samples": epoch.num_samples,
                "tokens": metrics.total_tokens,
                "padded": metrics.padded_tokens,
                "efficiency": round(metrics.efficiency, 4),
            }
        )
    return rows


def _summary(plan: "BatchPlan") -> dict[str, Any]:
    return {
        "fingerprint": plan.fingerprint,
        "samples": len(plan.table),
        "num_skipped": plan.num_skipped,
        "num_batches": plan.num_batches,
        "epochs": _epoch_rows(plan),
        "meta": plan.meta.model_dump(mode="json"),
    }


def _text(plan: "BatchPlan", path: Path) -> str:
    meta = plan.meta
    packing, batching = meta.packing, meta.batching
    lines: list[tuple[str, object]] = [
        ("plan", path),
        ("fingerprint", plan.fingerprint),
        (
            "mode",
            f"{batching.mode}, {batching.pad_policy}, budget {batching.token_budget:,}, seed {batching.seed}",
        ),
        ("buckets", f"{','.join(map(str, batching.bucket_edges))} overflow {batching.overflow_max}"),
    ]
    if packing is not None:
        lines.append(("packing", f"{packing.mode} into {packing.max_length}"))
    if meta.shard is not None:
        shard = meta.shard
        lines.append(
            ("shard", f"rank {shard.rank} of {shard.world_size}, {shard.policy}, balance {shard.balance}")
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
    lines += [f"  {sample.sample_id}  {sample.length:,} tokens" for sample in skipped[:_NUM_LISTED]]
    if len(skipped) > _NUM_LISTED:
        lines.append(f"  and {len(skipped) - _NUM_LISTED:,} more; --json lists all")
    return "\n".join(lines)
