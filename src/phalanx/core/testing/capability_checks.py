"""Checks of what an environment says of itself: legal actions, words, pictures, names and its version.

The checks of its transitions, and the function that runs all of them, are in `conformance`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from phalanx.core.environment import Environment
from phalanx.core.spaces import masked_choice, masked_size, replace_choice
from phalanx.core.testing import recorded_rollouts as plays
from phalanx.core.testing.recorded_rollouts import first_wrong, keys_from, raise_if_failed, record_rollout
from phalanx.core.testing.tree_diff import differences, take, to_host

_NONSENSE = ("", "no such action !?")
_FEW = 3
"""States that are described and drawn: one at the start, one in the middle, one late."""


def check_legal_actions(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """The mask is over the action's choices, sampled actions are legal by it, and others change nothing."""
    shape = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]), jax.random.PRNGKey(seed)
    )
    if shape is None:
        return False
    choices = masked_size(environment.action_space)
    if choices is None or shape.shape != (choices,) or shape.dtype != np.bool_:
        told = f"{shape.dtype}{list(shape.shape)}"
        wanted = "a first field of whole numbers" if choices is None else f"bool[{choices}]"
        return raise_if_failed(
            "legal_actions", [f"the mask of one state is {told}, the actions have {wanted}"]
        )
    keys = keys_from(seed, batch_size)
    _, steps = record_rollout(environment, keys, num_steps)
    mask, of_batch = to_host(_masks(environment, steps.before))
    over = np.asarray(plays.observe_states(environment, steps.before)[1])
    chosen = np.asarray(masked_choice(environment.action_space, steps.actions))
    legal = np.take_along_axis(mask, np.clip(chosen, 0, choices - 1)[..., None], -1)[..., 0]
    found = []
    if np.any(~over & ~mask.any(-1)):
        found.append(f"{first_wrong(~over & ~mask.any(-1))}: nothing is legal, and the episode goes on")
    if np.any(~over & ~legal):
        found.append(f"{first_wrong(~over & ~legal)}: the sampled action is illegal by the mask")
    found += differences(take(mask, 0), of_batch, "legal_actions of a batch")
    # The first masked-out choice of every state that has one, the others as they were sampled.
    masked_out = np.where(mask.all(-1), chosen, np.argmin(mask, -1)).astype(chosen.dtype)
    actions = replace_choice(environment.action_space, steps.actions, masked_out)
    _, step_keys = plays.rollout_keys(keys, num_steps)
    after = plays.by_vmap(environment, step_keys, steps.before, actions)[1].states
    kept, new = (to_host(plays.comparable_states(environment, states)) for states in (steps.before, after))
    for choice in np.unique(masked_out[~mask.all(-1)]):
        where = ~mask.all(-1) & (masked_out == choice)
        found += differences(take(kept, where), take(new, where), f"content after the masked-out {choice}")
    return raise_if_failed("legal_actions must say what step does", found)


@jax.jit
def _masks(
    environment: Environment, states: PyTree
) -> tuple[Bool[Array, "steps batch choices"], Bool[Array, "batch choices"]]:
    """The masks of recorded states one by one, and those of the first batch of them."""
    masks = jax.vmap(jax.vmap(environment.legal_actions))(states)
    of_batch = environment.legal_actions(take(states, 0))
    assert masks is not None
    assert of_batch is not None
    return masks, of_batch


