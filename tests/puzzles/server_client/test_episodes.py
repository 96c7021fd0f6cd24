"""Streams of puzzle episodes: samples, policies, filters, resuming, and the mock stream."""

import asyncio
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from phalanx.compat.chuk_lazarus.data.batching.streaming import AsyncSampleStream, StreamSample
from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import MockGymStream
from phalanx.data import Sample, SampleOrigin
from phalanx.data.samples import EpisodeStatus
from phalanx.data.tokenizers import ByteTokenizer
from phalanx.puzzles.server_client.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import ConnectionPoolConfig, EpisodeSpec, episode_seed
from phalanx.puzzles.server_client.episodes import (
    CollectConfig,
    PuzzleSampleStream,
    PuzzleServerRewardValues,
    StreamStatus,
    episode_samples,
    move_prompt,
    rollout_episode,
)
from phalanx.puzzles.server_client.protocol import (
    PuzzleDifficulty,
    PuzzleHint,
    PuzzleObservation,
    PuzzleServerUnavailableError,
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


async def collect_samples(stream: AsyncSampleStream) -> list[Sample]:
    async with stream:
        return [sample async for sample in stream]


def decode(sample: Sample | StreamSample) -> str:
    return ByteTokenizer().decode(sample.input_ids)


def test_each_move_is_a_sample_of_prompt_and_command() -> None:
    async def run() -> tuple[list[Sample], PuzzleSampleStream]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(
                toy_config(server, use_hints=False), policy=toy_policy, max_episodes=2
            )
            assert isinstance(stream, AsyncSampleStream) and stream.state is StreamStatus.IDLE
            return await collect_samples(stream), stream

    samples, stream = asyncio.run(run())
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
    metrics = stream.metrics
    assert (metrics.samples_produced, metrics.episodes_successful, stream.state) == (
        6,
        2,
        StreamStatus.EXHAUSTED,
    )
    assert metrics.total_time_seconds > 0


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


def test_long_and_failed_samples_can_be_filtered() -> None:
    async def run(**others: object) -> tuple[int, int]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy_config(server, use_hints=False, **others)
            stream = PuzzleSampleStream(config, policy=toy_policy, max_episodes=2)
            return len(await collect_samples(stream)), stream.metrics.samples_filtered

    assert asyncio.run(run(max_sample_length=20)) == (0, 6)
    assert asyncio.run(run(max_steps=2, keep_failures=False)) == (0, 4)
    assert asyncio.run(run(max_steps=2)) == (4, 0)


def test_stream_resumes_after_a_pause_and_restarts_after_reset() -> None:
    async def run() -> tuple[list[str | None], list[str | None], list[str | None], StreamStatus]:
        server = ScriptedServer(goal=1)
        async with scripted_server(server):
            stream = PuzzleSampleStream(
                toy_config(server, use_hints=False), policy=toy_policy, max_episodes=5
            )
            first = []
            async with stream:
                async for sample in stream:
                    first.append(sample.info.episode_id)
                    if len(first) == 2:
                        break
            paused = stream.state
            rest = [sample.info.episode_id for sample in await collect_samples(stream)]
            await stream.reset()
            assert (stream.metrics.samples_produced, stream.state) == (0, StreamStatus.IDLE)
            again = [sample.info.episode_id for sample in await collect_samples(stream)]
            return first, rest, again, paused

    first, rest, again, paused = asyncio.run(run())
    assert first + rest == again == [f"toy_easy_{episode_seed(4, n)}_{n}" for n in range(5)]
    assert paused is StreamStatus.PAUSED


@pytest.mark.parametrize("between", ["nothing", "close"])
@pytest.mark.parametrize("kind", ["server, in order", "server, as they end", "mock"])
def test_leaving_the_loop_mid_episode_loses_no_samples(kind: str, between: str) -> None:
    async def run() -> tuple[list[str], list[str], list[int]]:
        server = ScriptedServer(goal=4)
        async with scripted_server(server):
            stream: PuzzleSampleStream | MockGymStream
            if kind == "mock":
                stream = MockGymStream(num_episodes=5, steps_per_episode=4)
            else:
                pool = ConnectionPoolConfig(connections=3, ordered=kind == "server, in order")
                config = toy_config(server, use_hints=False, pool=pool)
                stream = PuzzleSampleStream(config, policy=toy_policy, max_episodes=5)
            found: list[str] = []
            counts = []
            async with stream:
                for count in (2, 3, 5, 1, 99):
                    taken = 0
                    async for sample in stream:
                        found.append(sample.sample_id)
                        taken += 1
                        if taken == count:
                            break
                    counts.append(stream.metrics.samples_produced - len(found))
                    if between == "close":
                        await stream.close()
            await stream.reset()
            all_ids = [sample.sample_id for sample in await collect_samples(stream)]
            return found, all_ids, counts

    found, all_ids, counts = asyncio.run(run())
    assert len(all_ids) == 20 and counts == [0] * 5
    assert sorted(found) == sorted(all_ids)
    assert kind == "server, as they end" or found == all_ids


def test_canceled_loop_resumes_without_losing_samples() -> None:
    async def slow_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        await asyncio.sleep(0.02)
        return toy_policy(observation, hint)

    async def run() -> tuple[list[str], list[str]]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(
                toy_config(server, use_hints=False), policy=slow_policy, max_episodes=4
            )
            found: list[str] = []
            async with stream:
                while stream.state is not StreamStatus.EXHAUSTED:
                    try:
                        async with asyncio.timeout(0.15):
                            async for sample in stream:
                                found.append(sample.sample_id)
                    except TimeoutError:
                        assert stream.state is StreamStatus.PAUSED
            await stream.reset()
            return found, [sample.sample_id for sample in await collect_samples(stream)]

    found, all_ids = asyncio.run(run())
    assert found == all_ids and len(all_ids) == 12


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
            return await collect_samples(stream), stream.metrics.episodes_replayed

    expected, _ = asyncio.run(run(60.0))
    expected_calls, calls[:] = list(calls), []
    samples, replayed = asyncio.run(run(0.2))
    assert samples == expected and len(samples) == 12
    assert calls == expected_calls == [(episode_seed(4, n), move) for n in (0, 1) for move in range(6)]
    assert replayed >= 2


def test_silent_server_raises_error_at_the_deadline() -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(60)

    async def run() -> StreamStatus:
        server = ScriptedServer()
        server.always[f"toy easy {episode_seed(4, 0)}"] = silence
        async with scripted_server(server):
            client = PuzzleClientConfig(host="127.0.0.1", port=server.port, read_timeout=0.2, deadline=0.35)
            config = toy_config(server, use_hints=False, client=client)
            stream = PuzzleSampleStream(config, policy=toy_policy, max_episodes=3)
            with pytest.raises(PuzzleServerUnavailableError, match="did not answer"):
                await asyncio.wait_for(collect_samples(stream), 5)
            return stream.state

    assert asyncio.run(run()) is StreamStatus.ERROR


def test_closing_the_stream_ends_waiting_readers() -> None:
    async def blocking_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        await asyncio.sleep(60)
        return None

    async def run() -> tuple[list[Sample], StreamStatus]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(toy_config(server, use_hints=False), policy=blocking_policy)

            async def read() -> list[Sample]:
                return [sample async for sample in stream]

            reader = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            await stream.close()
            return await asyncio.wait_for(reader, 5), stream.state

    assert asyncio.run(run()) == ([], StreamStatus.PAUSED)


def test_tokenizer_may_be_a_function_or_have_an_encode_method() -> None:
    async def run(tokenizer: object) -> tuple[int, ...]:
        return (await collect_samples(MockGymStream(tokenizer, num_episodes=1)))[0].input_ids

    code_points = asyncio.run(run(lambda text: [ord(letter) for letter in text]))
    assert code_points[:7] == tuple(map(ord, "Puzzle:"))
    assert asyncio.run(run(ByteTokenizer())) == asyncio.run(run(None)) == tuple(n + 2 for n in code_points)
    with pytest.raises(TypeError, match="must be a function or have an encode method"):
        MockGymStream(7)


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


def test_mock_stream_is_deterministic_and_only_the_last_move_of_a_failure_is_wrong() -> None:
    def run(**settings: object) -> list[StreamSample]:
        return asyncio.run(collect_samples(MockGymStream(num_episodes=20, steps_per_episode=4, **settings)))

    samples = run()
    assert samples == run() and samples != run(seed=1)
    assert len(samples) == 80
    assert {sample.success for sample in samples} == {True, False}
    for sample in samples:
        assert sample.step_index is not None and sample.difficulty is not None
        *_, board, move = decode(sample).rpartition("\nMove: ")
        grid = [line.split() for line in decode(sample).splitlines()[1:5]]
        row, column, number = map(int, move.split()[1:])
        conflict = str(number) in grid[row - 1] or str(number) in [line[column - 1] for line in grid]
        assert grid[row - 1][column - 1] == "."
        assert board.strip() == "Move:" and not (sample.success and conflict)
        assert sample.reward == (0.0 if sample.step_index < 3 else 1.0 if sample.success else -0.1)
    assert {sample.success for sample in run(success_rate=0.0)} == {False}
    assert all(0.4 <= sample.difficulty <= 0.5 for sample in run(difficulty_range=(0.4, 0.5)))


def test_mock_stream_has_the_interface_of_the_real_stream() -> None:
    async def run() -> None:
        stream = MockGymStream(num_episodes=2, steps_per_episode=1)
        assert isinstance(stream, AsyncSampleStream)
        first = await collect_samples(stream)
        assert stream.state is StreamStatus.EXHAUSTED and stream.metrics.episodes_completed == 2
        assert await collect_samples(stream) == []
        await stream.reset()
        assert await collect_samples(stream) == first

    asyncio.run(run())
    with pytest.raises(ValueError, match="steps_per_episode must be between 1 and 16, got 0"):
        MockGymStream(steps_per_episode=0)


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
