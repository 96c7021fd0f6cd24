"""`jaxarc.utils.logging`: the experiment logger of the batched-logging document."""

from typing import Any

import numpy as np

from phalanx.logging.experiment_logger import ExperimentLogger as _ExperimentLogger
from phalanx.logging.handlers.console import RichHandler
from phalanx.logging.handlers.file import FileHandler
from phalanx.logging.handlers.svg import SVGHandler
from phalanx.logging.handlers.wandb import WandbHandler

__all__ = [
    "ExperimentLogger",
    "FileHandler",
    "MinimalAsyncLogger",
    "RichHandler",
    "SVGHandler",
    "WandbHandler",
]


class ExperimentLogger(_ExperimentLogger):
    """An experiment logger that samples environments with `jax.random.choice`, as in the document."""

    def _sample_rows(self, update_step: int, num_envs: int, num_samples: int, finished: Any) -> Any:
        import jax

        key = jax.random.PRNGKey(np.uint32(update_step & 0xFFFFFFFF))
        if finished is None:
            if num_samples >= num_envs:
                return np.arange(num_envs)
            return np.asarray(jax.random.choice(key, num_envs, shape=(num_samples,), replace=False))
        order = np.asarray(jax.random.permutation(key, num_envs))
        return order[np.argsort(~finished[order], kind="stable")][:num_samples]


MinimalAsyncLogger = ExperimentLogger
"""JaxARC's name. Logging is synchronous; an update that is not logged costs nothing."""
