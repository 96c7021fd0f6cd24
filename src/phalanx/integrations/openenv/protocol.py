"""Messages of the OpenEnv protocol: the JSON requests of a session and the replies to them.

An invalid request results in an error reply, not in an exception.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from phalanx.text.env import MAX_SEED, TextEnvironment, TextInfo, validate_seed

MAX_EPISODE_ID_CHARS = 255
"""Maximum number of characters in an episode id. OpenEnv's Pydantic models have the same limit."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TextAction(_Model):
    """Action that a client sends."""

    answer: str
    """Answer of the model: either the move alone or the complete output."""
    metadata: dict[str, Any] = {}
    """Additional data, which is ignored."""


class TextObservation(_Model):
    """Observation that a client receives."""

    text: str
    """Text for the model: the prompt after a reset, otherwise the outcome of the answer and the new state."""
    error: str = ""
    """Error message. Empty if the answer was valid."""
    solved: bool = False
    """True if the episode has ended successfully."""
    truncated: bool = False
    """True if the episode has ended because of a limit on the number of answers."""
    reward: float | None = None
    """Reward for the answer. None after a reset."""
    done: bool = False
    """True if the episode has ended."""
    metadata: dict[str, Any] = {}
    """After a reset, `{"seed": ...}` with the seed of the episode. Otherwise empty."""


class State(BaseModel):
    """State of a session."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    episode_id: str | None = None
    """Id that the client chose for the episode."""
    step_count: int = Field(0, ge=0)
    """Number of answers in the episode so far."""
    seed: int | None = None
    """Seed of the episode. None before the first reset."""


SCHEMAS: dict[str, Any] = {
    "action": TextAction.model_json_schema(),
    "observation": TextObservation.model_json_schema(),
    "state": State.model_json_schema(),
}
"""JSON schemas of actions, observations and states."""


class ClientError(ValueError):
    """Raised for an invalid request. `code` is OpenEnv's error code."""

    def __init__(self, message: str, code: str = "VALIDATION_ERROR") -> None:
        super().__init__(message)
        self.code = code


class Session:
    """A client's environment and its current episode."""

    def __init__(self, environment: TextEnvironment) -> None:
        self._environment = environment
        self._episode_id: str | None = None
        self._seed: int | None = None
        self._steps = 0

    def reply(self, message: str) -> str | None:
        """Process a message and return the reply. Return None if the client closes the session."""
        try:
            content = parse_object(message, "a message must be a JSON object")
            kind, data = content.get("type"), content.get("data", {})
            if kind not in ("reset", "step", "state", "close"):
                given = str(kind)[:40]
                raise ClientError(f"type must be reset, step, state or close, got {given!r}", "UNKNOWN_TYPE")
            if not isinstance(data, dict):
                raise ClientError("data must be an object")
            if kind == "close":
                return None
            if kind == "state":
                return _reply("state", self.state())
            return _reply("observation", self.reset(data) if kind == "reset" else self.step(data))
        except ClientError as error:
            return error_reply(error.code, str(error))
        except OSError as error:  # the connection to an external server failed
            return error_reply("EXECUTION_ERROR", str(error))

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Start an episode, and return the first observation.

        The seed is `data["seed"]`, or a random seed if there is none. The `episode_id` in `data` becomes part
        of the session's state. All other fields are ignored.
        """
        seed, name = data.get("seed"), data.get("episode_id")
        if name is not None and not (isinstance(name, str) and len(name) <= MAX_EPISODE_ID_CHARS):
            raise ClientError(f"episode_id must be text of at most {MAX_EPISODE_ID_CHARS} characters")
        try:
            self._seed = secrets.randbelow(MAX_SEED + 1) if seed is None else validate_seed(seed)
        except ValueError as error:
            raise ClientError(str(error)) from error
        self._episode_id, self._steps = name, 0
        text = self._environment.reset(self._seed)
        return _observation(text, TextInfo(), None, False, {"seed": self._seed})

    def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Pass the `answer` in `data` to the environment and return the observation, reward and `done`."""
        answer = data.get("answer")
        # Clients that parse the model's output as JSON send an answer such as `3` as a number.
        if isinstance(answer, int) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str):
            raise ClientError('an action must be {"answer": "..."}, with a string')
        if unknown := sorted(set(data) - {"answer", "metadata"}):
            raise ClientError(f"an action has no field {unknown[0][:40]!r}")
        if self._seed is None:
            raise ClientError("there is no episode yet; send a reset", "EXECUTION_ERROR")
        step = self._environment.step(answer)
        self._steps += 1
        return _observation(step.text, step.info, step.reward, step.done, {})

    def state(self) -> dict[str, Any]:
        """Return the id and the seed of the episode, and the number of answers so far."""
        return {"episode_id": self._episode_id, "step_count": self._steps, "seed": self._seed}

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


def parse_object(content: str | bytes, error_message: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `ClientError` with `error_message` if the content is not a JSON object."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ClientError(error_message, "INVALID_JSON") from error
    if not isinstance(parsed, dict):
        raise ClientError(error_message, "INVALID_JSON")
    return parsed


def error_reply(code: str, message: str) -> str:
    """Return an error reply as JSON."""
    return _reply("error", {"message": message, "code": code})


def _reply(kind: str, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def _observation(
    text: str, info: TextInfo, reward: float | None, done: bool, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Format an observation as OpenEnv's server does.

    `metadata` is part of the observation. If it is not empty, it is also added to the top level of the
    result.
    """
    observation = {
        "text": text,
        "error": info.error,
        "solved": info.solved,
        "truncated": info.truncated,
        "metadata": metadata,
    }
    message: dict[str, Any] = {"observation": observation, "reward": reward, "done": done}
    return message | {"metadata": metadata} if metadata else message