def check_text_round_trip(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """A state has a text, every legal action one that is read back, and nonsense is refused in words.

    A batch is worded and read as its rows are.
    """
    if not environment.has_text:
        return False
    found: list[str] = []
    for time, state, action in _moments(environment, seed, batch_size, num_steps):
        text = environment.observation_text(state)
        if not isinstance(text, str) or not text.strip():
            found.append(f"step {time}: observation_text is {text!r}")
        for choice in _variants(environment, state, action):
            answer = environment.action_text(choice, state)
            try:
                read = environment.parse_action(answer, state)
            except ValueError as error:
                found.append(f"step {time}: {answer!r} names a legal action and is refused: {error}")
                continue
            found += differences(to_host(choice), to_host(read), f"step {time}: what {answer!r} reads as")
        for nonsense in _NONSENSE:
            try:
                environment.parse_action(nonsense, state)
            except ValueError:
                continue
            found.append(f"step {time}: parse_action takes {nonsense!r} for an action")
        twice = jax.tree.map(lambda leaf: jax.device_put(np.stack([leaf, leaf])), state)
        if environment.observation_texts(twice) != [text, text]:
            found.append(f"step {time}: observation_texts of a batch are not those of its rows")
        read, reasons = environment.parse_actions(
            [environment.action_text(action, state), _NONSENSE[1]], twice
        )
        if read is None or [bool(reason) for reason in reasons] != [False, True]:
            found.append(f"step {time}: parse_actions takes or refuses what parse_action does not")
        else:
            found += differences(
                to_host(action), to_host(take(read, 0)), f"step {time}: parse_actions of a batch"
            )
    return raise_if_failed("words must name actions both ways", found)


def check_render_modes(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Every mode of `render_modes` gives a picture of its kind: SVG, text, or uint8 pixels."""
    found: list[str] = []
    for time, state, _ in _moments(environment, seed, batch_size, num_steps):
        for mode in environment.render_modes:
            picture = environment.render(state, mode)
            if not _is_picture(mode, picture):
                found.append(f"step {time}: render(state, {mode!r}) gives {_short(picture)}")
    raise_if_failed("pictures must be what their mode says", found)
    return bool(environment.render_modes)


def check_task_name_and_version(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """The version is a whole number from 1 on, and `task_name` gives a text, if an empty one."""
    found = []
    if type(environment.version) is not int or environment.version < 1:
        found.append(f"version must be a whole number from 1 on, got {environment.version!r}")
    for time, state, _ in _moments(environment, seed, batch_size, num_steps):
        name = environment.task_name(state)
        if not isinstance(name, str):
            found.append(f"step {time}: task_name is {name!r}, which is no text")
    return raise_if_failed("names and version", found)


def _moments(
    environment: Environment, seed: int, batch_size: int, num_steps: int
) -> Iterator[tuple[int, PyTree, PyTree]]:
    """A few single states that have not ended, with the actions that were sampled there."""
    _, steps = record_rollout(environment, keys_from(seed, batch_size), num_steps)
    over = np.asarray(plays.observe_states(environment, steps.before)[1])[:, 0]
    times = np.flatnonzero(~over)
    host = to_host((steps.before, steps.actions))
    for time in np.unique(times[np.linspace(0, len(times) - 1, _FEW).astype(int)]):
        state, action = jax.device_put(take(host, int(time), 0))
        yield int(time), state, action


def _variants(environment: Environment, state: PyTree, action: PyTree) -> Iterator[PyTree]:
    """The action itself, and the same with every other legal choice."""
    space, mask = environment.action_space, environment.legal_actions(state)
    choices = masked_size(space)
    yield action
    if choices is not None:
        for choice in np.flatnonzero(np.ones(choices, bool) if mask is None else np.asarray(mask)):
            yield _with_choice(environment, action, choice)


def _with_choice(environment: Environment, action: PyTree, choice: np.integer) -> PyTree:
    space = environment.action_space
    return replace_choice(space, action, jnp.asarray(choice, masked_choice(space, action).dtype))


def _is_picture(mode: str, picture: Any) -> bool:
    if mode == "rgb_array":
        is_array = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
        return is_array and picture.ndim == 3 and picture.shape[-1] == 3 and picture.size > 0
    return isinstance(picture, str) and bool(picture.strip()) and (mode != "svg" or "<svg" in picture)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


CAPABILITY_CHECKS: tuple[Callable[..., bool], ...] = (
    check_legal_actions,
    check_text_round_trip,
    check_render_modes,
    check_task_name_and_version,
)
