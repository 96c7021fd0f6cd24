"""Streams of puzzle episodes: samples, policies and settings."""

import asyncio
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from phalanx.data import Sample, SampleOrigin
from phalanx.data.samples import EpisodeStatus
from phalanx.data.tokenizers import ByteTokenizer
from phalanx.puzzles.server_client.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import ConnectionPoolConfig, EpisodeSpec, episode_seed
from phalanx.puzzles.server_client.episodes import (
    CollectConfig,
    PuzzleSampleStream,
    PuzzleServerRewardValues,
    episode_samples,
    move_prompt,
    rollout_episode,
)
from phalanx.puzzles.server_client.protocol import (
    PuzzleDifficulty,
    PuzzleHint,
    PuzzleObservation,
)
from tests.helpers.puzzle_server import RealServer, running_server
from tests.helpers.scripted_puzzle_server import ScriptedServer, Session, scripted_server

ORDERED = ConnectionPoolConfig(connections=2, ordered=True)


def toy_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
    """Return the next correct move of the toy game without a hint."""
    return f"place 1 {observation.moves + 1} {observation.moves + 1}"


def toy_config(server: ScriptedServer, **others: object) -> CollectConfig:
    client = PuzzleClientConfig(host="127.0.0.1", port=server.port, max_retries=12)
    fixed = {"client": client, "games": ("toy",), "seed": 4, "pool": ORDERED}
    return CollectConfig(**fixed | others)


async def collect_samples(stream: PuzzleSampleStream) -> list[Sample]:
    async with stream:
        return [sample async for sample in stream]


def decode(sample: Sample) -> str:
    return ByteTokenizer().decode(sample.input_ids)


def test_each_move_is_a_sample_of_prompt_and_command() -> None:
    async def run() -> list[Sample]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy_config(server, use_hints=False)
            return await collect_samples(PuzzleSampleStream(config, policy=toy_policy, max_episodes=2))

    samples = asyncio.run(run())
    assert len(samples) == 6
    seed = episode_seed(4, 0)
    assert [sample.sample_id for sample in samples[:4]] == [
        *(f"toy_easy_{seed}_0_step{step}" for step in range(3)),
        f"toy_easy_{episode_seed(4, 1)}_1_step0",
    ]
    second = samples[1]
    prompt, answer = f"Puzzle: toy (easy)\n[1/3] ■ seed {seed}\nMove: ", "place 1 2 2\n"
    assert decode(second) == prompt + answer
    assert second.loss_mask.tolist() == [0] * len(prompt.encode()) + [1] * len(answer)
    assert (second.info.origin, second.info.dataset_id) == (SampleOrigin.ENVIRONMENT, "puzzle_arcade")
    assert (second.info.step_index, second.info.total_steps, second.info.difficulty) == (1, 3, 0.3)
    assert (second.info.success, second.info.episode_status, second.info.reward) == (
        True,
        EpisodeStatus.SUCCESS,
        0.0,
    )
    assert samples[2].info.reward == 1.0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_policy_may_be_sync_or_async_and_receives_the_hint(kind: str) -> None:
    seen = []

    def sync_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str:
        assert hint is not None
        seen.append(hint.message)
        return f"place 1 {hint.message[-1]} {hint.message[-1]}"

    async def async_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str:
        await asyncio.sleep(0)
        return sync_policy(observation, hint)

    async def run() -> list[Sample]:
        server = ScriptedServer()
        async with scripted_server(server):
            policy = sync_policy if kind == "sync" else async_policy
            return await collect_samples(
                PuzzleSampleStream(toy_config(server), policy=policy, max_episodes=1)
            )

    assert len(asyncio.run(run())) == 3
    assert seen == [f"Try placing {n} at row 1, column {n}" for n in (1, 2, 3)]


def test_invalid_moves_are_penalized_and_end_the_episode() -> None:
    answers = iter(["place 1 1 9", "quit", "two\nlines", "place 1 1 1", "dance", "dance", "dance", "dance"])

    async def run() -> list[Sample]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy_config(
                server,
                use_hints=False,
                max_consecutive_invalid_answers=4,
                rewards=PuzzleServerRewardValues(invalid=-0.5),
            )
            return await collect_samples(
                PuzzleSampleStream(config, policy=lambda *_: next(answers), max_episodes=1)
            )

    samples = asyncio.run(run())
    assert [sample.info.reward for sample in samples] == [-0.5, -0.5, -0.5, 0.0, -0.5, -0.5, -0.5, -0.5]
    assert {sample.info.success for sample in samples} == {False}
    assert {sample.info.episode_status for sample in samples} == {EpisodeStatus.FAILURE}


