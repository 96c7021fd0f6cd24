"""All text integrations have the same episodes and rewards for the same seed and answers."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from websockets.sync.client import connect

from phalanx.integrations.trl import environment_factory
from phalanx.text.env import TextEnvironment, validate_seed
from phalanx.text.names import TextFactory, make_text_vector_env, text_env_factory
from tests.helpers.chat_model import stub_model
from tests.helpers.openenv_processes import play_by_openenv, running


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment, the seed of an episode, and its answers."""

    name: str
    settings: dict[str, Any]
    seed: int
    first_answers: tuple[str, ...]
    """Answers before those of the solver, or before the first legal move if there is no solver."""

    def factory(self) -> TextFactory:
        return cached_factory(self.name, json.dumps(self.settings))

    def answers(self) -> list[str]:
        environment = self.factory()()
        environment.reset(self.seed)
        for answer in self.first_answers:
            environment.step(answer)
        return [*self.first_answers, *(environment.expert_actions() or ["0"])]


CASES = [
    Case("sudoku", {}, 3, ("nonsense", "1 1", "")),
    Case("sokoban", {"difficulty": "medium"}, 4, ("<answer>up</answer>", "jump ☃")),
    Case("countdown", {"turns": "single"}, 5, ()),
    Case("knights", {"turns": "single"}, 6, ("```\nAnn knight\n```",)),
    Case("lights_out", {"max_steps": 2}, 7, ("1 1", "9 9")),
    Case(
        "proofs-v1",
        {"max_actions": 16, "text": {"max_consecutive_invalid_answers": 3}},
        1,
        ("the second one",),
    ),
]


@dataclasses.dataclass
class Transcript:
    """The texts and rewards of an episode. `rewards` and `solved` are None if they are not available."""

    first: str
    texts: list[str]
    rewards: list[float] | None
    total: float
    solved: bool | None


@functools.cache
def cached_factory(name: str, settings: str) -> TextFactory:
    return text_env_factory(name, **json.loads(settings))


def run_environment(case: Case) -> Transcript:
    environment: TextEnvironment = case.factory()()
    first, texts, rewards, solved = environment.reset(case.seed), [], [], False
    for answer in case.answers():
        step = environment.step(answer)
        texts.append(step.text)
        rewards.append(step.reward)
        solved = step.info.solved
        if step.done:
            break
    return Transcript(first, texts, rewards, sum(rewards), solved)


def trl(case: Case) -> Transcript:
    tools = environment_factory(case.factory())()
    first = tools.reset(seed=case.seed, prompt=[])
    texts = [tools.move(answer) for answer in case.answers()]
    return Transcript(first, texts, None, tools.get_reward(), None)


def openenv(case: Case) -> Transcript:
    with running(case.factory()) as server:
        url = server.url.replace("http", "ws") + "/ws"
        with connect(url, compression=None, open_timeout=60) as client:

            def request(kind: str, data: dict[str, Any]) -> dict[str, Any]:
                client.send(json.dumps({"type": kind, "data": data}))
                return json.loads(client.recv(60))["data"]

            first = request("reset", {"seed": case.seed})["observation"]["text"]
            steps = [request("step", {"answer": answer}) for answer in case.answers()]
    return _transcript(first, [(step["observation"]["text"], step["reward"], step["done"]) for step in steps],
                       steps[-1]["observation"]["solved"])  # fmt: skip


