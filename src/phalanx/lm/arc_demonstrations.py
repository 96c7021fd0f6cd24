"""Plans that solve ARC tasks as token samples: demonstrations and the grid are read, actions are learned.

Episodes as grids for policies are in `phalanx.arc`; puzzles in words are in `demonstrations`.
"""

import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.arc.env import ArcEnvironment
from phalanx.arc.expert_episodes import plan_expert_episodes
from phalanx.arc.planner import action_from_arrays
from phalanx.arc.text import action_text, episode_key
from phalanx.data.samples import Sample, SampleInfo, SampleOrigin
from phalanx.lm.tasks import PromptTokenizer, Split, split_of

_AT_ONCE = 64


def arc_samples(
    environment: ArcEnvironment,
    prompter: PromptTokenizer,
    *,
    seed: int = 0,
    split: Split = "training",
    compact: bool = True,
) -> Iterator[Sample]:
    """A sample for each step of a plan, without end; tasks come in a new order each time round.

    A task's first grid decides on its split. `compact` tells grids as rows of digits and no rules; otherwise
    the text is the environment's own (`observation_text`). Either way the pair that is worked on is not among
    the demonstrations.
    """
    planned = plan_expert_episodes(environment)
    tasks, pairs = planned.tasks, planned.pairs
    first = {int(task): episode_key(environment.task_buffer[int(task)]) for task in set(tasks.tolist())}
    kept = [at for at in range(len(planned)) if split_of(first[int(tasks[at])]) == split]
    if not kept:
        raise ValueError(f"no task of {len(first)} falls into the split {split!r}")
    step = jax.jit(environment.batch_step)
    draws, round_ = random.Random(f"arc {seed} {split}"), 0
    while True:
        draws.shuffle(kept)
        for start in range(0, len(kept), _AT_ONCE):
            # Filled up with episodes of its own, so that every batch runs one program.
            slots = np.resize(np.array(kept[start : start + _AT_ONCE]), _AT_ONCE)
            plans = [planned.plans[at] for at in slots]
            states, _ = environment.batch_reset_to(*jax.device_put((tasks[slots], pairs[slots])))
            for time in range(max(map(len, plans))):
                texts = _prompts(environment, states, compact)
                places = [min(time, len(plan) - 1) for plan in plans]
                operations = np.array([plan.operations[at] for plan, at in zip(plans, places, strict=True)])
                cells = np.stack([plan.selections[at] for plan, at in zip(plans, places, strict=True)])
                for place in range(min(_AT_ONCE, len(kept) - start)):
                    if time < len(plans[place]):
                        answer = action_text(action_from_arrays(operations[place], cells[place]))
                        name = f"arc-{split}-{slots[place]}-{time}-{round_}"
                        yield _sample(prompter, texts[place], answer, name)
                operations[[time >= len(plan) for plan in plans]] = -1
                states, *_ = step(states, action_from_arrays(operations, cells))
        round_ += 1


def _sample(prompter: PromptTokenizer, prompt: str, answer: str, name: str) -> Sample:
    read, learned = prompter.prompt(prompt), prompter.answer(answer)
    info = SampleInfo(dataset_id="arc", origin=SampleOrigin.SYNTHETIC)
    return Sample(name, read + learned, [0] * len(read) + [1] * len(learned), info=info)


def _prompts(environment: ArcEnvironment, states: Any, compact: bool) -> list[str]:
    if not compact:
        named = jax.device_get(environment.attach_names(states))
        rows = [jax.tree.map(lambda leaf, n=n: jnp.asarray(leaf[n]), named) for n in range(_AT_ONCE)]
        return [environment.observation_text(row) for row in rows]
    return environment.observation_texts(states, "compact")
