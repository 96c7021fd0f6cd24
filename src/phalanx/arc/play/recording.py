"""Played episodes as demonstrations: the samples of an `EnvironmentStream`, and a file that keeps them.

Playing is in `session`; samples are read by `phalanx.data.read_samples` and `phalanx train sft`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.arc.episode_tokens import ArcTokenizer, GridName
from phalanx.arc.play.session import PlayError, PlaySession
from phalanx.data.samples import Sample, parse_sample
from phalanx.io.atomic import atomic_write
from phalanx.lm.episode_stream import EnvironmentStream


def episode_samples(session: PlaySession, seed: int, tokenizer: ArcTokenizer) -> list[Sample]:
    """The samples of an ended episode, one for each step.

    An `EnvironmentStream` plays the recorded actions again from `seed`, so they are its samples; that the
    replay went as the play did is checked.
    """
    if not session.ended:
        raise PlayError("only an episode that has ended is a demonstration: s submits it")
    longest = session.config.episode.max_episode_steps
    stream = EnvironmentStream(
        session.environment,
        _next_recorded,
        agent_state=(_padded(session.actions, longest), jnp.int32(0)),
        tokenizer=tokenizer,
        episodes=1,
        batch_size=1,
        seed=seed,
        dataset_id=dataset_of(session),
    )
    samples = list(stream)
    told = [(sample.info.reward, sample.info.success) for sample in samples if sample.info is not None]
    if told != [(reward, session.solved) for reward in session.rewards]:
        raise RuntimeError(f"the replay of {session.puzzle.task.id} from seed {seed} differs from the play")
    return samples


def dataset_of(session: PlaySession) -> str:
    """What the samples of a task are part of."""
    return f"play-{session.puzzle.task.id}"


def grids_named(text: str) -> tuple[GridName, ...]:
    """Names of grids with commas between them.

    >>> grids_named("working, target")
    ('working', 'target')
    """
    known: dict[str, GridName] = {name: name for name in get_args(GridName)}
    names = [name.strip() for name in text.split(",")]
    if strange := [name for name in names if name not in known]:
        raise ValueError(f"a saved step can show {', '.join(known)}; got {strange[0]!r}")
    return tuple(known[name] for name in names)


def _next_recorded(states: Any, recorded: tuple[PyTree, jax.Array], key: Any) -> tuple[PyTree, Any]:
    """An agent that does what was done: its state is the recorded actions and how many are done."""
    actions, done = recorded
    return jax.tree.map(lambda leaf: leaf[done][None], actions), (actions, done + 1)


def _padded(actions: Sequence[PyTree], steps: int) -> PyTree:
    """Actions as one, `[steps, ...]`: of one length for all episodes, so that replaying compiles once."""
    return jax.tree.map(
        lambda *leaves: np.concatenate(
            [np.stack(leaves), np.zeros((steps - len(leaves), *leaves[0].shape), leaves[0].dtype)]
        ),
        *actions,
    )


@dataclasses.dataclass(frozen=True)
class EpisodeFile:
    """A `.jsonl` file of samples that grows by whole episodes; what is in it stays as it is."""

    path: Path
    grids: tuple[GridName, ...] = ("input", "working")
    """What a sample shows of a state."""

    def check(self) -> int:
        """How many episodes are there; a ValueError or an OSError if nothing could be saved."""
        if self.path.suffix != ".jsonl":
            raise ValueError(f"demonstrations are written as .jsonl, not {self.path.name!r}")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; give the name of a file")
        return len(_episodes(self.path, self._bytes()))

    def append(self, session: PlaySession) -> list[Sample]:
        """Add an ended episode: old lines and new ones go to a file that takes the old one's place."""
        there = self._bytes()
        taken = _episodes(self.path, there)
        seed = session.seed
        while f"{dataset_of(session)}_{seed}_0" in taken:
            seed += 1
        tokenizer = ArcTokenizer(session.config.action.selection_format, self.grids)
        samples = episode_samples(session, seed, tokenizer)
        with atomic_write(self.path) as file:
            file.write(there)
            if there and not there.endswith(b"\n"):
                file.write(b"\n")
            for sample in samples:
                file.write(json.dumps(sample.to_dict(), ensure_ascii=False).encode() + b"\n")
        return samples

    def _bytes(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""


def _episodes(path: Path, lines: bytes) -> set[str | None]:
    """The episodes of a file of samples; a line that is none is refused, for the file is someone else's."""
    found: set[str | None] = set()
    for number, line in enumerate(lines.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            info = parse_sample(line, f"{path}:{number}").info
        except ValueError as error:
            raise ValueError(f"{error}; choose another file") from error
        found.add(None if info is None else info.episode_id)
    return found
