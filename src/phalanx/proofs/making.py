"""What `phalanx.make("proofs-v1", ...)` makes: a config, a knowledge base, an environment.

Ids and versions are in `phalanx.registry`, the environment itself in `search.environment`.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.kg.knowledge_base import DataHandler
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.registry import config_from


def make_proofs(
    config: Any = None,
    *,
    data: DataHandler | str | Path | None = None,
    split: str = "train",
    max_episode_steps: int | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> ProofEnvironment:
    """The environment over the queries of a handler, a folder or the generated families.

    `settings` change fields of the `ProofConfig`, or of the one in a file: `padding_states=32`,
    `queries={"negative_ratio": 0}`. `max_episode_steps` is the config's `max_depth`.
    """
    changed = config_from(ProofConfig, config, overrides, settings)
    if max_episode_steps is not None:
        changed = config_from(ProofConfig, changed, settings={"max_depth": max_episode_steps})
    if data is None:
        data = _generated_data()
    elif not isinstance(data, DataHandler):
        data = DataHandler(path=data)
    return ProofEnvironment.from_data(changed, data, split)


@functools.cache
def _generated_data() -> DataHandler:
    return DataHandler()
