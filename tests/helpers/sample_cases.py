"""Samples for tests, and Hypothesis strategies that draw them."""

from typing import Any

from hypothesis import strategies as st

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin


def sample(
    name: str = "a",
    length: int = 3,
    *,
    input_ids: Any = None,
    loss_mask: Any = None,
    segment_ids: Any = None,
    **info: Any,
) -> Sample:
    """Create a short sample whose tokens count from 1."""
    return Sample(
        name,
        tuple(range(1, length + 1)) if input_ids is None else input_ids,
        (0,) * (length - 1) + (1,) if loss_mask is None else loss_mask,
        {} if segment_ids is None else {"segment_ids": segment_ids},
        SampleInfo(**{"dataset_id": "test", "origin": SampleOrigin.ENVIRONMENT, **info}),
    )


# Few values, so that ties are common, and some whose sums are rounded.
DIFFICULTIES = st.sampled_from([None, 0.0, 0.1, 0.3, 0.7, 1.0, 1 / 3, 5e-324])
REWARDS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
PRIORITIES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0])
IDS = st.text(st.characters(blacklist_characters="\0"), min_size=0, max_size=5)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Draw any sample; some have token ids beyond 16 bits."""
    length = draw(st.integers(1, 6))
    top = draw(st.sampled_from([9, 2**15 - 1, 2**15, 2**31 - 1]))
    segments = st.none() | st.lists(st.integers(0, 3), min_size=length, max_size=length)
    return sample(
        draw(IDS),
        input_ids=draw(st.lists(st.integers(0, top), min_size=length, max_size=length)),
        loss_mask=draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)),
        segment_ids=draw(segments),
        dataset_id=draw(IDS),
        origin=draw(st.sampled_from(SampleOrigin)),
        episode_id=draw(st.none() | IDS),
        episode_status=draw(st.none() | st.sampled_from(EpisodeStatus)),
        step_index=draw(st.none() | st.integers(0, 2**31 - 1)),
        total_steps=draw(st.none() | st.integers(0, 2**31 - 1)),
        reward=draw(REWARDS),
        difficulty=draw(DIFFICULTIES),
        success=draw(st.none() | st.booleans()),
        replay_count=draw(st.integers(0, 5)),
        priority=draw(PRIORITIES),
    )
