"""Expert answers of ARC and proofs as training samples."""

import itertools
import random
from collections.abc import Generator

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.arc.env import ArcEnvironment
from phalanx.arc.expert_episodes import plan_expert_episodes
from phalanx.arc.planner import action_from_arrays
from phalanx.arc.text import action_text, episode_key
from phalanx.core.vector import host_rows
from phalanx.data.samples import Sample, SampleInfo, SampleOrigin
from phalanx.data.tokenizers import Tokenizer
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.expert import ShortestProofExpert
from phalanx.text.env import PromptFormat
from phalanx.text.splits import Split, split_of
from phalanx.text.wrapper import TextVectorWrapper

_BATCH_SIZE = 64
_SHUFFLE_NAMES: dict[Split, str] = {"train": "training", "validation": "valid", "test": "held-out"}
"""Names that seed the order of ARC episodes. Changing them would change the samples."""


def arc_samples(
    environment: ArcEnvironment,
    tokenizer: str | Tokenizer,
    *,
    seed: int = 0,
    split: Split = "train",
    prompt_format: PromptFormat = "compact",
) -> Generator[Sample, None, None]:
    """Yield one sample per step of the planner's solutions, without end.

    Episodes are shuffled again in each round. The split of an episode is that of its task.
    """
    prompt_tokenizer = PromptTokenizer(tokenizer)
    planned = plan_expert_episodes(environment)
    tasks, pairs = planned.tasks, planned.pairs
    keys = {int(task): episode_key(environment.task_buffer[int(task)]) for task in set(tasks.tolist())}
    episodes = [index for index in range(len(planned)) if split_of(keys[int(tasks[index])]) == split]
    if not episodes:
        raise ValueError(f"none of {len(keys)} tasks are in the {split} split; use more tasks")
    step_batch = jax.jit(environment.batch_step)
    rng = random.Random(f"arc {seed} {_SHUFFLE_NAMES[split]}")
    for round_number in itertools.count():
        rng.shuffle(episodes)
        for start in range(0, len(episodes), _BATCH_SIZE):
            # The last batch is filled with its own episodes, so that all batches have one shape.
            batch = np.resize(np.array(episodes[start : start + _BATCH_SIZE]), _BATCH_SIZE)
            plans = [planned.plans[index] for index in batch]
            states, _ = environment.batch_reset_to(*jax.device_put((tasks[batch], pairs[batch])))
            for step in range(max(map(len, plans))):
                prompts = environment.observation_texts(states, prompt_format)
                steps = [min(step, len(plan) - 1) for plan in plans]
                operations = np.array([plan.operations[i] for plan, i in zip(plans, steps, strict=True)])
                selections = np.stack([plan.selections[i] for plan, i in zip(plans, steps, strict=True)])
                for row in range(min(_BATCH_SIZE, len(episodes) - start)):
                    if step < len(plans[row]):
                        answer = action_text(action_from_arrays(operations[row], selections[row]))
                        sample_id = f"arc-{split}-{batch[row]}-{step}-{round_number}"
                        yield _sample(prompt_tokenizer, prompts[row], answer, sample_id)
                operations[[step >= len(plan) for plan in plans]] = -1
                states, *_ = step_batch(states, action_from_arrays(operations, selections))


def proof_samples(
    environment: ProofEnvironment, tokenizer: str | Tokenizer, *, seed: int = 0, split: Split = "train"
) -> Generator[Sample, None, None]:
    """Yield one sample per step of the expert's proofs, without end."""
    env = TextVectorWrapper(environment, task="proofs")
    prompt_tokenizer = PromptTokenizer.for_env(tokenizer, env)
    expert = ShortestProofExpert(environment)
    for first in itertools.count(env.first_expert_seed(seed), _BATCH_SIZE):
        env.reset(range(first, first + _BATCH_SIZE))
        keys = env.episode_keys()
        rows = [row for row in range(_BATCH_SIZE) if split_of(keys[row]) == split]
        for step in itertools.count():
            answers = [""] * _BATCH_SIZE
            states, prompts = host_rows(env.states, np.asarray), env.prompts
            labels = expert.label(env.states, ())
            for row in rows:
                if not labels.mask[row, 0]:
                    continue
                answers[row] = environment.action_text(jnp.int32(labels.actions[row, 0]), states[row])
                sample_id = f"proofs-{split}-{first + row}-{step}"
                yield _sample(prompt_tokenizer, prompts[row], answers[row], sample_id)
            dones = env.step(answers).dones
            rows = [row for row in rows if answers[row] and not dones[row]]
            if not rows:
                break


def _sample(tokenizer: PromptTokenizer, prompt: str, answer: str, sample_id: str) -> Sample:
    prompt_ids, completion_ids = tokenizer.encode_prompt(prompt), tokenizer.encode_completion(answer)
    return Sample(
        sample_id,
        prompt_ids + completion_ids,
        [0] * len(prompt_ids) + [1] * len(completion_ids),
        info=SampleInfo(dataset_id=sample_id.partition("-")[0], origin=SampleOrigin.SYNTHETIC),
    )
