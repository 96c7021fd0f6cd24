"""Runs episodes with OpenEnv's own client: cases as JSON on stdin, transcripts on stdout.

It runs with the Python of OpenEnv's virtual environment, where Phalanx is not installed.
"""

import json
import sys
import urllib.request
from typing import Any

from openenv import GenericEnvClient
from openenv.core.env_server.types import EnvironmentMetadata, HealthResponse, SchemaResponse, StepResponse


def episode(case: dict[str, Any]) -> dict[str, Any]:
    with GenericEnvClient(base_url=case["url"]).sync() as client:
        first = client.reset(seed=case["seed"], episode_id="one")
        steps = [client.step({"answer": answer}) for answer in case["answers"]]
        try:
            client.step({"move": 1})
            error = ""
        except RuntimeError as rejected:
            error = str(rejected)
        return {
            "text": first.observation["text"],
            "seed": first.metadata["seed"],
            "steps": [[step.observation["text"], step.reward, step.done] for step in steps],
            "solved": steps[-1].observation["solved"],
            "state": client.state(),
            "error": error,
        }


def fetch(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


cases = json.load(sys.stdin)
url = cases[0]["url"]
# OpenEnv's models forbid unknown fields, so they validate the routes.
HealthResponse.model_validate(fetch(url, "/health"))
EnvironmentMetadata.model_validate(fetch(url, "/metadata"))
SchemaResponse.model_validate(fetch(url, "/schema"))
StepResponse.model_validate(
    fetch(url, "/step", {"action": {"answer": cases[0]["answers"][0]}, "seed": cases[0]["seed"]})
)
print(json.dumps([episode(case) for case in cases]))
