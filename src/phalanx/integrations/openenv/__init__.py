"""Server for text environments that implements OpenEnv's protocol.

The server is compatible with clients of `openenv` 0.10, but does not import `openenv`. It requires
`starlette`, `uvicorn` and `websockets` (`pip install "phalanx[serve]"`).
"""

from phalanx.integrations.openenv.protocol import Session
from phalanx.integrations.openenv.server import OpenEnvServer, ServerLimits, openenv_app

__all__ = ["OpenEnvServer", "ServerLimits", "Session", "openenv_app"]
