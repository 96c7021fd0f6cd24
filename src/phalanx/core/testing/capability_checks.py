"""Conformance checks for legal actions, text, rendering, experts and task names."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from phalanx.core.environment import Environment, validate_mask
from phalanx.core.spaces import get_field, masked_choice, masked_size, replace_choice
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
    environment, space = rollout.environment, rollout.environment.action_space
    shape = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]), jax.random.PRNGKey(rollout.seed)
    )
    if shape is None:
        return None
    try:
        choices = validate_mask(environment, shape)
    except TypeError as error:
        return [str(error)]
    _, steps = rollout.run()
    mask = to_host(_masks(environment, steps.before))
    running = ~np.asarray(rollout.observe(steps.before)[1])
    chosen = np.asarray(masked_choice(space, steps.actions))
    legal = np.take_along_axis(mask, np.clip(chosen, 0, choices - 1)[..., None], -1)[..., 0]
    found = describe_first(running & ~mask.any(-1), ": no action is legal, but the episode is not done")
    found += describe_first(running & ~legal, ": the sampled action is not legal")
    observed = to_host(rollout.observe(steps.before)[0])
    if "action_mask" in dict(getattr(environment.observation_space, "fields", ())):
        found += differences(
            mask, get_field(observed, "action_mask"), "action_mask, compared with legal_actions,"
        )
    # The first illegal choice of each state, or the sampled one if all are legal.
    has_illegal = ~mask.all(-1)
    illegal = np.where(has_illegal, np.argmin(mask, -1), chosen).astype(chosen.dtype)
    actions = replace_choice(space, steps.actions, illegal)
    after = rollouts.by_vmap(environment, rollout.keys[1], steps.before, actions)[1].states
    before, new = map(rollout.comparable_states, (steps.before, after))
    for choice in np.unique(illegal[has_illegal]):
        where = has_illegal & (illegal == choice)
        found += differences(take(before, where), take(new, where), f"state after illegal {choice}")
    return found


@partial(jax.jit, static_argnums=0)
def _masks(environment: Environment, states: PyTree) -> Bool[Array, "steps batch choices"] | None:
    return jax.vmap(jax.vmap(environment.legal_actions))(states)


@conformance_check("text must identify actions")
def check_text_round_trip(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check the prompts of states, and the conversion of actions to text and back.

    Prompts must not be empty. `parse` must invert `format` and reject invalid text. The methods for batches
    must give the same results as the methods for one state.
    """
    if rollout.spec is None or rollout.spec.text is None:
        return None
    text = rollout.spec.text(rollout.environment)
    found: list[str] = []
    for time, state, action in _sample_states(rollout):
        prompt = text.prompt(state)
        if not isinstance(prompt, str) or not prompt.strip():
            found.append(f"step {time}: prompt is {prompt!r}")
        for choice in _legal_variants(rollout.environment, state, action):
            answer = text.format(choice, state)
            try:
                parsed = text.parse(answer, state)
            except ValueError as error:
                found.append(f"step {time}: parse rejects {answer!r}, the text of a legal action: {error}")
                continue
            found += differences(to_host(choice), to_host(parsed), f"step {time}: parse({answer!r})")
        for invalid_text in _INVALID_TEXTS:
            try:
                text.parse(invalid_text, state)
            except ValueError:
                continue
            found.append(f"step {time}: parse accepts {invalid_text!r}")
        states, actions = jax.tree.map(
            lambda leaf: jax.device_put(np.stack([leaf, leaf])), (to_host(state), to_host(action))
        )
        if text.prompts(states) != [prompt, prompt]:
            found.append(f"step {time}: prompts differs from prompt of its rows")
        answer = text.format(action, state)
        if text.formats(actions, states) != [answer, answer]:
            found.append(f"step {time}: formats differs from format of its rows")
        parsed_actions, errors = text.parse_batch([answer, _INVALID_TEXTS[1]], states)
        if parsed_actions is None or [bool(error) for error in errors] != [False, True]:
            found.append(f"step {time}: parse_batch and parse accept different text")
        else:
            parsed = to_host(take(parsed_actions, 0))
            found += differences(to_host(action), parsed, f"step {time}: parse_batch")
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
    if rollout.spec is None or rollout.spec.expert is None:
        return None
    expert = rollout.spec.expert(environment)
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
        legal = _masks(environment, repeated_states)
        if legal is not None:
            chosen = np.asarray(masked_choice(environment.action_space, first))
            running = ~np.asarray(rollout.observe(repeated_states)[1])[0]
            if np.any(running & ~np.asarray(legal)[0, np.arange(batch_size), chosen]):
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


@conformance_check("tasks must have names")
def check_task_name(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check that `task_name` of the spec returns a string."""
    if rollout.spec is None or rollout.spec.task_name is None:
        return None
    names = [
        (time, rollout.spec.task_name(rollout.environment, state))
        for time, state, _ in _sample_states(rollout)
    ]
    return [
        f"step {time}: task_name must be a string, got {name!r}"
        for time, name in names
        if not isinstance(name, str)
    ]


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
