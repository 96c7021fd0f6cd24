"""Digests of recorded episodes by environment id, which detect changes in behavior.

`python -m tests.helpers.recorded_episodes` records ids that have no digest yet. It never overwrites a digest:
a change in behavior needs a new version and therefore a new id.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.arc import ArcTask
from phalanx.core.autoreset import AutoReset
from phalanx.core.environment import Environment
from phalanx.core.spaces import Space, masked_size, replace_choice
from phalanx.kg import KnowledgeBase, parse_atom, parse_rule
from phalanx.proofs import ProofEnvironment
from phalanx.registry import RegisteredEnvironment, make, registered_environments

RECORDED = Path(__file__).parents[1] / "core" / "recorded_episodes.json"
COMMAND = "python -m tests.helpers.recorded_episodes"
STEPS, BATCH = 64, 8
ENGINES = {"arc": ("xla", "native"), "proofs": ("xla", "native")}
"""Backends of environments that have two; both must give the same episodes."""

_CORNERS = {
    "train": [
        {"input": [[1, 0, 2], [0, 3, 0]], "output": [[1, 0, 1], [0, 3, 0]]},
        {"input": [[4, 4], [0, 5]], "output": [[4, 4, 4], [0, 5, 5]]},
    ],
    "test": [{"input": [[6, 0], [0, 0], [0, 7]], "output": [[6, 0], [0, 6], [7, 7]]}],
}
_FLAT = {"train": [{"input": [[0, 8]], "output": [[8, 8]]}], "test": [{"input": [[9]], "output": [[0]]}]}
_ARC = {
    "tasks": (ArcTask.from_dict(_CORNERS, "corners"), ArcTask.from_dict(_FLAT, "flat")),
    "dataset": {"max_grid_height": 3, "max_grid_width": 4},
}
_FAMILY = KnowledgeBase(
    train=tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "parent(c,d)", "parent(a,e)", "parent(e,f)"))),
    valid=tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(b,d)", "grandparent(a,f)"))),
    test=(),
    rules=(
        parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)"),
        parse_rule("r1:1.0:parent(x,y) -> ancestor(x,y)"),
        parse_rule("r2:1.0:parent(x,y), ancestor(y,z) -> grandparent(x,z)"),
    ),
)

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "arc": {
        "boxes in training": {
            **_ARC,
            "action": {"selection_format": "bbox"},
            "episode": {"max_episode_steps": 9},
        },
        "masks in evaluation": {
            **_ARC,
            "action": {"selection_format": "mask"},
            "episode": {"max_episode_steps": 9, "mode": "evaluation", "require_submit": True},
            "observation": {"selected": True, "clipboard": True, "num_demonstrations": 1, "scalars": True},
        },
    },
    "proofs": {
        "families": {
            "knowledge_base": _FAMILY,
            "split": "valid",
            "max_actions": 5,
            "max_goals": 3,
            "max_episode_steps": 4,
        }
    },
}
"""Settings of recorded episodes by name. Environments that are not listed use their defaults."""


def own_environments() -> list[RegisteredEnvironment]:
    """List the environments that Phalanx itself registers."""
    return [found for found in registered_environments() if str(found.spec).startswith("phalanx.")]


def cases_of(found: RegisteredEnvironment) -> dict[str, dict[str, Any]]:
    return CASES.get(found.name, {"as it is": {}})


def digest(environment: Environment) -> str:
    """Compute the digest of everything that an agent receives in episodes with random legal actions."""
    key = jax.random.PRNGKey(7)
    seen = jax.device_get(_play(environment, key, *_draws(environment.action_space, key)))
    hashed = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(seen):
        # Backends may round differently, so floats are rounded to four digits.
        array = np.round(leaf, 4) + 0.0 if np.issubdtype(leaf.dtype, np.floating) else leaf
        name = jax.tree_util.keystr(path)
        if isinstance(environment, ProofEnvironment):
            name, array = _first_layout(name, array)
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]


def _first_layout(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return a leaf of a proof observation with the name and shape it had when episodes were recorded."""
    if name.endswith(".goals"):
        return f"{name.removesuffix('goals')}sub_index", array[..., None, :, :]
    if name.endswith(".successors"):
        return f"{name.removesuffix('successors')}derived_sub_indices", array
    return name, array


@functools.partial(jax.jit, static_argnums=0)
def _draws(space: Space, key: jax.Array) -> tuple[Any, jax.Array]:
    """Draw actions for every step and environment, and preferences for the choices."""

    def draw(key: jax.Array) -> tuple[Any, jax.Array]:
        preferences = jax.random.uniform(jax.random.fold_in(key, 1), (masked_size(space) or 0,))
        return space.sample(key), preferences

    keys = jax.vmap(lambda key: jax.random.split(key, BATCH))(jax.random.split(key, STEPS))
    return jax.vmap(jax.vmap(draw))(keys)


@jax.jit
def _play(environment: Environment, key: jax.Array, actions: Any, preferences: jax.Array) -> Any:
    """Choose legal actions by space and mask, independently of `sample_action`."""
    layer = AutoReset(environment)
    state, first = layer.reset(jax.random.split(key, BATCH))

    def step(state: Any, inputs: tuple[Any, jax.Array]) -> tuple[Any, Any]:
        actions, preferences = inputs
        legal = jax.vmap(environment.legal_actions)(state.states)
        if legal is not None:
            chosen = jnp.argmax(jnp.where(legal, preferences, -1.0), axis=-1).astype(jnp.int32)
            actions = replace_choice(environment.action_space, actions, chosen)
        state, seen, rewards, done, info = layer.step(state, actions)
        return state, (legal, seen, rewards, done, info.terminated, info.truncated, info.final_observation)

    return first, jax.lax.scan(step, state, (actions, preferences))[1]


def read() -> dict[str, dict[str, str]]:
    """Return the recorded digests by id and case."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def record(
    environments: list[RegisteredEnvironment], known: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Compute the digests of all environments: recorded ones, which must match, and new ones."""
    digests_by_id = {
        found.id: {name: digest(make(found.id, **settings)) for name, settings in cases_of(found).items()}
        for found in environments
    }
    for id, digests in digests_by_id.items():
        if known.get(id, digests) != digests:
            raise SystemExit(
                f"{id} no longer plays the episodes recorded for it: register it under the next version, "
                "then record again"
            )
    return digests_by_id


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(own_environments(), read()), indent=2) + "\n")
    print(f"recorded in {RECORDED}")
