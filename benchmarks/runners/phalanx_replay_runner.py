"""Phalanx's replay buffer on the samples that both contenders are given.

Runs in the interpreter that runs the comparison; see `replay_work.py` for the options.
"""

import replay_work

from phalanx.compat.chuk_lazarus.data.batching.streaming import SampleSource, StreamSample
from phalanx.data import ReplayBuffer, ReplayBufferConfig


def main() -> None:
    arguments = replay_work.parse_arguments(__doc__ or "")
    made = replay_work.Made(
        ReplayBuffer(ReplayBufferConfig(max_size=arguments.samples)),
        StreamSample,
        SampleSource.GYM,
        lambda buffer, n: buffer.sample(n, min_difficulty=0.7),
    )
    replay_work.run(made, arguments, "phalanx")


if __name__ == "__main__":
    main()
