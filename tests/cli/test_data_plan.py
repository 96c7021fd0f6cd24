"""`phalanx data plan`: saved plans, output and verification."""

import json
from pathlib import Path

import pytest

from phalanx.data import load_batch_plan


@pytest.fixture(autouse=True)
def lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty samples: four each of 10, 20, ..., 100 tokens."""
    monkeypatch.chdir(tmp_path)
    write_lengths({f"s{row}": 10 * (1 + row % 10) for row in range(40)})
    return tmp_path


def write_lengths(lengths: dict[str, int], tokenizer: str = "message") -> None:
    rows = [{"sample_id": name, "tokenizer_hash": tokenizer, "length": n} for name, n in lengths.items()]
    Path("lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def build(phalanx, *more: object):
    options = ["--token-budget", 200, "--bucket-edges", "25,50", "--max-sample-length", 100]
    return phalanx("data", "plan", "build", "--lengths", "lengths.jsonl", "--output", "plan", *options, *more)


def test_predictable_plan_pads_to_bucket_edges(phalanx):
    result = build(phalanx, "--predictable", "--seed", 7)
    assert (result.code, result.err) == (0, "")
    plan = load_batch_plan("plan")
    assert result.out.splitlines() == [
        "plan         plan",
        f"fingerprint  {plan.fingerprint}",
        "mode         predictable, pad_to_bucket, budget 200, seed 7",
        "buckets      25,50,100",
        "samples      40, 0 skipped",
        "",
        # 8 samples in rows of 25, 12 in rows of 50, 20 in rows of 100; 8, 4 and 2 to a batch.
        "EPOCH  BATCHES  SAMPLES  TOKENS  PADDED  EFFICIENCY",
        "    0       14       40   2,200   2,800      0.7857",
    ]


def test_packed_plan_is_shown_without_buckets_and_padding(phalanx):
    assert build(phalanx, "--pack", "--max-length", 100, "--seed", 7).out.splitlines()[2:5] == [
        "mode         packing, budget 200, seed 7",
        "packing      best_fit_decreasing into 100",
        "samples      40, 0 skipped",
    ]


def test_seed_changes_the_plan_in_both_modes(phalanx):
    prints = set()
    for number, options in enumerate(
        (["--seed", 1], ["--seed", 2], ["--seed", 1, "--predictable"], ["--seed", 2, "--predictable"])
    ):
        result = build(phalanx, "--overwrite", "--json", *options)
        prints.add(json.loads(result.out)["fingerprint"])
        assert len(prints) == number + 1


def test_all_settings_are_passed_to_the_plan(phalanx):
    options = ["--epochs", 2, "--drop-last", "--pool-batches", 3, "--dataset-hash", "corpus"]
    packing = ["--pack", "--max-length", 100, "--pack-mode", "first_fit", "--overlong", "skip"]
    meta = json.loads(build(phalanx, "--json", *options, *packing).out)["meta"]
    assert (meta["num_epochs"], meta["dataset_hash"], meta["tokenizer_hash"]) == (2, "corpus", "message")
    batching = meta["batching"]
    assert batching["mode"] == "throughput"
    assert (batching["drop_last"], batching["pool_batches"]) == (True, 3)
    assert batching["bucket_edges"] == [25, 50]
    packed = meta["packing"]
    assert (packed["mode"], packed["max_length"], packed["overlong"]) == ("first_fit", 100, "skip")


def test_skipped_samples_are_reported_with_the_reason(phalanx):
    write_lengths({"short": 10, "long": 101, "longer": 300})
    out = build(phalanx).out
    assert "samples      3, 2 skipped" in out
    assert "skipped: 2 longer than max_sample_length 100\n  long  101 tokens\n  longer  300 tokens\n" in out
    report = json.loads(build(phalanx, "--json", "--overwrite").out)
    assert report["skipped"] == [
        {"sample_id": "long", "length": 101, "reason": "longer than max_sample_length 100"},
        {"sample_id": "longer", "length": 300, "reason": "longer than max_sample_length 100"},
    ]


def test_existing_plan_is_replaced_only_with_the_flag(phalanx):
    build(phalanx)
    before = load_batch_plan("plan").fingerprint
    result = build(phalanx, "--seed", 5)
    assert result.code == 2
    assert result.err == "phalanx: plan/batch.plan already exists; choose another name, or pass --overwrite\n"
    assert load_batch_plan("plan").fingerprint == before
    assert build(phalanx, "--seed", 5, "--overwrite").code == 0
    assert load_batch_plan("plan").fingerprint != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bucket-edges", "50,25"], "must be strictly ascending, but 25 follows 50"),
        (["--bucket-edges", "a,b"], "--bucket-edges must be integers separated by commas"),
        (
            ["--max-sample-length", 20],
            "max_sample_length (20) must be greater than the last edge (50)",
        ),
        (["--pack", "--max-length", 300], "the packing max_length 300 exceeds token_budget 200"),
        (["--pack", "--max-length", 60], "more than the packing max_length 60"),
    ],
)
def test_invalid_settings_exit_with_one_line_and_code_2(phalanx, options: list[object], message: str):
    result = build(phalanx, *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not Path("plan").exists()


def test_info_shows_the_share_and_first_batches_of_a_rank(phalanx):
    build(phalanx, "--predictable")
    out = phalanx("data", "plan", "info", "--plan", "plan", "--rank", 1, "--world-size", 4, "-n", 2).out
    assert "rank 1 of 4, split" in out
    # 14 batches do not divide by four: two are halved, so that every rank has four.
    epoch, _, header, first, second = out.splitlines()[-5:]
    assert epoch.split()[:2] == ["0", "4"]
    assert header.split() == ["INDEX", "SAMPLES", "ROWS", "MAX_LENGTH", "BUCKET", "TOKENS", "FIRST"]
    assert [first.split()[0], second.split()[0]] == ["0", "1"]
    found = json.loads(phalanx("data", "plan", "info", "--plan", "plan", "-n", 2, "--json").out)
    assert found["num_batches"] == 14
    assert [batch["index"] for batch in found["batches"]] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", 0], "--rank and --world-size must be used together"),
        (["--rank", 4, "--world-size", 4], "rank must be between 0 and 3, got 4"),
    ],
)
def test_info_rejects_unknown_ranks(phalanx, options: list[object], message: str):
    build(phalanx)
    result = phalanx("data", "plan", "info", "--plan", "plan", *options)
    assert result.code == 2
    assert message in result.err


def test_folder_without_a_plan_is_rejected(phalanx):
    Path("empty").mkdir()
    result = phalanx("data", "plan", "info", "--plan", "empty")
    assert result.code == 2
    assert "there is no batch plan empty/batch.plan" in result.err


def verify(phalanx, *more: object):
    return phalanx("data", "plan", "verify", "--plan", "plan", "--lengths", "lengths.jsonl", *more)


def test_reproducible_plan_passes_verification(phalanx):
    build(phalanx, "--epochs", 2)
    result = verify(phalanx)
    plan = load_batch_plan("plan")
    batches = plan.num_batches
    assert (result.code, result.err) == (0, "")
    assert result.out == f"verified: {batches} batches are the same, fingerprint {plan.fingerprint}\n"
    assert json.loads(verify(phalanx, "--json").out) == {"verified": True, "fingerprint": plan.fingerprint}


def test_changed_length_fails_verification_with_the_first_different_batch(phalanx):
    build(phalanx, "--predictable")
    write_lengths({f"s{row}": 10 * (1 + row % 10) + (row == 3) for row in range(40)})
    result = verify(phalanx)
    assert (result.code, result.out) == (1, "")
    assert "lengths changed: sample 's3' had 40 tokens, now 41" in result.err
    assert "first different batch: epoch 0, batch" in result.err
    found = json.loads(verify(phalanx, "--json").out)
    plan = load_batch_plan("plan")
    place = next(batch.index for batch in plan.iter_epoch(0) if "s3" in batch.sample_ids)
    assert (found["verified"], found["cause"], found["batch"]) == (False, "lengths", place)


def test_plan_changed_on_disk_is_rejected(phalanx):
    build(phalanx, "--predictable")
    path = Path("plan/batch.plan")
    data = bytearray(path.read_bytes())
    order = load_batch_plan("plan").get_epoch(0).batches.order.tobytes()
    data[data.index(order)] ^= 1
    path.write_bytes(data)
    result = verify(phalanx)
    assert result.code in (1, 2) and result.out == ""
    assert "plan/batch.plan is corrupt" in result.err or "order changed" in result.err


def test_lengths_of_another_tokenizer_fail_verification(phalanx):
    build(phalanx)
    write_lengths({f"s{row}": 10 * (1 + row % 10) for row in range(40)}, tokenizer="bytes")
    result = verify(phalanx)
    assert result.code == 1
    assert "tokenizer changed" in result.err


@pytest.mark.parametrize("balance", [(), ("--balance",)])
def test_shards_are_disjoint_complete_and_equal(phalanx, balance: tuple[str, ...]):
    build(phalanx)
    result = phalanx(
        "data", "plan", "shard", "--plan", "plan", "--world-size", 3, "--output", "shards", *balance
    )
    assert result.code == 0, result.err
    assert "3 ranks, slowest over ideal" in result.out
    parts = [load_batch_plan(f"shards/rank_{rank}") for rank in range(3)]
    assert len({part.num_batches for part in parts}) == 1
    samples = [sample for part in parts for batch in part.iter_epoch(0) for sample in batch.sample_ids]
    assert sorted(samples) == sorted(f"s{row}" for row in range(40))
    assert parts[2].meta.shard is not None
    assert (parts[2].meta.shard.rank, parts[2].meta.shard.world_size) == (2, 3)


@pytest.mark.parametrize("width", [(), ("--d-model", 512)])
def test_shards_are_verified_with_any_balancing(phalanx, width: tuple[object, ...]):
    build(phalanx)
    options = ["--world-size", 3, "--balance", *width]
    assert phalanx("data", "plan", "shard", "--plan", "plan", "--output", "shards", *options).code == 0
    for rank in range(3):
        part = ["--plan", f"shards/rank_{rank}", "--lengths", "lengths.jsonl"]
        result = phalanx("data", "plan", "verify", *part)
        assert (result.code, result.err) == (0, "")
        shown = phalanx("data", "plan", "info", "--plan", "plan", "--rank", rank, *options, "--json")
        assert json.loads(shown.out)["fingerprint"] == load_batch_plan(f"shards/rank_{rank}").fingerprint


def test_json_lists_the_shards_of_all_ranks(phalanx):
    build(phalanx)
    options = ["--world-size", 2, "--output", "shards", "--policy", "drop", "--json"]
    found = json.loads(phalanx("data", "plan", "shard", "--plan", "plan", *options).out)
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert found["policy"] == "drop"
    assert found["slowest_over_ideal"][0] >= 1


def test_failed_sharding_leaves_no_files(phalanx):
    write_lengths({"only": 10})
    build(phalanx)
    options = ["--world-size", 2, "--output", "shards", "--policy", "drop"]
    result = phalanx("data", "plan", "shard", "--plan", "plan", *options)
    assert result.code == 2
    assert "cannot be divided among 2 ranks with policy 'drop'" in result.err
    assert sorted(path.name for path in Path().iterdir()) == ["lengths.jsonl", "plan"]


def test_output_fits_80_columns(phalanx):
    write_lengths({f"s{row}": 10 * (1 + row % 10) for row in range(40)} | {"long": 5000})
    outputs = [build(phalanx, "--epochs", 2).out]
    outputs.append(phalanx("data", "plan", "info", "--plan", "plan", "-n", 5).out)
    outputs.append(phalanx("data", "plan", "shard", "--plan", "plan", "--world-size", 8, "--output", "s").out)
    assert max(len(line) for text in outputs for line in text.splitlines()) <= 80
