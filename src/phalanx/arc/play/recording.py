"""Converts played episodes to samples and saves them to a file."""

import dataclasses
from pathlib import Path
from typing import get_args

import jax
import numpy as np

from phalanx.arc.episode_tokens import ArcTokenizer, GridName
from phalanx.arc.play.session import PlayError, PlaySession
from phalanx.data.episode_tokens import EpisodeOutcomes, create_episode_samples
from phalanx.data.samples import Sample, load_samples, save_samples


def episode_samples(session: PlaySession, seed: int, tokenizer: ArcTokenizer) -> list[Sample]:
    """Convert a finished episode to samples, one per step. The samples have the same format as those of an
    `EnvironmentStream`.

    Args:
        session: Session that contains the episode.
        seed: Seed of the episode, which is part of the sample ids.
        tokenizer: Tokenizer that encodes the steps.
    """
    if not session.ended:
        raise PlayError("only an episode that has ended can be saved; s submits the grid")
    views = [jax.device_get(_view(tokenizer, state)) for state in session.states[:-1]]
    stacked_views, actions = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for parts in (views, session.actions)
    )
    first_view = jax.tree.map(lambda leaf: leaf[:1], stacked_views)
    outcomes = EpisodeOutcomes(
        np.array([session.solved]), tokenizer.difficulty(first_view), np.array([not session.state.truncated])
    )
    return create_episode_samples(
        [f"{dataset_id(session)}_{seed}_0"],
        np.array([len(views)]),
        tokenizer.encode(stacked_views, actions),
        np.array(session.rewards),
        outcomes,
        dataset_id=dataset_id(session),
    )


_view = jax.jit(ArcTokenizer.view, static_argnums=0)


def dataset_id(session: PlaySession) -> str:
    """Return the dataset id for the samples of a session: the task id with the prefix "play-"."""
    return f"play-{session.task.task.id}"


def parse_grid_names(text: str) -> tuple[GridName, ...]:
    """Parse a comma-separated list of grid names.

    >>> parse_grid_names("working, target")
    ('working', 'target')
    """
    known: dict[str, GridName] = {name: name for name in get_args(GridName)}
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"grids must be some of {', '.join(known)}, got {unknown[0]!r}")
    return tuple(known[name] for name in names)


@dataclasses.dataclass(frozen=True)
class EpisodeSampleFile:
    """A `.jsonl` file of samples to which episodes can be appended."""

    path: Path
    grids: tuple[GridName, ...] = ("input", "working")
    """Names of the grids that each sample contains."""

    def check(self) -> int:
        """Check that episodes can be appended, and return the number of episodes that the file contains.

        If the file does not exist, the number is 0.

        Raises:
            ValueError: If the file does not end in `.jsonl` or contains anything but samples.
            OSError: If the file cannot be written, because its folder does not exist or because the path is
                itself a folder.
        """
        if self.path.suffix != ".jsonl":
            raise ValueError(f"the file must end in .jsonl, got {self.path.name!r}")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; choose a file name")
        return len(_episode_ids(self._load()))

    def append(self, session: PlaySession) -> list[Sample]:
        """Append an episode that has ended, and return its samples. The file is replaced atomically."""
        recorded = self._load()
        taken, seed = _episode_ids(recorded), 0
        while f"{dataset_id(session)}_{seed}_0" in taken:
            seed += 1
        tokenizer = ArcTokenizer(session.config.action.selection_format, self.grids)
        samples = episode_samples(session, seed, tokenizer)
        save_samples(self.path, [*recorded, *samples])
        return samples

    def _load(self) -> list[Sample]:
        """Return the samples in the file. Raises `ValueError` if a line is not a sample."""
        if not self.path.exists():
            return []
        try:
            return load_samples(self.path)
        except ValueError as error:
            raise ValueError(f"{error}; choose another file") from error


def _episode_ids(samples: list[Sample]) -> set[str | None]:
    return {None if sample.info is None else sample.info.episode_id for sample in samples}
