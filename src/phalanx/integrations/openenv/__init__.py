"""Text environments behind OpenEnv's protocol: `OpenEnvServer`, and `openenv_app` that it serves.

Written against `openenv` 0.10, of which nothing is imported: a server needs `starlette`, `uvicorn` and
`websockets` (`pip install "phalanx[serve]"`), and OpenEnv's own clients connect to it.
"""

from phalanx.integrations.openenv.protocol import Session
from phalanx.integrations.openenv.server import OpenEnvServer, ServerLimits, openenv_app

__all__ = ["OpenEnvServer", "ServerLimits", "Session", "openenv_app"]
