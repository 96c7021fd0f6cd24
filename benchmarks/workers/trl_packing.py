"""Pack a tokenized dataset with TRL's `pack_dataset`.

The result is an Arrow table with the concatenated tokens of each row and the lengths of its samples. Rows are
not padded, and position ids and attention masks are created later, by TRL's data collator.
"""

import datasets
import numpy as np
import pyarrow as pa
import trl

from benchmarks.workers import protocol
from benchmarks.workers.token_lengths import MAX_LENGTH, random_lengths, random_tokens


def main() -> None:
    settings = protocol.read_settings(__doc__)
    datasets.disable_progress_bars()
    datasets.disable_caching()
    lengths = random_lengths(settings["num_samples"])
    tokens, offsets = random_tokens(lengths)
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, tokens)})
    dataset = datasets.Dataset(table)
    # By default, `map` packs 1,000 samples at a time, which leaves more padding.
    options = {"batch_size": settings["batch_size"] or len(lengths), "keep_in_memory": True}

    def run():
        return trl.pack_dataset(dataset, MAX_LENGTH, strategy=settings["strategy"], map_kwargs=options)

    packed = run()
    sizes = np.concatenate([chunk.value_lengths().to_numpy() for chunk in packed.data["input_ids"].chunks])
    if sizes.sum() != len(tokens) or sizes.max() > MAX_LENGTH:
        raise AssertionError("the packed rows do not contain all tokens, or a row is too long")
    protocol.serve(
        run,
        len(tokens),
        settings["seconds"],
        trl=trl.__version__,
        datasets=datasets.__version__,
        columns=packed.column_names,
        num_rows=len(sizes),
        padding_efficiency=len(tokens) / (len(sizes) * MAX_LENGTH),
    )


if __name__ == "__main__":
    main()
