"""Records episodes of a trained policy for the report: states, actions, their probabilities and values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from phalanx.core.environment import Environment, is_done
from phalanx.core.episodes import draw_episodes
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationConfig, sampled_episodes
from phalanx.core.spec import EnvSpec, TaskSource
from phalanx.core.vector import batch_metrics, host_rows
from phalanx.nn.distributions import DiagonalGaussian, Factored
from phalanx.nn.policy_network import PolicyNetwork

NUM_EPISODES = 60
NUM_ACTIONS = 5
"""Number of actions whose probabilities are recorded in every step."""
MAX_STEPS = 100
"""Maximum number of recorded steps per episode."""
MAX_CHARACTERS = 4_000_000
"""Maximum number of characters of all images and grids. Longer episodes are cut off."""
_MAX_LABEL_LENGTH = 300


def record_policy_episodes(
    spec: EnvSpec,
    tasks: TaskSource,
    network: PolicyNetwork,
    settings: EvaluationConfig,
    *,
    has_values: bool = True,
) -> dict[str, Any] | None:
    """Run up to `NUM_EPISODES` episodes of a policy's evaluation again, with greedy actions, and record them.

    The episodes are evenly spaced after sorting all episodes by group, so their results do not affect the
    selection.

    Args:
        spec: Spec of the environment.
        tasks: Task source of the run.
        network: Policy network.
        settings: Settings of the evaluation.
        has_values: Record the values that the network estimates.

    Returns:
        JSON values without the fields `format` and `update`, as described in
        `docs/reference/file-formats.md`. None if the environment cannot be rendered or there are no episodes.
    """
    if spec.evaluation.episodes is not None:
        found = spec.evaluation.episodes(tasks, settings)
        total = len(jax.tree.leaves(found.starts)[0])
    else:
        found = sampled_episodes(tasks.held_out(settings), EpisodeEvaluationConfig(num_episodes=NUM_EPISODES))
        total = NUM_EPISODES
    environment = found.environment
    if not environment.render_modes or not total:
        return None
    rows = _select(found.groups or [""] * total)
    starts = jax.tree.map(lambda leaf: leaf[rows], found.starts)
    states, observations = eqx.filter_jit(found.reset)(environment, starts)
    count = len(rows)
    returns, lengths = np.zeros(count), np.zeros(count, int)
    done = np.asarray(is_done(states))
    seen: list[list[Any]] = [[state] for state in host_rows(states, _unchanged)]
    decisions: list[list[Any]] = [[] for _ in rows]
    metrics: Mapping[str, Any] = {}
    for step in range(environment.max_episode_steps):
        if done.all():
            break
        states, observations, rewards, ended, metrics, decision = _step(
            environment, network, states, observations
        )
        running, lengths, returns = ~done, lengths + ~done, returns + np.where(done, 0, rewards)
        done = np.asarray(ended)
        if step < MAX_STEPS or done[running].any():
            for row, (state, decided) in enumerate(host_rows((states, decision), _unchanged)):
                if running[row] and step < MAX_STEPS:
                    decisions[row].append(decided)
                    seen[row].append(state)
                elif running[row] and done[row]:
                    seen[row][-1] = state  # the end of a longer episode
    success = metrics.get("success_mask")
    solved = None if success is None else np.asarray(success)
    describe = spec.text(environment).describe if spec.text is not None else _describe
    episodes = []
    for row, number in enumerate(rows.tolist()):
        history = [jax.tree.map(jnp.asarray, state) for state in seen[row]]
        frames = _draw(spec, environment, history, MAX_CHARACTERS // count)
        steps = [
            _decision(decided, state, describe) | ({} if has_values else {"value": None})
            for decided, state in zip(decisions[row][: max(len(frames) - 1, 0)], history, strict=False)
        ]
        episodes.append(
            {
                "number": number,
                "task": "" if spec.task_name is None else spec.task_name(environment, history[0])[:120],
                "group": found.groups[number][:120] if found.groups else None,
                "solved": None if solved is None else bool(solved[row]),
                "total_reward": _finite(returns[row]),
                "num_steps": int(lengths[row]),
                "frames": frames,
                "decisions": steps,
            }
        )
    is_evaluated = spec.evaluation.episodes is not None
    return {"num_evaluated": total if is_evaluated else None, "episodes": episodes}


def _select(groups: Sequence[str]) -> Int[np.ndarray, " episodes"]:
    """Return the indices of at most `NUM_EPISODES` episodes, in proportion to the sizes of the groups."""
    order = np.argsort(np.unique(groups, return_inverse=True)[1], kind="stable")
    count = min(NUM_EPISODES, len(order))
    return np.sort(order[(2 * np.arange(count) + 1) * len(order) // (2 * count)])


@eqx.filter_jit
def _step(environment: Environment, network: PolicyNetwork, states: PyTree, observations: PyTree) -> Any:
    def decide(observation: PyTree) -> tuple[Any, ...]:
        distribution, value = network(observation)
        action = distribution.mode()
        return action, distribution.log_prob(action), value, *_alternatives(distribution)

    decision = jax.vmap(decide)(observations)
    states, observations, rewards, done, _ = environment.batch_step(states, decision[0])
    return states, observations, rewards, done, batch_metrics(environment, states), decision


def _alternatives(distribution: Any) -> tuple[Any, dict[str, tuple[Array, Array]]]:
    """Return the most probable actions and their log-probabilities, and the mean and the standard deviation
    of each continuous field. Continuous fields are not part of these actions."""
    parts = distribution.parts if isinstance(distribution, Factored) else {"": distribution}
    normals = {name: part for name, part in parts.items() if isinstance(part, DiagonalGaussian)}
    if normals:
        distribution = Factored({name: parts[name] for name in parts.keys() - normals}, dict)
    has_top_k = len(normals) < len(parts) and hasattr(distribution, "top_k")
    top = distribution.top_k(NUM_ACTIONS) if has_top_k else None
    return top, {name: (part.mean, jnp.exp(part.log_std)) for name, part in normals.items()}


def _decision(decided: tuple[Any, ...], state: Any, describe: Any) -> dict[str, Any]:
    action, log_prob, value, top, normals = decided
    labels: list[str] = []
    probabilities: list[float | None] = []
    if top is not None:
        candidates, log_probs = top
        describe_candidate = _describe if normals else describe
        for row in np.flatnonzero(np.isfinite(log_probs)).tolist():
            candidate = jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row]), candidates)
            labels.append(describe_candidate(candidate, state)[:_MAX_LABEL_LENGTH])
            probabilities.append(_finite(np.exp(log_probs[row])))
    chosen = describe(jax.tree.map(jnp.asarray, action), state)[:_MAX_LABEL_LENGTH]
    if normals or chosen not in labels:
        labels.append(chosen)
        probabilities.append(None if normals else _finite(np.exp(log_prob)))
    return {
        "actions": labels,
        "probabilities": probabilities,
        "chosen": labels.index(chosen),
        "normals": [
            {"name": f"{name}[{index}]", "mean": _finite(mean), "deviation": _finite(deviation)}
            for name, parts in normals.items()
            for index, (mean, deviation) in enumerate(zip(*map(np.ravel, parts), strict=True))
        ][:16],
        "value": _finite(value),
    }


def _describe(action: Any, state: Any) -> str:
    """Format an action of an environment without a text interface: its number, or its fields by name."""
    fields = vars(action) if dataclasses.is_dataclass(action) else action
    if not isinstance(fields, dict):
        return np.array2string(np.asarray(action), precision=3, separator=", ", threshold=20)
    return ", ".join(f"{name} {_describe(value, state)}" for name, value in fields.items())


def _draw(spec: EnvSpec, environment: Environment, states: Sequence[Any], max_characters: int) -> list[Any]:
    """Return one image (SVG) or dictionary of grids (rows of digits) per state.

    If they exceed `max_characters`, states before the last one are left out, or all states if the last one
    does not fit.
    """
    if spec.grids is not None:
        grids = [spec.grids(environment, state) for state in states]
        frames: list[Any] = [
            {name: list(map(_digits, grid)) for name, grid in each.items()} for each in grids
        ]
        sizes = [sum(np.size(grid) for grid in each.values()) for each in grids]
    else:
        record = {"initial_state": states[0], "step_states": list(states[1:]), "final_state": states[-1]}
        (drawn,) = (spec.episode_view or draw_episodes)(environment, [{"task_id": "", **record}])
        frames = [image._repr_svg_() for image in (drawn["initial_state"], *drawn["step_states"])]
        sizes = list(map(len, frames))
    if sizes[-1] > max_characters:
        return []
    fitting = int(np.searchsorted(np.cumsum(sizes[:-1]) + sizes[-1], max_characters, side="right"))
    return [*frames[:fitting], frames[-1]]


def _digits(row: Any) -> str:
    return "".join(str(cell) if cell >= 0 else "." for cell in np.asarray(row).tolist())


def _unchanged(leaf: Any) -> Any:
    return leaf


def _finite(value: Any) -> float | None:
    number = float(value)
    return round(number, 6) if np.isfinite(number) else None
