"""Training a language model as a run: sources, interruption, resuming to the same numbers, refusals."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import MockGymStream
from phalanx.config import load_config
from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchWriter,
    PackingConfig,
    StreamSample,
    save_batch_plan,
    write_samples,
)
from phalanx.logging import read_records
from phalanx.training import (
    SFT,
    PlannedBatches,
    Progress,
    SFTConfig,
    StreamedBatches,
    TrainResult,
    load_language_model,
    open_data,
    train,
)
from phalanx.training.sft_data import TokenBatch, iterate_async

pytestmark = pytest.mark.slow

TINY = (
    "model.d_model=8",
    "model.num_heads=1",
    "model.num_layers=1",
    "model.d_ff=8",
    "model.vocab_size=12",
    "data.token_budget=64",
    "data.max_length=16",
    "data.window_size=12",
    "data.num_eval_samples=4",
    "num_updates=8",
    "optimizer.warmup_steps=2",
    "checkpoint.every=3",
    "evaluation.every=4",
)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Forty short samples: a number, then the numbers after it."""
    numbers = np.random.default_rng(0)
    made = []
    for index in range(40):
        first, length = int(numbers.integers(1, 5)), int(numbers.integers(3, 7))
        ids = tuple((first + step) % 11 + 1 for step in range(length))
        made.append(
            StreamSample(
                input_ids=ids,
                loss_mask=(0, *(1,) * (length - 1)),
                sample_id=f"s{index}",
                dataset_id="counting",
                source="offline",
            )
        )
    write_samples(tmp_path / "samples.jsonl", made)
    return tmp_path / "samples.jsonl"


def config_of(samples: Path, *overrides: str) -> SFTConfig:
    return load_config(SFTConfig, None, (*TINY, f"data.samples={samples}", *overrides))


def plan_config(plan: Path, *overrides: str) -> SFTConfig:
    return load_config(SFTConfig, None, (*TINY, f"data.plan={plan}", *overrides))


def run(config: SFTConfig, folder: Path, resume: bool = False, stop_after: int | None = None) -> TrainResult:
    """Train; a stop is asked for as Ctrl-C asks for it."""
    import os
    import signal

    def show(progress: Progress) -> None:
        if progress.update == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    return train(SFT(config), folder, resume=resume, show=show)


def losses(folder: Path) -> list[float]:
    return [line["metrics"]["loss"] for line in read_records(folder / "batch_metrics.jsonl")]


def test_a_run_that_was_interrupted_goes_on_to_the_same_numbers(samples: Path, tmp_path: Path) -> None:
    config = config_of(samples)
    whole = run(config, tmp_path / "whole")
    half = run(config, tmp_path / "half", stop_after=5)
    assert (half.interrupted, half.update) == (True, 5)
    rest = run(config, tmp_path / "half", resume=True)
    assert (rest.interrupted, rest.update) == (False, 8)
    assert losses(tmp_path / "half") == losses(tmp_path / "whole")
    assert rest.counts == whole.counts
    assert rest.counts["num_slots"] > rest.counts["tokens"] > 0
    for a, b in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(a, b)
    # The files of the buffer go with their checkpoints.
    kept = {path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()}
    buffers = {path.stem for path in (tmp_path / "whole" / "replay").iterdir()}
    assert kept <= buffers <= kept | {"3"}
    loaded, model = load_language_model(tmp_path / "whole")
    assert loaded == config
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_held_out_samples_are_measured_and_never_trained_on(samples: Path, tmp_path: Path) -> None:
    config = config_of(samples)
    source = open_data(config)
    assert isinstance(source, StreamedBatches)
    assert [sample.sample_id for sample in source.eval_samples] == ["s0", "s1", "s2", "s3"]
    outcome = run(config, tmp_path / "run")
    assert [line["step"] for line in outcome.evaluations] == [0, 4, 8]
    assert outcome.evaluations[-1]["loss"] < outcome.evaluations[0]["loss"]
    told = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in told] == [line["loss"] for line in outcome.evaluations]


