"""Supervised fine-tuning: data from plans, files and environments, and resuming with the same results."""

import collections
import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.config import load_config
from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchWriter,
    PackingConfig,
    Sample,
    StreamingPlan,
    TokenBatch,
    load_tokenizer,
    save_batch_plan,
    save_samples,
)
from phalanx.logging import read_records
from phalanx.training import (
    SFT,
    DataExhausted,
    Progress,
    SFTConfig,
    SFTData,
    TrainResult,
    open_data,
    train,
)
from phalanx.training.sft import eval_batches
from tests.helpers.puzzle_server import running_server

pytestmark = pytest.mark.slow

TINY = (
    "model.d_model=8",
    "model.num_heads=1",
    "model.num_layers=1",
    "model.d_ff=8",
    "model.vocab_size=12",
    "data.token_budget=64",
    "data.max_length=16",
    "data.packs_per_buffer=6",
    "data.num_eval_samples=4",
    "num_updates=8",
    "optimizer.warmup_steps=2",
    "checkpoint.every=3",
    "evaluation.every=4",
)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Forty short samples of consecutive numbers."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(40):
        first, length = int(rng.integers(1, 5)), int(rng.integers(3, 7))
        ids = tuple((first + step) % 11 + 1 for step in range(length))
        rows.append(Sample(f"s{index}", ids, (0, *(1,) * (length - 1))))
    save_samples(tmp_path / "samples.jsonl", rows)
    return tmp_path / "samples.jsonl"


def samples_config(samples: Path, *overrides: str) -> SFTConfig:
    return load_config(SFTConfig, None, (*TINY, f"data.samples={samples}", *overrides))


def plan_config(plan: Path, *overrides: str) -> SFTConfig:
    return load_config(SFTConfig, None, (*TINY, f"data.plan={plan}", *overrides))


def run(config: SFTConfig, folder: Path, resume: bool = False, stop_after: int | None = None) -> TrainResult:
    """Train, and send SIGINT after the update `stop_after`."""
    import os
    import signal

    def show(progress: Progress) -> None:
        if progress.update == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    return train(SFT(config), folder, resume=resume, show=show)


def losses(folder: Path) -> list[float]:
    return [line["metrics"]["loss"] for line in read_records(folder / "batch_metrics.jsonl")]


def test_held_out_samples_are_evaluated_and_never_trained_on(samples: Path, tmp_path: Path) -> None:
    config = samples_config(samples)
    data = open_data(config)
    assert [sample.sample_id for sample in data.eval_samples] == ["s0", "s1", "s2", "s3"]
    assert data.plan is not None
    trained = {name for spec in itertools.islice(data.plan.batches(), 20) for name in spec.sample_ids}
    assert trained == {f"s{index}" for index in range(4, 40)}
    outcome = run(config, tmp_path / "run")
    assert [line["step"] for line in outcome.evaluations] == [0, 4, 8]
    assert outcome.evaluations[-1]["loss"] < outcome.evaluations[0]["loss"]
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [line["loss"] for line in outcome.evaluations]


def test_plan_and_its_batch_files_give_the_same_training(tmp_path: Path) -> None:
    texts = {f"t{i}": [2 + (i + j) % 9 for j in range(3 + i % 5)] for i in range(20)}
    lengths = {name: len(tokens) for name, tokens in texts.items()}
    batching = BatchingConfig(token_budget=64, bucket_edges=(8,), max_sample_length=16)
    plan = BatchPlanBuilder(lengths, batching, packing=PackingConfig(max_length=16)).build(num_epochs=2)
    save_batch_plan(plan, tmp_path / "plan")
    with (tmp_path / "data.jsonl").open("w") as file:
        for name, tokens in texts.items():
            file.write(json.dumps({"id": name, "input_ids": tokens}) + "\n")
    BatchWriter(
        plan, {n: {"input_ids": np.array(t)} for n, t in texts.items()}, tmp_path / "files"
    ).write_all()
    from_plan = plan_config(tmp_path / "plan", f"data.planned_dataset={tmp_path / 'data.jsonl'}")
    from_files = plan_config(tmp_path / "files")
    first, _ = run(from_plan, tmp_path / "one"), run(from_files, tmp_path / "two")
    assert first.update == plan.num_batches < 8
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), rel=1e-6)
    with pytest.raises(ValueError, match=r"set data\.planned_dataset"):
        open_data(plan_config(tmp_path / "plan"))


def all_batches(config: SFTConfig) -> list[TokenBatch]:
    data = open_data(config)
    assert data.plan is not None
    return [data.get_batch(spec) for spec in data.plan.batches()]


def test_packing_needs_less_padding_for_the_same_tokens(samples: Path) -> None:
    packed = all_batches(samples_config(samples, "data.repeat=false"))
    padded = all_batches(samples_config(samples, "data.repeat=false", "data.packing=false"))
    assert sum(batch.real_tokens for batch in packed) == sum(batch.real_tokens for batch in padded)
    assert sum(batch.padded_tokens for batch in packed) < sum(batch.padded_tokens for batch in padded)
    for batch in (*packed, *padded):
        assert batch.padded_tokens == 64
        assert not batch.loss_mask[batch.segment_ids == 0].any()


