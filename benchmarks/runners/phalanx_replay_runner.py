"""Phalanx's replay buffer on the samples that both contenders are given.

Runs in the interpreter that runs the comparison; see `replay_work.py` for the options.
"""

from typing import Any

import replay_work

from phalanx.data import ReplayBuffer, ReplayBufferConfig, Sample, SampleInfo, SampleOrigin


def make_sample(
    *, source: SampleOrigin, sample_id: str, input_ids: Any, loss_mask: Any, **info: Any
) -> Sample:
    """Create a sample from the fields that both contenders are given."""
    return Sample(sample_id, input_ids, loss_mask, info=SampleInfo(origin=source, **info))


def main() -> None:
    arguments = replay_work.parse_arguments(__doc__ or "")
    made = replay_work.Made(
        ReplayBuffer(ReplayBufferConfig(max_size=arguments.samples)),
        make_sample,
        SampleOrigin.ENVIRONMENT,
        lambda buffer, n: buffer.sample(n, min_difficulty=0.7),
    )
    replay_work.run(made, arguments, "phalanx")


if __name__ == "__main__":
    main()
