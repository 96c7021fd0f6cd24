"""Analyze sample lengths: the padding of given buckets, better bucket edges, and the effect of packing.

python examples/batching/06_analyze.py

`phalanx data analyze report --svg FILE` draws the report of a length cache as a chart.
"""

import numpy as np

from phalanx.data import (
    BucketSpec,
    OptimizationGoal,
    create_efficiency_report,
    suggest_bucket_edges,
)


def main() -> None:
    rng = np.random.default_rng(0)
    drawn = np.clip(np.rint(rng.lognormal(5.2, 1.0, 20_000)), 1, 2048).astype(int)
    lengths = {f"s{row}": int(length) for row, length in enumerate(drawn)}
    buckets = BucketSpec(edges=(128, 256, 512, 1024), max_sample_length=2048)

    report = create_efficiency_report(lengths, buckets)
    print(report.to_ascii())
    print()
    for goal in OptimizationGoal:
        found = suggest_bucket_edges(lengths, num_buckets=8, goal=goal, max_length=2048)
        print(f"{goal}: edges {found.edges}, {found.estimated_efficiency:.1%} real")


if __name__ == "__main__":
    main()
