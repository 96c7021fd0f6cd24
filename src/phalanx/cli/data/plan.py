"""`phalanx data plan`: builds, shows, verifies and shards batch plans."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.data.options import (
    AsJson,
    BucketEdges,
    MaxSampleLength,
    PackMode,
    load_lengths,
    load_plan,
    parse_edges,
)
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_fields, format_table, print_json, progress, show_activity

if TYPE_CHECKING:
    from phalanx.data.plans.batch_plan import BatchPlan

app = typer.Typer(help="Batch plans: build, info, verify, shard.", no_args_is_help=True, add_completion=False)

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
    max_sample_length: MaxSampleLength = 2048,
    predictable: Annotated[
        bool,
        typer.Option(
            "--predictable",
            "-p",
            help="Cut batches from buckets (few shapes) instead of sorted pools (little padding).",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Seed for shuffling.")] = 42,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Drop incomplete batches.")] = False,
    pool_batches: Annotated[
        int, typer.Option(help="Size of the sorted pools in batches. Larger pools need less padding.")
    ] = 128,
    pack: Annotated[bool, typer.Option("--pack", help="Pack several samples into each row.")] = False,
    max_length: Annotated[
        int | None,
        typer.Option(help="Row length with --pack.", show_default="max-sample-length, at most the budget"),
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

    if plan_path(output).exists() and not overwrite:
        raise UserError(f"{plan_path(output)} already exists; choose another name, or pass --overwrite")
    cache = load_lengths(lengths)
    create = BatchingConfig.predictable if predictable else BatchingConfig.throughput
    with user_errors():
        config = create(
            token_budget,
            parse_edges(bucket_edges),
            max_sample_length,
            seed,
            drop_last=drop_last,
            pool_batches=pool_batches,
        )
        row_length = max_length or min(max_sample_length, token_budget)
        packing = PackingConfig(mode=pack_mode, max_length=row_length, overlong=overlong) if pack else None
        builder = BatchPlanBuilder(cache.table(), config, dataset_hash, cache.tokenizer_hash, packing)
    with show_activity("planning"):
        plan = builder.build(epochs)
    with user_errors():
        save_batch_plan(plan, output, overwrite=overwrite)
    if as_json:
        skipped = [sample.model_dump() for sample in plan.skipped]
        print_json({"output": str(output), **_summary(plan), "skipped": skipped})
        return
    _print_plan(plan, output)
    reasons = Counter(sample.reason for sample in plan.skipped)
    for reason, count in reasons.most_common():
        typer.echo(f"skipped: {count:,} {reason}")
    for sample in plan.skipped[:_NUM_LISTED]:
        typer.echo(f"  {sample.sample_id}  {sample.length:,} tokens")
    if plan.num_skipped > _NUM_LISTED:
        typer.echo(f"  and {plan.num_skipped - _NUM_LISTED:,} more; --json lists all")


@app.command()
def info(
    plan: PlanPath,
    show_batches: Annotated[
        int, typer.Option("--show-batches", "-n", min=0, help="Number of batches of the first epoch to show.")
    ] = 0,
    rank: Annotated[int | None, typer.Option("--rank", "-r", help="Show only this rank's part.")] = None,
    world_size: Annotated[int | None, typer.Option("--world-size", "-w", help="Number of ranks.")] = None,
    policy: Policy = "split",
    balance: Balance = False,
    d_model: DModel = None,
    as_json: AsJson = False,
) -> None:
    """Show a summary of a plan, or of one rank's part."""
    if (rank is None) != (world_size is None):
        raise UserError("--rank and --world-size must be used together")
    from phalanx.data.plans.sharding import ShardingConfig

    loaded = load_plan(plan)
    if rank is not None and world_size is not None:
        with user_errors():
            spec = ShardingConfig(world_size=world_size, policy=policy, balance=balance, d_model=d_model)
            loaded = loaded.shard(rank, spec)
    batches = [
        {
            "index": batch.index,
            "samples": batch.num_samples,
            "rows": batch.num_rows,
            "max_length": batch.max_length,
            "bucket": batch.bucket_id,
            "tokens": batch.token_count,
            "first": batch.sample_ids[0] if batch.num_samples else "",
        }
        for batch in (loaded.epochs[0][:show_batches] if loaded.epochs else [])
    ]
    if as_json:
        print_json({"plan": str(plan), **_summary(loaded), "batches": batches})
        return
    _print_plan(loaded, plan)
    if batches:
        typer.echo(f"\n{_format_rows(batches)}")


