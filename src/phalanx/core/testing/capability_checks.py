"""Conformance checks for legal actions, text, rendering, experts, task names and environment versions."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from phalanx.core.environment import Environment
from phalanx.core.spaces import masked_choice, masked_size, replace_choice
from phalanx.core.testing import recorded_rollouts as rollouts
from phalanx.core.testing.recorded_rollouts import RandomRolloutRunner, conformance_check, describe_first
from phalanx.core.testing.tree_diff import differences, take, to_host

_INVALID_TEXTS = ("", "no such action !?")
_NUM_SAMPLED_STATES = 3
"""Number of states on which the text, rendering, expert and task-name checks run."""


@conformance_check("legal_actions must match step")
def check_legal_actions(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check that the mask has the right shape, that sampled actions are legal, and that illegal actions do
    not change the state."""
    environment = rollout.environment
    space = environment.action_space
    shape = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]), jax.random.PRNGKey(rollout.seed)
    )
    if shape is None:
        return None
    choices = masked_size(space)
    if choices is None or shape.shape != (choices,) or shape.dtype != np.bool_:
        actual = f"{shape.dtype}{list(shape.shape)}"
        expected = "None, because actions have no integer to mask" if choices is None else f"bool[{choices}]"
        return [f"the mask of one state is {actual}, expected {expected}"]
    _, steps = rollout.run()
    mask, first_batch_mask = to_host(_masks(environment, steps.before))
    running = ~np.asarray(rollout.observe(steps.before)[1])
    chosen = np.asarray(masked_choice(space, steps.actions))
    legal = np.take_along_axis(mask, np.clip(chosen, 0, choices - 1)[..., None], -1)[..., 0]
    found = describe_first(running & ~mask.any(-1), ": no action is legal, but the episode is not done")
    found += describe_first(running & ~legal, ": the sampled action is not legal")
    found += differences(take(mask, 0), first_batch_mask, "legal_actions of a batch")
    # The first illegal choice of each state, or the sampled one if all are legal.
    has_illegal = ~mask.all(-1)
    illegal = np.where(has_illegal, np.argmin(mask, -1), chosen).astype(chosen.dtype)
    actions = replace_choice(space, steps.actions, illegal)
    after = rollouts.by_vmap(environment, rollout.keys[1], steps.before, actions)[1].states
    before, new = map(rollout.comparable_states, (steps.before, after))
    for choice in np.unique(illegal[has_illegal]):
        where = has_illegal & (illegal == choice)
        found += differences(
            take(before, where), take(new, where), f"comparable_state after illegal {choice}"
        )
    return found


@jax.jit
def _masks(
    environment: Environment, states: PyTree
) -> tuple[Bool[Array, "steps batch choices"], Bool[Array, "batch choices"]]:
    """Return the masks of legal actions in recorded states.

    Returns:
        The masks of all states, computed state by state, and the masks of the first step's states, computed
        with a single call for the batch.
    """
    legal_actions: Any = environment.legal_actions
    return jax.vmap(jax.vmap(legal_actions))(states), legal_actions(take(states, 0))


