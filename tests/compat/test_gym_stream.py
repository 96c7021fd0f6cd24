"""Streams of puzzle episodes with chuk-lazarus's names: states, statistics, filters, and the mock stream."""

import asyncio

import pytest

from phalanx.compat.chuk_lazarus.data.batching.streaming import AsyncSampleStream, StreamSample, StreamState
from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import (
    GymConfig,
    GymEpisodeStream,
    MockGymStream,
)
from phalanx.data.tokenizers import ByteTokenizer
from phalanx.puzzles.server_client.client import PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import ConnectionPoolConfig, episode_seed
from phalanx.puzzles.server_client.protocol import (
    PuzzleHint,
    PuzzleObservation,
    PuzzleServerUnavailableError,
)
from tests.helpers.scripted_puzzle_server import ScriptedServer, Session, scripted_server

ORDERED = ConnectionPoolConfig(connections=2, ordered=True)


def toy_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
    """Return the next correct move of the toy game without a hint."""
    return f"place 1 {observation.moves + 1} {observation.moves + 1}"


def toy_config(server: ScriptedServer, **others: object) -> GymConfig:
    client = PuzzleClientConfig(host="127.0.0.1", port=server.port, max_retries=12)
    fixed = {"client": client, "games": ("toy",), "seed": 4, "pool": ORDERED, "use_hints": False}
    return GymConfig(**fixed | others)


async def collect_samples(stream: AsyncSampleStream) -> list[StreamSample]:
    async with stream:
        return [sample async for sample in stream]


def decode(sample: StreamSample) -> str:
    return ByteTokenizer().decode(sample.input_ids)


def test_stream_counts_samples_and_episodes() -> None:
    async def run() -> GymEpisodeStream:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = GymEpisodeStream(toy_config(server), policy=toy_policy, max_episodes=2)
            assert isinstance(stream, AsyncSampleStream) and stream.state is StreamState.IDLE
            assert len(await collect_samples(stream)) == 6
            return stream

    stream = asyncio.run(run())
    metrics = stream.metrics
    assert (metrics.samples_produced, metrics.episodes_successful) == (6, 2)
    assert stream.state is StreamState.EXHAUSTED and metrics.total_time_seconds > 0


def test_long_and_failed_samples_can_be_filtered() -> None:
    async def run(**others: object) -> tuple[int, int]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy_config(server, **others)
            stream = GymEpisodeStream(config, policy=toy_policy, max_episodes=2)
            return len(await collect_samples(stream)), stream.metrics.samples_filtered

    assert asyncio.run(run(max_sample_length=20)) == (0, 6)
    assert asyncio.run(run(max_steps=2, keep_failures=False)) == (0, 4)
    assert asyncio.run(run(max_steps=2)) == (4, 0)


def test_stream_resumes_after_a_pause_and_restarts_after_reset() -> None:
    async def run() -> tuple[list[str | None], list[str | None], list[str | None], StreamState]:
        server = ScriptedServer(goal=1)
        async with scripted_server(server):
            stream = GymEpisodeStream(toy_config(server), policy=toy_policy, max_episodes=5)
            first = []
            async with stream:
                async for sample in stream:
                    first.append(sample.episode_id)
                    if len(first) == 2:
                        break
            paused = stream.state
            rest = [sample.episode_id for sample in await collect_samples(stream)]
            await stream.reset()
            assert (stream.metrics.samples_produced, stream.state) == (0, StreamState.IDLE)
            again = [sample.episode_id for sample in await collect_samples(stream)]
            return first, rest, again, paused

    first, rest, again, paused = asyncio.run(run())
    assert first + rest == again == [f"toy_easy_{episode_seed(4, n)}_{n}" for n in range(5)]
    assert paused is StreamState.PAUSED


@pytest.mark.parametrize("between", ["nothing", "close"])
@pytest.mark.parametrize("kind", ["server, in order", "server, as they end", "mock"])
def test_leaving_the_loop_mid_episode_loses_no_samples(kind: str, between: str) -> None:
    async def run() -> tuple[list[str], list[str], list[int]]:
        server = ScriptedServer(goal=4)
        async with scripted_server(server):
            stream: GymEpisodeStream
            if kind == "mock":
                stream = MockGymStream(num_episodes=5, steps_per_episode=4)
            else:
                pool = ConnectionPoolConfig(connections=3, ordered=kind == "server, in order")
                config = toy_config(server, pool=pool)
                stream = GymEpisodeStream(config, policy=toy_policy, max_episodes=5)
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
            stream = GymEpisodeStream(toy_config(server), policy=slow_policy, max_episodes=4)
            found: list[str] = []
            async with stream:
                while stream.state is not StreamState.EXHAUSTED:
                    try:
                        async with asyncio.timeout(0.15):
                            async for sample in stream:
                                found.append(sample.sample_id)
                    except TimeoutError:
                        assert stream.state is StreamState.PAUSED
            await stream.reset()
            return found, [sample.sample_id for sample in await collect_samples(stream)]

    found, all_ids = asyncio.run(run())
    assert found == all_ids and len(all_ids) == 12


def test_silent_server_raises_error_at_the_deadline() -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(60)

    async def run() -> StreamState:
        server = ScriptedServer()
        server.always[f"toy easy {episode_seed(4, 0)}"] = silence
        async with scripted_server(server):
            client = PuzzleClientConfig(host="127.0.0.1", port=server.port, read_timeout=0.2, deadline=0.35)
            config = toy_config(server, client=client)
            stream = GymEpisodeStream(config, policy=toy_policy, max_episodes=3)
            with pytest.raises(PuzzleServerUnavailableError, match="did not answer"):
                await asyncio.wait_for(collect_samples(stream), 5)
            return stream.state

    assert asyncio.run(run()) is StreamState.ERROR


def test_closing_the_stream_ends_waiting_readers() -> None:
    async def blocking_policy(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        await asyncio.sleep(60)
        return None

    async def run() -> tuple[list[StreamSample], StreamState]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = GymEpisodeStream(toy_config(server), policy=blocking_policy)

            async def read() -> list[StreamSample]:
                return [sample async for sample in stream]

            reader = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            await stream.close()
            return await asyncio.wait_for(reader, 5), stream.state

    assert asyncio.run(run()) == ([], StreamState.PAUSED)


def test_tokenizer_may_be_a_function_or_have_an_encode_method() -> None:
    async def run(tokenizer: object) -> tuple[int, ...]:
        return (await collect_samples(MockGymStream(tokenizer, num_episodes=1)))[0].input_ids

    code_points = asyncio.run(run(lambda text: [ord(letter) for letter in text]))
    assert code_points[:7] == tuple(map(ord, "Puzzle:"))
    assert asyncio.run(run(ByteTokenizer())) == asyncio.run(run(None)) == tuple(n + 2 for n in code_points)
    with pytest.raises(TypeError, match="must be a function or have an encode method"):
        MockGymStream(7)


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
        assert stream.state is StreamState.EXHAUSTED and stream.metrics.episodes_completed == 2
        assert await collect_samples(stream) == []
        await stream.reset()
        assert await collect_samples(stream) == first

    asyncio.run(run())
    with pytest.raises(ValueError, match="steps_per_episode must be between 1 and 16, got 0"):
        MockGymStream(steps_per_episode=0)


def test_connection_settings_are_given_either_directly_or_in_client() -> None:
    assert GymConfig(host="arcade", port=1234).client.port == 1234
    with pytest.raises(ValueError, match="set host in client"):
        GymConfig(host="arcade", client=PuzzleClientConfig(port=1234))