@pytest.mark.parametrize(("packing", "num_rows"), [(True, 1), (False, 4)])
def test_evaluation_samples_are_packed_only_if_training_samples_are(
    samples: Path, packing: bool, num_rows: int
) -> None:
    config = samples_config(samples, f"data.packing={packing}".lower())
    batches = eval_batches(open_data(config).eval_samples, config)
    assert sum(np.any(batch.segment_ids, axis=1).sum() for batch in batches) == num_rows
    assert sum(len(batch.layout.samples) for batch in batches) == 4


@pytest.mark.parametrize("packing", [True, False])
def test_repeated_samples_are_used_equally_often(samples: Path, packing: bool) -> None:
    data = open_data(samples_config(samples, f"data.packing={packing}".lower()))
    assert isinstance(data.plan, StreamingPlan)
    counts: collections.Counter[str] = collections.Counter()
    for spec in itertools.islice(data.plan.batches(), 60):
        batch = data.get_batch(spec)
        assert batch.input_ids.shape == (4, 16)
        counts.update(spec.sample_ids)
    assert len(counts) == 36
    assert max(counts.values()) - min(counts.values()) <= 2


def test_run_can_be_extended(samples: Path, tmp_path: Path) -> None:
    run(samples_config(samples), tmp_path / "run")
    longer = SFT(samples_config(samples, "num_updates=12"))
    assert train(longer, tmp_path / "run", resume=True, extend=True).update == 12


def test_rows_with_text_are_tokenized(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "abc"}\n{"text": "de"}\n')
    config = samples_config(tmp_path / "texts.jsonl", "data.num_eval_samples=1", "model.vocab_size=300")
    data = open_data(config)
    assert load_tokenizer("bytes").decode(data.eval_samples[0].input_ids) == "abc"


def test_resume_with_other_samples_is_rejected(samples: Path, tmp_path: Path) -> None:
    config = samples_config(samples)
    run(config, tmp_path / "run", stop_after=2)
    lines = samples.read_text().splitlines()
    samples.write_text("\n".join(reversed(lines)) + "\n")
    with pytest.raises(ValueError, match="the data has changed since checkpoint 2"):
        run(config, tmp_path / "run", resume=True)


def test_tokens_outside_the_vocabulary_are_rejected(samples: Path) -> None:
    with pytest.raises(
        ValueError, match=r"tokens up to 10, but model\.vocab_size is 5; set model\.vocab_size=11"
    ):
        open_data(samples_config(samples, "model.vocab_size=5"))


def test_environment_stream_resumes_where_it_stopped(tmp_path: Path) -> None:
    settings = (*TINY, "env.id=lights_out:easy:multi", "tokenizer=characters", "data.max_length=96")
    config = load_config(
        SFTConfig, None, (*settings, "data.token_budget=192", "model.vocab_size=98", "num_updates=6")
    )
    complete = run(config, tmp_path / "complete")
    run(config, tmp_path / "interrupted", stop_after=4)
    resumed = run(config, tmp_path / "interrupted", resume=True)
    assert losses(tmp_path / "interrupted") == losses(tmp_path / "complete")
    assert resumed.counts == complete.counts


def test_random_actions_in_a_jax_environment_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SFTConfig.load(
        None,
        ("env.id=proofs", "data.behavior_policy=random", "data.num_eval_samples=2", "data.max_length=900"),
    )
    [first, _] = open_data(config).eval_samples
    text = load_tokenizer("bytes").decode(first.input_ids[first.loss_mask == 0])
    assert "Choices:\n0: " in text


def test_plan_ends_after_its_last_batch() -> None:
    plan = BatchPlanBuilder({"a": 2}, BatchingConfig(token_budget=8)).build()
    sft = SFT(load_config(SFTConfig, None, TINY), SFTData.from_plan(plan, {"a": {"input_ids": [1, 2]}}))
    assert sft.num_updates == 1
    state, _ = sft.update(sft.init(jax.random.key(0)))
    with pytest.raises(DataExhausted):
        sft.update(state)


def test_seeds_share_the_data_that_was_passed(tmp_path: Path) -> None:
    plan = BatchPlanBuilder({"a": 2}, BatchingConfig(token_budget=8)).build()
    data = SFTData.from_plan(plan, {"a": {"input_ids": [1, 2]}})
    result = train(SFT(load_config(SFTConfig, None, (*TINY, "num_seeds=2")), data), tmp_path / "run")
    assert [seed.counts["tokens"] for seed in result.seeds] == [2, 2]


def test_hints_of_a_puzzle_server_are_expert_answers(tmp_path: Path) -> None:
    with running_server() as server:
        settings = ("env.id=puzzle_server", f"env.address=127.0.0.1:{server.port}", "env.games=['lights']")
        sizes = ("env.num_connections=2", "env.max_steps=3", "data.max_length=512", "data.token_budget=1024")
        more = ("model.vocab_size=98", "tokenizer=characters", "num_updates=2", "evaluation.num_episodes=0")
        config = SFTConfig.load(None, (*TINY, *settings, *sizes, *more, "seed=4"))
        data = open_data(config)
        [sample, *_] = data.eval_samples
        assert (
            load_tokenizer("characters").decode(sample.input_ids[sample.loss_mask == 1]).startswith("press ")
        )
        assert isinstance(data.plan, StreamingPlan)
        trained = {name for spec in itertools.islice(data.plan.batches(), 2) for name in spec.sample_ids}
        assert not trained & {sample.sample_id for sample in data.eval_samples}
        data.plan.close()
        assert run(config, tmp_path / "run").update == 2
