"""Replay buffer of stream samples."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import SampleSource, StreamSample, to_samples
from phalanx.compat.renamed import RenamedAttributes, RenamedFields
from phalanx.data import replay_buffer as _replay
from phalanx.data.replay_buffer import BufferSnapshot, EvictionPolicy as BufferEvictionPolicy, SampleFilter
from phalanx.data.samples import Sample


class ReplayBufferConfig(RenamedFields, _replay.ReplayBufferConfig):
    """`phalanx.data.ReplayBufferConfig` with settings for the buffer's statistics."""

    renamed: ClassVar = {"default_priority": "the priority of each StreamSample, 1 by default"}
    track_difficulty: bool = True
    """Make `mean_difficulty` available. If False, accessing it raises `ValueError`."""
    track_success: bool = True
    """Make `success_rate` available. If False, accessing it raises `ValueError`."""


class ReplayBuffer(RenamedAttributes, _replay.ReplayBuffer):
    """Subclass of `phalanx.data.ReplayBuffer` that accepts and returns `StreamSample` objects."""

    renamed: ClassVar = {"to_dict": "save(path)", "from_dict": "ReplayBuffer.load(path)"}
    config_class: ClassVar = ReplayBufferConfig
    config: ReplayBufferConfig

    @property
    def is_empty(self) -> bool:
        """True if the buffer has no samples."""
        return not self.size

    @property
    def mean_difficulty(self) -> float:
        """Mean difficulty of the samples whose difficulty is known. 0 if there are none."""
        if not getattr(self.config, "track_difficulty", True):
            raise ValueError("difficulty is not tracked; set track_difficulty=True")
        return super().mean_difficulty

    @property
    def success_rate(self) -> float:
        """Fraction of successes among the samples whose outcome is known. 0 if there are none."""
        if not getattr(self.config, "track_success", True):
            raise ValueError("success is not tracked; set track_success=True")
        return super().success_rate

    def add(self, sample: StreamSample | Sample, priority: float | None = None) -> None:
        """Add a sample."""
        super().add(to_samples([sample])[0], priority)

    def add_batch(
        self, samples: Sequence[StreamSample | Sample], priorities: Sequence[float] | None = None
    ) -> None:
        """Add several samples in order."""
        super().add_batch(to_samples(samples), priorities)

    def sample(self, n: int, *, source: SampleSource | None = None, **bounds: Any) -> list[StreamSample]:  # type: ignore[override]
        """Draw `n` samples with replacement, with probabilities proportional to `priority ** priority_alpha`.

        The result is empty if no sample matches.

        Args:
            n: Number of samples to draw.
            source: Source of the samples. If None, samples from all sources may be drawn.
            bounds: Other conditions on the samples: fields of `SampleFilter`, such as `min_difficulty`.
        """
        origin = None if source is None else SampleSource(source).origin
        return _convert(super().sample(n, origin=origin, **bounds))

    def sample_uniform(self, n: int) -> list[StreamSample]:  # type: ignore[override]
        """Draw `n` different samples uniformly at random."""
        return _convert(super().sample_uniform(n))

    def get_all(self) -> list[StreamSample]:  # type: ignore[override]
        """Return all samples, oldest first."""
        return _convert(super().get_all())

    def filter(self, predicate: SampleFilter | Callable[[Any], bool]) -> list[StreamSample]:  # type: ignore[override]
        """Return the samples for which a filter matches or a function returns True, oldest first."""
        if isinstance(predicate, SampleFilter):
            return _convert(super().filter(predicate))
        return [sample for sample in self.get_all() if predicate(sample)]

    def filter_by_difficulty(
        self, min_difficulty: float = 0.0, max_difficulty: float = 1.0
    ) -> list[StreamSample]:
        """Return the samples whose difficulty is within the given bounds, inclusive, oldest first."""
        return self.filter(SampleFilter(min_difficulty=min_difficulty, max_difficulty=max_difficulty))

    def filter_by_success(self, success: bool) -> list[StreamSample]:
        """Return the samples from successful episodes, or those from failed episodes if `success` is False.

        Samples are in the order in which they were added.
        """
        return self.filter(SampleFilter(success=success))


def _convert(samples: Sequence[Sample]) -> list[StreamSample]:
    return [StreamSample.from_sample(sample) for sample in samples]


__all__ = ["BufferEvictionPolicy", "BufferSnapshot", "ReplayBuffer", "ReplayBufferConfig", "SampleFilter"]
