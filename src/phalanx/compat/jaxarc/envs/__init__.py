"""Drop-in replacement for `jaxarc.envs`, with the public names of all its submodules."""

from phalanx.compat.jaxarc.envs.config import *  # noqa: F403
from phalanx.compat.jaxarc.envs.functional import *  # noqa: F403
from phalanx.compat.jaxarc.envs.structured_actions import *  # noqa: F403
