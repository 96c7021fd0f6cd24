"""Drop-in replacement for `jaxarc.envs`, which exports the public names of all its modules."""

from phalanx.compat.jaxarc.envs.config import *  # noqa: F403
from phalanx.compat.jaxarc.envs.functional import *  # noqa: F403
from phalanx.compat.jaxarc.envs.structured_actions import *  # noqa: F403
