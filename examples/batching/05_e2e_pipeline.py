"""Go from texts to batch files: tokenize, cache the lengths, plan packed batches, write and read them.

python examples/batching/05_e2e_pipeline.py
"""

import json
import pathlib
import tempfile

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchReader,
    BatchWriter,
    LengthCache,
    PackingConfig,
    iter_lengths,
    load_tokenizer,
    tokenize_dataset,
)


def write_dataset(path: pathlib.Path) -> None:
    """Write a small dataset of questions and answers."""
    with path.open("w") as file:
        for number in range(500):
            text = f"What is {number} + {number}? " + "Think. " * (number % 17) + f"It is {2 * number}."
            file.write(json.dumps({"id": f"q{number}", "text": text}) + "\n")


def main(folder: pathlib.Path) -> None:
    dataset = folder / "train.jsonl"
    write_dataset(dataset)
    tokenizer = load_tokenizer("bytes")

    with LengthCache.create(folder / "lengths.jsonl", tokenizer.tokenizer_hash) as cache:
        for ids, lengths in iter_lengths(dataset, tokenizer, workers=1):
            cache.add_many(ids, lengths)
    cache = LengthCache.load(folder / "lengths.jsonl", tokenizer.tokenizer_hash)
    print(f"{len(cache)} lengths, {cache.lengths.min()} to {cache.lengths.max()} tokens")

    builder = BatchPlanBuilder(
        cache.table(),
        BatchingConfig.throughput(token_budget=4096, bucket_edges=(64, 128), max_sample_length=256),
        tokenizer_hash=cache.tokenizer_hash,
        packing=PackingConfig(max_length=512),
    )
    plan = builder.build(num_epochs=2)
    print(f"{plan.num_batches} batches, {plan.compute_metrics().efficiency:.3f} real")

    samples = tokenize_dataset(dataset, tokenizer)
    files = BatchWriter(plan, samples, folder / "batches", pad_id=tokenizer.pad_token_id or 0).write_all()
    reader = BatchReader(folder / "batches")
    print(f"{len(files)} files, of this plan: {reader.verify_fingerprint(plan.fingerprint)}")
    for batch in reader.iter_epoch(0):
        row, segments = batch["input_ids"][0], batch["segment_ids"][0]
        print(f"first row of the first batch: {tokenizer.decode(row[segments == 1])!r}")
        break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(pathlib.Path(name))