@app.command()
def verify(plan: PlanPath, lengths: LengthsPath, as_json: AsJson = False) -> None:
    """Rebuild a plan from its lengths and compare it with the saved one. Exits with code 1 if they differ."""
    from phalanx.data.plans.plan_comparison import verify_batch_plan
    from phalanx.data.plans.plan_files import load_batch_plan

    loaded, cache = load_plan(plan), load_lengths(lengths)
    found: dict[str, Any] = {}
    expected, actual = loaded.meta.tokenizer_hash, cache.tokenizer_hash
    if expected and expected != actual:
        message = f"tokenizer changed: the plan was built with {expected!r}, the lengths with {actual!r}"
        found = {"cause": "tokenizer", "message": message, "epoch": None, "batch": None}
    else:
        with user_errors():
            difference = verify_batch_plan(loaded, cache.table())
        if difference is not None:
            found = difference.model_dump()
        else:
            try:
                # The batches are the same; check that the header has the same fingerprint.
                load_batch_plan(plan, verify=True)
            except ValueError as error:
                found = {"cause": "fingerprint", "message": str(error), "epoch": None, "batch": None}
    if as_json:
        print_json({"verified": not found, "fingerprint": loaded.fingerprint, **found})
    elif found:
        typer.echo(f"NOT verified: {found['message']}", err=True)
    else:
        batches = loaded.num_batches
        typer.echo(f"verified: {batches:,} batches are the same, fingerprint {loaded.fingerprint}")
    if found:
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
    from phalanx.data.plans.sharding import ShardingConfig
    from phalanx.io.atomic import atomic_directory

    loaded = load_plan(plan)
    spec = ShardingConfig(world_size=world_size, policy=policy, balance=balance, d_model=d_model)
    rows: list[dict[str, Any]] = []
    with (
        user_errors(),
        progress("sharding", "ranks", world_size, quiet=as_json) as advance,
        atomic_directory(output) as folder,
    ):
        for rank in range(world_size):
            part = loaded.shard(rank, spec)
            save_batch_plan(part, folder / f"rank_{rank}")
            samples = sum(epoch.num_samples for epoch in part.epochs)
            tokens = sum(epoch.total_tokens for epoch in part.epochs)
            rows.append({"rank": rank, "batches": part.num_batches, "samples": samples, "tokens": tokens})
            advance(1)
    slowest = [loaded.measure_balance(epoch.epoch, spec).by_rank for epoch in loaded.epochs]
    if as_json:
        print_json({"output": str(output), "policy": policy, "slowest_over_ideal": slowest, "ranks": rows})
        return
    typer.echo(_format_rows(rows))
    cost = "attention cost" if d_model is None else f"FLOPs with d_model {d_model}"
    typer.echo(f"{output}: {world_size} ranks, slowest over ideal {max(slowest, default=1.0):.4f} in {cost}")


def _summary(plan: "BatchPlan") -> dict[str, Any]:
    return {
        "fingerprint": plan.fingerprint,
        "samples": len(plan.table),
        "num_skipped": plan.num_skipped,
        "num_batches": plan.num_batches,
        "epochs": _epoch_rows(plan),
        "meta": plan.meta.model_dump(mode="json"),
    }


def _epoch_rows(plan: "BatchPlan") -> list[dict[str, Any]]:
    metrics = {epoch.epoch: plan.compute_metrics(epoch.epoch) for epoch in plan.epochs}
    return [
        {
            "epoch": epoch,
            "batches": found.num_batches,
            "samples": found.num_samples,
            "tokens": found.total_tokens,
            "padded": found.padded_tokens,
            "efficiency": round(found.efficiency, 4),
        }
        for epoch, found in metrics.items()
    ]


def _print_plan(plan: "BatchPlan", path: Path) -> None:
    packing, batching, shard = plan.meta.packing, plan.meta.batching, plan.meta.shard
    # A packed plan has neither buckets nor a padding policy: all rows have the same length.
    mode = "packing" if packing is not None else f"{batching.mode}, {batching.pad_policy}"
    lines: list[tuple[str, object]] = [
        ("plan", path),
        ("fingerprint", plan.fingerprint),
        ("mode", f"{mode}, budget {batching.token_budget:,}, seed {batching.seed}"),
    ]
    if packing is None:
        lines.append(("buckets", ",".join(map(str, batching.bucket_spec.max_lengths))))
    else:
        lines.append(("packing", f"{packing.mode} into {packing.max_length}"))
    if shard is not None:
        ranks = f"rank {shard.rank} of {shard.world_size}"
        lines.append(("shard", f"{ranks}, {shard.policy}, balance {shard.balance}"))
    lines.append(("samples", f"{len(plan.table):,}, {plan.num_skipped:,} skipped"))
    typer.echo(f"{format_fields(lines)}\n\n{_format_rows(_epoch_rows(plan))}")


def _format_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows with the same keys as a table. Return an empty string if there are no rows."""
    return (
        format_table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]) if rows else ""
    )