@functools.cache
def openenv_episodes() -> list[dict[str, Any]]:
    """Run all cases in one process of OpenEnv's client, because it takes seconds to start."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running(case.factory())) for case in CASES]
        return play_by_openenv(
            [
                {"url": server.url, "seed": case.seed, "answers": case.answers()}
                for server, case in zip(servers, CASES, strict=True)
            ]
        )


def openenv_client(case: Case) -> Transcript:
    result = openenv_episodes()[CASES.index(case)]
    assert result["seed"] == case.seed and result["error"].endswith("(code: VALIDATION_ERROR)")
    assert result["state"]["step_count"] == len(case.answers()) and result["state"]["episode_id"] == "one"
    return _transcript(result["text"], result["steps"], result["solved"])


def _transcript(first: str, steps: list[Any], solved: bool) -> Transcript:
    """Return the steps until the end of the episode. Later rewards must be 0."""
    last = next((number for number, step in enumerate(steps, 1) if step[2]), len(steps))
    assert all(step[1] == 0 for step in steps[last:])
    texts, rewards = [step[0] for step in steps[:last]], [step[1] for step in steps[:last]]
    return Transcript(first, texts, rewards, sum(rewards), solved)


def skyrl(case: Case) -> Transcript:
    skyrl_gym = pytest.importorskip("skyrl_gym")
    from phalanx.integrations.skyrl import register, skyrl_rows

    register()
    options: dict[str, Any] = {}
    if case.name == "proofs-v1":  # created once, because compilation takes seconds
        options = {"environments": case.factory()}
        text = case.factory()().reset(case.seed)
        row = {"prompt": [{"role": "user", "content": text}], "env_class": "phalanx", "seed": case.seed}
    else:
        [row] = skyrl_rows(case.name, [case.seed], **case.settings)
    environment = skyrl_gym.make(row["env_class"], env_config={}, extras=row, **options)
    prompt, result = environment.init(row["prompt"])
    assert prompt == row["prompt"] and result == {"seed": case.seed}
    longer, _ = environment.init([{"role": "system", "content": "Play."}])
    assert longer == [{"role": "system", "content": "Play."}, *prompt]
    texts, rewards = [], []
    for answer in case.answers():
        step = environment.step(answer)
        texts.extend(message["content"] for message in step["observations"])
        rewards.append(step["reward"])
        if step["done"]:
            break
    metrics = environment.get_metrics()
    environment.close()
    assert metrics["turns"] == len(rewards) and metrics["reward"] == pytest.approx(sum(rewards))
    return Transcript(prompt[0]["content"], texts, rewards, sum(rewards), bool(metrics["solved"]))


def verifiers(case: Case) -> Transcript:
    pytest.importorskip("verifiers", minversion="0.4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of its dependencies on import
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config
    answers = case.answers()
    config = resolve_env_config({"taskset": {
        "id": "phalanx-verifiers", "environment": case.name, "settings": case.settings,
        "first_seed": case.seed, "num_tasks": 1,
    }})  # fmt: skip
    environment = load_environment(config)

    async def rollout(url: str) -> Any:
        client = vf.EvalClientConfig(base_url=url, api_key_var="PHALANX_STUB_KEY")
        [task] = environment.taskset
        async with environment.serving():
            return await environment.run_episode(task, vf.ModelContext(model="stub", client=client))

    # The client of verifiers ignores empty messages, so an empty answer is sent as a space.
    def next_answer(messages: list[dict[str, Any]]) -> str:
        return answers[sum(message["role"] == "assistant" for message in messages)] or " "

    with stub_model(next_answer) as (url, requests):
        episode = asyncio.run(rollout(url))
    assert episode.ok, episode.errors
    [trace] = episode.traces
    result = [message["content"] for message in requests[-1] if message["role"] == "user"]
    return Transcript(
        result[0], result[1:], None, trace.rewards["reward"].score, bool(trace.metrics["solved"])
    )


@pytest.mark.parametrize("adapter", [trl, openenv, openenv_client, skyrl, verifiers])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_integration_gives_the_episodes_and_rewards_of_the_environment(
    case: Case, adapter: Callable[[Case], Transcript], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_STUB_KEY", "none")
    expected, found = run_environment(case), adapter(case)
    assert found.first == expected.first
    # SkyRL and verifiers do not return the text after the last answer.
    shown = len(expected.texts) - 1 if adapter in (skyrl, verifiers) else len(expected.texts)
    assert found.texts[:shown] == expected.texts[:shown]
    assert found.total == pytest.approx(expected.total)
    assert found.rewards is None or found.rewards == pytest.approx(expected.rewards)
    assert found.solved is None or found.solved == expected.solved


def test_names_settings_and_seeds_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown text environment 'sudko'"):
        text_env_factory("sudko")
    with pytest.raises(ValueError, match="no difficulty 'odd'"):
        text_env_factory("sudoku", difficulty="odd")
    with pytest.raises(ValueError, match="this release has version 2 of 'arc'"):
        text_env_factory("arc-v9")
    for seed in (-1, 2**32, True, 1.0, "1", None):
        with pytest.raises(ValueError, match="seed must be an integer from 0 to 4294967295"):
            validate_seed(seed)


@pytest.mark.filterwarnings("ignore")
def test_verifiers_taskset_has_the_seeds_of_a_split() -> None:
    pytest.importorskip("verifiers", minversion="0.4")
    from phalanx.integrations.verifiers import PhalanxTaskset, PhalanxTasksetConfig

    config = PhalanxTasksetConfig(environment="sudoku", split="test", first_seed=10, num_tasks=5)
    batch = make_text_vector_env("sudoku")
    seeds = list(itertools.islice(batch.seeds("sudoku:easy:multi", "test", 10), 5))
    assert [task.data.seed for task in PhalanxTaskset(config)] == seeds
    with pytest.raises(ValueError, match="a taskset serves one kind of environment, got 2: sudoku,countdown"):
        PhalanxTasksetConfig(environment="sudoku,countdown")


def test_skyrl_needs_an_environment_and_a_seed() -> None:
    pytest.importorskip("skyrl_gym")
    from phalanx.integrations.skyrl import SkyRLEnvironment

    with pytest.raises(ValueError, match="must have an environment"):
        SkyRLEnvironment({}, {"seed": 1})
    with pytest.raises(ValueError, match="seed must be an integer"):
        SkyRLEnvironment({"environment": "sudoku"}, {})
    given = SkyRLEnvironment(extras={"seed": 1}, environments=text_env_factory("sudoku"))
    assert "sudoku" in given.init([])[0][0]["content"]


def test_skyrl_registration_can_be_repeated_but_not_taken_over() -> None:
    skyrl_gym = pytest.importorskip("skyrl_gym")
    from phalanx.integrations.skyrl import register

    register("phalanx-again", environments=text_env_factory("sudoku"))
    register("phalanx-again", environments=text_env_factory("binary"))
    prompt, _ = skyrl_gym.make("phalanx-again", env_config={}, extras={"seed": 1}).init([])
    assert "binary" in prompt[0]["content"]
    skyrl_gym.register(id="not-ours", entry_point="somebody.else:Environment")
    with pytest.raises(skyrl_gym.error.RegistrationError, match="already registered"):
        register("not-ours")