def test_episode_ends_when_given_up_lost_or_truncated() -> None:
    async def lose(session: Session) -> None:
        await session.send_json({"type": "result", "success": True, "code": "REVEALED", "message": "boom"})
        await session.send_line("GAME OVER! You hit a mine!")

    async def run() -> list[tuple[int, EpisodeStatus, float | None]]:
        server = ScriptedServer(goal=50)
        found = []
        async with (
            scripted_server(server),
            PuzzleClient(PuzzleClientConfig(host="127.0.0.1", port=server.port)) as client,
        ):
            spec = EpisodeSpec(0, "toy", PuzzleDifficulty.HARD, 1)
            server.scripts["reveal 1 1"] = lose
            config = CollectConfig(use_hints=False, max_steps=5)
            policies = [lambda *_: None, lambda *_: "reveal 1 1", toy_policy]
            for policy in policies:
                episode = await rollout_episode(client, spec, config, policy=policy)
                assert episode.difficulty == 0.9
                last = episode.steps[-1].reward if episode.steps else None
                found.append((len(episode.steps), episode.status, last))
        return found

    assert asyncio.run(run()) == [
        (0, EpisodeStatus.FAILURE, None),
        (1, EpisodeStatus.FAILURE, -1.0),
        (5, EpisodeStatus.TIMEOUT, 0.0),
    ]


def test_slow_policy_is_called_once_per_move_despite_reconnects() -> None:
    """The server closes connections after 0.2 seconds, and an episode takes 0.36 seconds."""
    calls: list[tuple[int, int]] = []

    async def slow_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        calls.append((observation.seed, observation.moves))
        await asyncio.sleep(0.06)
        return toy_policy(observation, hint)

    async def run(max_age: float) -> tuple[list[Sample], int]:
        server = ScriptedServer(goal=6, max_connection_age=max_age)
        async with scripted_server(server):
            config = toy_config(
                server, use_hints=False, pool=ConnectionPoolConfig(connections=1, ordered=True)
            )
            stream = PuzzleSampleStream(config, policy=slow_policy, max_episodes=2)
            return await collect_samples(stream), stream.pool.episodes_replayed

    expected, _ = asyncio.run(run(60.0))
    expected_calls, calls[:] = list(calls), []
    samples, replayed = asyncio.run(run(0.2))
    assert samples == expected and len(samples) == 12
    assert calls == expected_calls == [(episode_seed(4, n), move) for n in (0, 1) for move in range(6)]
    assert replayed >= 2


def test_invalid_collect_settings_raise_error() -> None:
    with pytest.raises(ValueError, match="'einstein' cannot be converted to commands; pass a policy"):
        PuzzleSampleStream(CollectConfig(games=("einstein",)))
    with pytest.raises(ValueError, match="use_hints=False needs a policy"):
        PuzzleSampleStream(CollectConfig(use_hints=False))
    with pytest.raises(ValidationError, match="at least 1 item"):
        CollectConfig(games=())
    with pytest.raises(ValidationError, match=r"'sud\$' is not a valid name of a game"):
        CollectConfig(games=("sud$",))
    assert CollectConfig(games=("Killer Sudoku",)).games == ("killer",)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with running_server() as running:
        yield running


def test_real_server_samples_do_not_depend_on_the_number_of_connections(server: RealServer) -> None:
    async def run(connections: int) -> list[Sample]:
        config = CollectConfig(
            client=PuzzleClientConfig(host="127.0.0.1", port=server.port),
            games=("binary", "lights", "tents"),
            difficulties=("easy", "medium"),
            pool=ConnectionPoolConfig(connections=connections, ordered=True),
        )
        return await collect_samples(PuzzleSampleStream(config, max_episodes=12))

    one, four = asyncio.run(run(1)), asyncio.run(run(4))
    assert one == four
    assert all(sample.info.success for sample in one)
    assert {sample.info.difficulty for sample in one} == {0.3, 0.6}
    assert {str(sample.info.episode_id).split("_")[0] for sample in one} == {"binary", "lights", "tents"}
    first = decode(one[0])
    assert first.startswith("Puzzle: binary (easy)\n  |1|2|") and first.rpartition("Move: ")[2].startswith(
        "place "
    )


def test_logic_grid_yields_one_failed_sample(server: RealServer) -> None:
    async def run() -> list[Sample]:
        config = CollectConfig(
            client=PuzzleClientConfig(host="127.0.0.1", port=server.port), games=("logic",)
        )
        return await collect_samples(PuzzleSampleStream(config, max_episodes=1))

    (sample,) = asyncio.run(run())
    assert sample.info.success is False and "connect person" in decode(sample)


def test_move_prompt_contains_the_board() -> None:
    observation = PuzzleObservation(game="Toy", difficulty="hard", seed=1, grid_display="a  \nb\n")
    assert move_prompt("toy", observation) == "Puzzle: toy (hard)\na\nb\nMove: "
    assert episode_samples.__doc__
