"""What OpenEnv's messages say: one session's requests, and the replies to them, as JSON text.

Connections, limits and time are in `server`. A client's mistake is a reply and never an exception.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from phalanx.text.env import MAX_SEED, TextEnvironment, TextInfo, validate_seed

MOST_EPISODE_ID = 255
"""Characters of the longest episode id that OpenEnv's models take."""

_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": False}
_METADATA = {"type": "object", "additionalProperties": True, "description": "Anything besides."}
SCHEMAS: dict[str, Any] = {
    "action": _SCHEMA
    | {
        "title": "TextAction",
        "properties": {
            "answer": {"type": "string", "description": "A model's answer: the move, or all it said."},
            "metadata": _METADATA,
        },
        "required": ["answer"],
    },
    "observation": _SCHEMA
    | {
        "title": "TextObservation",
        "properties": {
            "text": {"type": "string", "description": "What the model reads next."},
            "error": {
                "type": "string",
                "description": "Error message; empty if the answer was valid.",
            },
            "solved": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "done": {"type": "boolean"},
            "metadata": _METADATA,
        },
        "required": ["text"],
    },
    "state": {
        "type": "object",
        "title": "State",
        "additionalProperties": True,
        "properties": {
            "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "step_count": {"type": "integer", "minimum": 0},
            "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    },
}
"""The JSON schemas of actions, observations and states."""


class ClientError(ValueError):
    """A request that cannot be answered, with OpenEnv's code for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session:
    """One client's environment, and where its episode stands."""

    def __init__(self, environment: TextEnvironment) -> None:
        self._environment = environment
        self._episode_id: str | None = None
        self._seed: int | None = None
        self._steps = 0

    def reply(self, message: str) -> str | None:
        """The reply to a message; None where the client says goodbye."""
        try:
            kind, data = parsed(message)
            if kind == "close":
                return None
            if kind == "state":
                return _reply("state", self.state())
            return _reply("observation", self.reset(data) if kind == "reset" else self.step(data))
        except ClientError as error:
            return error_reply(error.code, str(error))
        except OSError as error:  # an environment that is on another server, which is gone
            return error_reply("EXECUTION_ERROR", str(error))

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Start the episode of a `seed`, or of one that is drawn; other arguments do not matter."""
        seed, name = data.get("seed"), data.get("episode_id")
        if name is not None and not (isinstance(name, str) and len(name) <= MOST_EPISODE_ID):
            raise ClientError("VALIDATION_ERROR", f"episode_id has at most {MOST_EPISODE_ID} characters")
        try:
            self._seed = secrets.randbelow(MAX_SEED + 1) if seed is None else validate_seed(seed)
        except ValueError as error:
            raise ClientError("VALIDATION_ERROR", str(error)) from error
        self._episode_id, self._steps = name, 0
        text = self._environment.reset(self._seed)
        return _observation(text, TextInfo(), None, False, {"seed": self._seed})

    def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Take the `answer`."""
        answer = data.get("answer")
        # Clients that read a model's words as JSON make a number of an answer such as `3`.
        if isinstance(answer, int) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str):
            raise ClientError("VALIDATION_ERROR", 'an action is {"answer": "..."}, with a text')
        if unknown := sorted(set(data) - {"answer", "metadata"}):
            raise ClientError("VALIDATION_ERROR", f"an action has no field {unknown[0][:40]!r}")
        if self._seed is None:
            raise ClientError("EXECUTION_ERROR", "there is no episode yet; send a reset")
        step = self._environment.step(answer)
        self._steps += 1
        return _observation(step.text, step.info, step.reward, step.done, {})

    def state(self) -> dict[str, Any]:
        """Which episode it is, and how many answers it has had."""
        return {"episode_id": self._episode_id, "step_count": self._steps, "seed": self._seed}

    def close(self) -> None:
        """Let go of the environment."""
        self._environment.close()


def parsed(message: str) -> tuple[str, dict[str, Any]]:
    """The type and the data of a message."""
    try:
        content = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise ClientError("INVALID_JSON", "a message is a JSON object") from error
    if not isinstance(content, dict):
        raise ClientError("INVALID_JSON", "a message is a JSON object")
    kind, data = content.get("type"), content.get("data", {})
    if kind not in ("reset", "step", "state", "close"):
        raise ClientError("UNKNOWN_TYPE", f"there are reset, step, state and close, got {str(kind)[:40]!r}")
    if not isinstance(data, dict):
        raise ClientError("VALIDATION_ERROR", "data is an object")
    return kind, data


def error_reply(code: str, message: str) -> str:
    """What tells a client of an error."""
    return _reply("error", {"message": message, "code": code})


def _reply(kind: str, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def _observation(
    text: str, info: TextInfo, reward: float | None, done: bool, metadata: dict[str, Any]
) -> dict[str, Any]:
    """An observation as OpenEnv's server writes it: reward and done beside, metadata inside and beside."""
    seen = {
        "text": text,
        "error": info.error,
        "solved": info.solved,
        "truncated": info.truncated,
        "metadata": metadata,
    }
    found: dict[str, Any] = {"observation": seen, "reward": reward, "done": done}
    return found | {"metadata": metadata} if metadata else found
