"""chuk-lazarus 0.4.1's replay buffer on the samples that both contenders are given.

See `replay_work.py` for the options, and `lazarus_tokens_runner.py` for why its packages are stood in for.
"""

import random

import lazarus_tokens_runner
import replay_work


def main() -> None:
    arguments = replay_work.parse_arguments(__doc__ or "")
    lazarus_tokens_runner._stand_in()
    from chuk_lazarus.data.batching import streaming

    rng = random.Random(0)

    def draw_hard(buffer: streaming.ReplayBuffer, n: int) -> list[streaming.StreamSample]:
        # Its sample() knows no bounds; this is what its interface offers for the seed's last line.
        return rng.choices(buffer.filter_by_difficulty(0.7), k=n)

    made = replay_work.Made(
        streaming.ReplayBuffer(streaming.ReplayBufferConfig(max_size=arguments.samples)),
        streaming.StreamSample,
        streaming.SampleSource.GYM,
        draw_hard,
    )
    replay_work.run(made, arguments, "chuk-lazarus")


if __name__ == "__main__":
    main()
