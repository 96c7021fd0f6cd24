"""Samples from text environments: expert and random answers, splits and mixture."""

import functools
import itertools

import pytest

from phalanx.lm import LMTokenizer, generate_expert_samples
from phalanx.puzzles.kinds import KINDS
from phalanx.text import TextVectorEnvironment, make_text_env, make_text_vector_env, split_of
from phalanx.text.names import TextEnvConfig

pytestmark = pytest.mark.slow


def environment(spec: str) -> TextVectorEnvironment:
    return TextEnvConfig(id=spec).make()


@pytest.mark.parametrize("kind", KINDS)
def test_expert_answers_solve_the_puzzles(kind: str) -> None:
    make_env = functools.partial(environment, f"{kind},{kind}::multi")
    tokenizer = LMTokenizer("characters")

    def samples() -> list:
        stream = generate_expert_samples(make_env, "characters", random_move_prob=0.3)
        return list(itertools.islice(stream, 12))

    found = samples()
    assert found == samples()
    for sample in found[::2]:
        answer = tokenizer.decode(sample.input_ids[sample.loss_mask == 1].tolist())
        env = make_text_env(kind, turns="single", prompt_format="compact")
        prompt = env.reset(int(sample.sample_id.split("-")[-2]))
        assert tokenizer.decode(sample.input_ids[sample.loss_mask == 0].tolist()) == f"{prompt}>"
        assert split_of(env.episode_key) == "train"
        assert env.step(answer).info.solved
    assert {sample.info.dataset_id for sample in found[1::2]} == {f"{kind}:easy:multi"}


def test_mixture_sets_the_number_of_samples_per_kind() -> None:
    make_env = functools.partial(environment, "sudoku,hitori")
    stream = generate_expert_samples(make_env, "characters", mixture={"hitori": 2})
    kinds = [sample.info.dataset_id.partition(":")[0] for sample in itertools.islice(stream, 6)]
    assert kinds == ["sudoku", "hitori", "hitori"] * 2


def test_random_behavior_policy_uses_all_legal_actions() -> None:
    make_env = functools.partial(environment, "lights_out::multi")
    stream = generate_expert_samples(make_env, "characters", behavior_policy="random")
    answers = {
        tuple(sample.input_ids[sample.loss_mask == 1].tolist()) for sample in itertools.islice(stream, 80)
    }
    assert len(answers) == 9
    with pytest.raises(ValueError, match=r"set env\.turns=multi"):
        next(
            generate_expert_samples(
                functools.partial(environment, "lights_out"), "characters", behavior_policy="random"
            )
        )


def test_splits_have_different_episodes() -> None:
    env = make_text_vector_env("lights_out:easy:multi")
    boards = {}
    for split in ("train", "validation", "test"):
        env.reset(list(itertools.islice(env.seeds("lights_out:easy:multi", split), 60)))
        boards[split] = set(env.episode_keys())
    assert not boards["train"] & boards["test"]
    assert not boards["train"] & boards["validation"]
    assert not boards["validation"] & boards["test"]


def test_unknown_characters_of_a_prompt_are_replaced_if_the_environment_says_so() -> None:
    tokenizer = LMTokenizer("characters", unknown="replace")
    assert tokenizer.decode(tokenizer.encode_prompt("née")) == "n?e>"
    with pytest.raises(ValueError, match="é"):
        LMTokenizer("characters").encode_prompt("née")