@conformance_check("text must identify actions")
def check_text_round_trip(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check the text descriptions of states, and the conversion of actions to text and back.

    States must have non-empty descriptions. `parse_action` must invert `action_text` and reject invalid text.

    The batched methods must give the same results as the methods for one state.
    """
    environment = rollout.environment
    if not environment.has_text:
        return None
    found: list[str] = []
    for time, state, action in _sample_states(rollout):
        text = environment.observation_text(state)
        if not isinstance(text, str) or not text.strip():
            found.append(f"step {time}: observation_text is {text!r}")
        for choice in _legal_variants(environment, state, action):
            answer = environment.action_text(choice, state)
            try:
                parsed = environment.parse_action(answer, state)
            except ValueError as error:
                found.append(
                    f"step {time}: parse_action rejects {answer!r}, the text of a legal action: {error}"
                )
                continue
            found += differences(to_host(choice), to_host(parsed), f"step {time}: parse_action({answer!r})")
        for invalid_text in _INVALID_TEXTS:
            try:
                environment.parse_action(invalid_text, state)
            except ValueError:
                continue
            found.append(f"step {time}: parse_action accepts {invalid_text!r}")
        twice = jax.tree.map(lambda leaf: jax.device_put(np.stack([leaf, leaf])), state)
        if environment.observation_texts(twice) != [text, text]:
            found.append(f"step {time}: observation_texts differs from observation_text of its rows")
        texts = [environment.action_text(action, state), _INVALID_TEXTS[1]]
        actions, errors = environment.parse_actions(texts, twice)
        if actions is None or [bool(error) for error in errors] != [False, True]:
            found.append(f"step {time}: parse_actions and parse_action accept different text")
        else:
            parsed = to_host(take(actions, 0))
            found += differences(to_host(action), parsed, f"step {time}: parse_actions of a batch")
    return found


@conformance_check("rendered images must match their mode")
def check_render_modes(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check that `render` returns an SVG, text or an array of uint8 pixels, according to the mode."""
    environment = rollout.environment
    if not environment.render_modes:
        return None
    found: list[str] = []
    for time, state, _ in _sample_states(rollout):
        for mode in environment.render_modes:
            image = environment.render(state, mode)
            if not _is_image(mode, image):
                found.append(f"step {time}: render(state, {mode!r}) returned {image!r:.60}")
    return found


@conformance_check("the expert must label states with legal actions")
def check_expert(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check that the expert labels the states of its own episodes with legal members of `action_space`."""
    environment, batch_size = rollout.environment, rollout.batch_size
    try:
        expert = environment.expert()
    except ValueError:  # the settings of this environment do not allow an expert
        return None
    if expert is None:
        return None
    states = _first_step(rollout.run()[1].before)
    memory = expert.init(states)
    found: list[str] = []
    for time in range(_NUM_SAMPLED_STATES):
        labels = expert.label(states, memory)
        actions, mask = to_host(labels.actions), np.asarray(labels.mask)
        if mask.ndim != 2 or mask.shape[0] != batch_size or mask.dtype != np.bool_:
            found.append(
                f"step {time}: mask must be bool[{batch_size}, choices], got {mask.dtype}{mask.shape}"
            )
            break
        found += [
            f"step {time}: choice {choice} of environment {row} is not in {environment.action_space}"
            for row, choice in np.argwhere(mask)
            if not environment.action_space.contains(take(actions, row, choice))
        ]
        if np.any(mask.any(1) & ~mask[:, 0]):
            found.append(f"step {time}: the first choice must be valid if any is")
        if found or not mask[:, 0].all():
            break
        first = jax.device_put(take(actions, slice(None), 0))
        # With the shape of recorded steps, the compiled programs of other checks can be reused.
        repeated_states, repeated_actions = _repeat((states, first), rollout.num_steps)
        _, legal = _masks(environment, repeated_states)
        if legal is not None:
            chosen = np.asarray(masked_choice(environment.action_space, first))
            running = ~np.asarray(rollout.observe(repeated_states)[1])[0]
            if np.any(running & ~np.asarray(legal)[np.arange(batch_size), chosen]):
                found.append(f"step {time}: the action of the expert is not legal")
        after = rollouts.by_vmap(environment, rollout.keys[1], repeated_states, repeated_actions)[1]
        states = _first_step(after.states)
        memory = expert.advance(memory, labels, first, np.zeros(batch_size, bool))
    return found


@jax.jit
def _first_step(recorded: PyTree) -> PyTree:
    return take(recorded, 0)


@partial(jax.jit, static_argnums=1)
def _repeat(tree: PyTree, num_steps: int) -> PyTree:
    """Add a leading axis of length `num_steps` to every leaf."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_steps, *leaf.shape)), tree)


@conformance_check("task_name and version")
def check_task_name_and_version(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `version` is a positive integer and that `task_name` returns a string."""
    environment = rollout.environment
    found = []
    if type(environment.version) is not int or environment.version < 1:
        found.append(f"version must be a positive integer, got {environment.version!r}")
    for time, state, _ in _sample_states(rollout):
        name = environment.task_name(state)
        if not isinstance(name, str):
            found.append(f"step {time}: task_name must be a string, got {name!r}")
    return found


def _sample_states(rollout: RandomRolloutRunner) -> Iterator[tuple[int, PyTree, PyTree]]:
    """Iterate over a few unfinished states, as tuples of the step, the state and the action taken in it."""
    _, steps = rollout.run()
    done = np.asarray(rollout.observe(steps.before)[1])[:, 0]
    times = np.flatnonzero(~done)
    host = to_host((steps.before, steps.actions))
    for time in np.unique(times[np.linspace(0, len(times) - 1, _NUM_SAMPLED_STATES).astype(int)]):
        state, action = jax.device_put(take(host, int(time), 0))
        yield int(time), state, action


def _legal_variants(environment: Environment, state: PyTree, action: PyTree) -> Iterator[PyTree]:
    """Yield an action, and then a copy of it for each legal value of the part that the action mask covers."""
    space, mask = environment.action_space, environment.legal_actions(state)
    choices = masked_size(space)
    yield action
    if choices is not None:
        dtype = masked_choice(space, action).dtype
        for choice in np.flatnonzero(np.ones(choices, bool) if mask is None else np.asarray(mask)):
            yield replace_choice(space, action, jnp.asarray(choice, dtype))


def _is_image(mode: str, image: Any) -> bool:
    if mode == "rgb_array":
        is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8
        return is_array and image.ndim == 3 and image.shape[-1] == 3 and image.size > 0
    return isinstance(image, str) and bool(image.strip()) and (mode != "svg" or "<svg" in image)
