"""What can go wrong between a client and a puzzle server; each kind says whether trying again can help.

Lost connections, time-outs and full servers are `OSError`s, wrong names and commands are `ValueError`s.
"""


class ArcadeConnectionError(ConnectionError):
    """The connection is of no more use; a new one may be. What was being played is gone."""


class ServerFullError(ArcadeConnectionError):
    """The server has as many connections as it takes."""


class ReplyTimeoutError(ArcadeConnectionError):
    """The server did not answer in time."""


class GarbledReplyError(ArcadeConnectionError):
    """The server sent what no reply looks like."""


class ArcadeUnavailableError(ConnectionError):
    """Every attempt to connect failed; the last one is the cause."""


class UnknownGameError(ValueError):
    """The server has no game of this name."""


class StartError(RuntimeError):
    """The server knows the game and yet did not start it."""


class CommandError(ValueError):
    """A text that is no single command for a game in progress; nothing was sent."""


class NoPuzzleError(RuntimeError):
    """A command for a game in progress, when none is."""
