"""Proofs that a search finds as token samples: goals and choices are read, the next step is learned.

The search is in `phalanx.proofs.search`; plans of ARC are in `phalanx.lm.arc_demonstrations`.
"""

import itertools
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from phalanx.core.vector import host_rows
from phalanx.data.samples import Sample, SampleInfo, SampleOrigin
from phalanx.lm.tasks import PromptTokenizer, ReadablePromptTokenizer, Split, split_of
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.search.best_first import BestFirstConfig, BreadthFirstHeuristic, best_first_search
from phalanx.proofs.state import ProofState
from phalanx.text.wrapper import TextVectorWrapper

_AT_ONCE = 64
_RUN_SEEDS = 1_000_003


def proof_samples(
    environment: ProofEnvironment, prompter: PromptTokenizer, *, seed: int = 0, split: Split = "training"
) -> Iterator[Sample]:
    """A sample for each step of a shortest proof, without end, asked in the environment's own words.

    A query that is false is given up at once. One that is true and not proved, or proved and false, is left
    out: the knowledge base does not tell. What an episode asks first decides on its split.
    """
    prompter, batch = ReadablePromptTokenizer(prompter), TextVectorWrapper(environment)
    search = BestFirstConfig(max_depth=environment.config.max_depth, batch_size=_AT_ONCE)
    for first in itertools.count(seed * _RUN_SEEDS, _AT_ONCE):
        prompts = batch.reset([number % 2**32 for number in range(first, first + _AT_ONCE)])
        queries, labels = np.asarray(batch.states.query), np.asarray(batch.states.label)
        tried = best_first_search(
            environment.config, environment.program, BreadthFirstHeuristic(), queries, search
        )
        running = [
            place
            for place in range(_AT_ONCE)
            if split_of(prompts[place]) == split and tried.proved[place] == labels[place]
        ]
        step = 0
        while running:
            answers = [""] * _AT_ONCE
            rows = host_rows(batch.states, np.asarray)
            for place in running:
                action = next_action(rows[place], tried.ways.get(place), environment.program)
                if action is None:
                    continue
                answers[place] = environment.action_text(jnp.int32(action), rows[place])
                read, learned = prompter.prompt(batch.prompts[place]), prompter.answer(answers[place])
                yield Sample(
                    f"proofs-{split}-{first + place}-{step}",
                    read + learned,
                    [0] * len(read) + [1] * len(learned),
                    info=SampleInfo(dataset_id="proofs", origin=SampleOrigin.SYNTHETIC),
                )
            done = batch.step(answers).dones
            running = [place for place in running if answers[place] and not done[place]]
            step += 1


def next_action(state: ProofState, way: Sequence[np.ndarray] | None, program: Program) -> int | None:
    """The successor that is furthest on the way to a proof, or giving up where there is no way."""
    successors = np.asarray(state.successors)[: int(state.count)]
    ended = {int(rows[0, 0]): place for place, rows in enumerate(successors)}
    if way is None:
        return ended.get(program.end_index)
    if program.true_index in ended:
        return ended[program.true_index]
    known = {rows.tobytes(): place for place, rows in enumerate(successors)}
    # States without a choice are passed by the environment, so the next goals may be later ones.
    return next((known[goals.tobytes()] for goals in reversed(way) if goals.tobytes() in known), None)