def test_a_plan_and_the_files_made_of_it_give_the_same_training(tmp_path: Path) -> None:
    texts = {f"t{i}": [2 + (i + j) % 9 for j in range(3 + i % 5)] for i in range(20)}
    lengths = {name: len(tokens) for name, tokens in texts.items()}
    batching = BatchingConfig(token_budget=64, bucket_edges=(8,), overflow_max=16)
    plan = BatchPlanBuilder(lengths, batching, packing=PackingConfig(max_length=16)).build_now(num_epochs=2)
    save_batch_plan(plan, tmp_path / "plan")
    with (tmp_path / "data.jsonl").open("w") as file:
        for name, tokens in texts.items():
            file.write(json.dumps({"id": name, "input_ids": tokens}) + "\n")
    BatchWriter(
        plan, {n: {"input_ids": np.array(t)} for n, t in texts.items()}, tmp_path / "files"
    ).write_all()
    plain = plan_config(tmp_path / "plan", f"data.dataset={tmp_path / 'data.jsonl'}")
    files = plan_config(tmp_path / "files")
    first, _ = run(plain, tmp_path / "one"), run(files, tmp_path / "two")
    assert first.update == plan.total_microbatches < 8
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), rel=1e-6)
    with pytest.raises(ValueError, match=r"set data\.dataset"):
        open_data(plan_config(tmp_path / "plan"))


def test_packed_and_unpacked_batches_hold_the_same_tokens_in_different_room(samples: Path) -> None:
    def window(*overrides: str) -> list[TokenBatch]:
        source = open_data(config_of(samples, *overrides, "data.window_size=24"))
        assert isinstance(source, StreamedBatches)
        batches, seen = [], 0
        while seen < 24:
            batch = source.next()
            assert batch is not None
            batches.append(batch)
            seen += int(np.sum((batch.position_ids == 0) & (batch.segment_ids > 0)))
        return batches

    packed, padded = window(), window("data.packing=false")
    assert sum(batch.num_tokens for batch in packed) == sum(batch.num_tokens for batch in padded)
    assert sum(batch.num_slots for batch in packed) < sum(batch.num_slots for batch in padded)
    for batch in (*packed, *padded):
        assert batch.input_ids.size <= 64
        assert not batch.loss_mask[batch.segment_ids == 0].any()


def test_another_config_and_other_data_are_refused_on_resuming(samples: Path, tmp_path: Path) -> None:
    config = config_of(samples)
    run(config, tmp_path / "run", stop_after=2)
    with pytest.raises(ValueError, match="learning_rate"):
        run(config_of(samples, "optimizer.learning_rate=0.5"), tmp_path / "run", resume=True)
    lines = samples.read_text().splitlines()
    samples.write_text("\n".join(reversed(lines)) + "\n")
    with pytest.raises(ValueError, match="the data has changed since checkpoint 2"):
        run(config, tmp_path / "run", resume=True)


def test_tokens_that_the_model_does_not_know_are_refused(samples: Path) -> None:
    with pytest.raises(
        ValueError, match=r"tokens up to 10, but model\.vocab_size is 5; set model\.vocab_size=11"
    ):
        open_data(config_of(samples, "model.vocab_size=5"))


def test_an_asynchronous_stream_is_read_by_a_plain_loop_and_its_errors_arrive() -> None:
    stream = MockGymStream(num_episodes=3, steps_per_episode=2, seed=1)
    assert len(list(iterate_async(stream))) == 6

    class Broken(MockGymStream):
        async def __aiter__(self) -> AsyncIterator[StreamSample]:
            raise ConnectionError("the server is gone")
            yield

    with pytest.raises(ConnectionError, match="the server is gone"):
        list(iterate_async(Broken()))


def test_a_plan_gives_no_batch_after_its_last() -> None:
    plan = BatchPlanBuilder({"a": 2}, BatchingConfig(token_budget=8)).build_now(num_epochs=1)
    source = PlannedBatches.from_plan(plan, {"a": {"input_ids": [1, 2]}})
    assert source.num_batches == 1
    assert source.next() is not None
    assert source.next() is None
