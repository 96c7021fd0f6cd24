"""TRL: packing a Hugging Face dataset best-fit decreasing, with tokens and (nearly) without.

See `token_work.py` for the options.
"""

from typing import Any

import numpy as np
import token_facts
import token_work

WORKS = ("assign", "materialize")


def main() -> None:
    arguments = token_work.parse_arguments("TRL runner", WORKS)
    import datasets
    import pyarrow as pa
    from trl import data_utils

    datasets.disable_progress_bars()
    datasets.disable_caching()
    lengths = token_facts.draw_lengths(arguments.distribution, arguments.samples)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    total = int(offsets[-1])
    # TRL has no assignment without tokens; with tokens of one byte hardly anything else is left.
    kind = np.int32 if arguments.work == "materialize" else np.int8
    tokens = (np.arange(total, dtype=np.int32) % (50_000 if kind is np.int32 else 100)).astype(kind)
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, tokens)})

    def facts(packed: Any) -> dict[str, Any]:
        column = packed["input_ids"] if isinstance(packed, pa.Table) else packed.data["input_ids"]
        sizes = np.concatenate([chunk.value_lengths().to_numpy() for chunk in column.chunks])
        if sizes.sum() != total or sizes.max() > token_facts.CAPACITY:
            raise AssertionError("tokens were lost, or a bin is too large")
        return {"bins": len(sizes), "tokens": total}

    if arguments.work == "materialize":
        dataset = datasets.Dataset(table)

        def call() -> Any:
            # All samples at once: in the default batches of a thousand it would pack them less tightly.
            options = {"batch_size": len(lengths), "keep_in_memory": True}
            return data_utils.pack_dataset(dataset, token_facts.CAPACITY, strategy="bfd", map_kwargs=options)

        token_work.serve(call, facts, total, arguments.seconds, "trl")
    else:
        token_work.serve(
            lambda: data_utils._pack_bfd(table, token_facts.CAPACITY),
            facts,
            len(lengths),
            arguments.seconds,
            "trl",
        )


if __name__ == "__main__":
    main()
