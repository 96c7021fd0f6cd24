"""Data loaders of packed token batches: tokens per second, padding, and what is lost after an interruption.

All loaders return batches of 8 rows of 2,048 tokens as PyTorch tensors, in one process without worker
processes. Phalanx and Grain read the same samples from a memory-mapped file in random order. A plan is packed
beforehand, and a streaming plan packs on the fly; both know the lengths of all samples. Grain packs while it
reads and only then learns the lengths; it is measured with its default threads and without threads. TRL packs
the dataset beforehand and stores the rows.
Opening the loader is part of the measurement. The settings of each measurement contain the time to prepare,
the time until the first batch after a resume, the padding efficiency, and the numbers of samples that are
incomplete, lost or repeated.
"""

from benchmarks.peers import GRAIN, TRL
from benchmarks.suite import Suite, Workload

suite = Suite("data_loaders", unit="tokens/s", packages=("numpy", "torch"))


@suite.case("plan", group="read", smoke={"num_samples": 200}, loader="phalanx-plan")
@suite.case("streaming", group="read", smoke={"num_samples": 200}, loader="phalanx-streaming")
def read(loader: str, num_samples: int = 20_000) -> Workload:
    """Read one epoch with a plan that was built beforehand, or with a streaming plan."""
    # PyTorch is not imported unless this suite runs.
    from benchmarks.workers.loaders import prepare

    return Workload(*prepare(loader, num_samples))


for _loader, _peer, _system in (
    ("trl", TRL, "TRL 1.16.0, DataLoader"),
    ("grain", GRAIN, "Grain 0.2.18"),
    ("grain-no-threads", GRAIN, "Grain 0.2.18, no threads"),
):
    suite.peer_case(
        _loader, _peer, "loaders", group="read", system=_system, loader=_loader, num_samples=20_000
    )
