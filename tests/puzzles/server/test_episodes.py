"""Episode streams: what a sample holds, policies, what is left out, going on after a pause, and the mock."""

import asyncio
from collections.abc import Iterator

import pytest
from arcade_server import RealServer
from pydantic import ValidationError

from phalanx.compat.chuk_lazarus.data.batching.streaming import AsyncSampleStream, StreamSample
from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import MockGymStream
from phalanx.data import Sample, SampleOrigin
from phalanx.data.samples import EpisodeStatus
from phalanx.data.tokenizers import ByteTokenizer
from phalanx.puzzles.server.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server.episodes import (
    CollectConfig,
    PuzzleSampleStream,
    StepRewards,
    StreamState,
    episode_samples,
    move_prompt,
    rollout_episode,
)
from phalanx.puzzles.server.pool import ConnectionPoolConfig, EpisodeSpec, episode_seed
from phalanx.puzzles.server.protocol import (
    PuzzleDifficulty,
    PuzzleHint,
    PuzzleObservation,
    PuzzleServerUnavailableError,
)
from tests.helpers.puzzle_server import running_server
from tests.helpers.scripted_puzzle_server import ScriptedServer, Session, scripted_server

ORDERED = ConnectionPoolConfig(connections=2, ordered=True)


def obey(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
    """A policy for the toy game, which needs no hint."""
    return f"place 1 {observation.moves + 1} {observation.moves + 1}"


def toy(server: ScriptedServer, **others: object) -> CollectConfig:
    client = PuzzleClientConfig(host="127.0.0.1", port=server.port, max_retries=12)
    fixed = {"client": client, "games": ("toy",), "seed": 4, "pool": ORDERED}
    return CollectConfig(**fixed | others)


async def samples_of(stream: AsyncSampleStream) -> list[Sample]:
    async with stream:
        return [sample async for sample in stream]


def text_of(sample: Sample | StreamSample) -> str:
    return ByteTokenizer().decode(sample.input_ids)


def test_a_move_is_a_sample_of_its_prompt_and_its_command() -> None:
    async def run() -> tuple[list[Sample], PuzzleSampleStream]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(toy(server, use_hints=False), policy=obey, max_episodes=2)
            assert isinstance(stream, AsyncSampleStream) and stream.state is StreamState.IDLE
            return await samples_of(stream), stream

    samples, stream = asyncio.run(run())
    seed = episode_seed(4, 0)
    assert [sample.sample_id for sample in samples[:4]] == [
        *(f"toy_easy_{seed}_0_step{step}" for step in range(3)),
        f"toy_easy_{episode_seed(4, 1)}_1_step0",
    ]
    second = samples[1]
    prompt, answer = f"Puzzle: toy (easy)\n[1/3] ■ seed {seed}\nMove: ", "place 1 2 2\n"
    assert text_of(second) == prompt + answer
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
        StreamState.EXHAUSTED,
    )
    assert metrics.total_time_seconds > 0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_policy_is_a_function_or_a_coroutine_and_sees_the_hint(kind: str) -> None:
    seen = []

    def sync(observation: PuzzleObservation, hint: PuzzleHint | None) -> str:
        assert hint is not None
        seen.append(hint.message)
        return f"place 1 {hint.message[-1]} {hint.message[-1]}"

    async def later(observation: PuzzleObservation, hint: PuzzleHint | None) -> str:
        await asyncio.sleep(0)
        return sync(observation, hint)

    async def run() -> list[Sample]:
        server = ScriptedServer()
        async with scripted_server(server):
            policy = sync if kind == "sync" else later
            return await samples_of(PuzzleSampleStream(toy(server), policy=policy, max_episodes=1))

    assert len(asyncio.run(run())) == 3
    assert seen == [f"Try placing {n} at row 1, column {n}" for n in (1, 2, 3)]


def test_wrong_moves_of_a_policy_are_refused_paid_for_and_counted() -> None:
    says = iter(["place 1 1 9", "quit", "two\nlines", "place 1 1 1", "dance", "dance", "dance", "dance"])

    async def run() -> list[Sample]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy(server, use_hints=False, max_invalid_answers=4, rewards=StepRewards(invalid=-0.5))
            return await samples_of(PuzzleSampleStream(config, policy=lambda *_: next(says), max_episodes=1))

    samples = asyncio.run(run())
    assert [sample.info.reward for sample in samples] == [-0.5, -0.5, -0.5, 0.0, -0.5, -0.5, -0.5, -0.5]
    assert {sample.info.success for sample in samples} == {False}
    assert {sample.info.episode_status for sample in samples} == {EpisodeStatus.FAILURE}


def test_an_episode_ends_when_it_is_given_up_lost_or_too_long() -> None:
    async def mine(session: Session) -> None:
        await session.say({"type": "result", "success": True, "code": "REVEALED", "message": "boom"})
        await session.line("GAME OVER! You hit a mine!")

    async def run() -> list[tuple[int, EpisodeStatus, float | None]]:
        server = ScriptedServer(goal=50)
        found = []
        async with (
            scripted_server(server),
            PuzzleClient(PuzzleClientConfig(host="127.0.0.1", port=server.port)) as client,
        ):
            spec = EpisodeSpec(0, "toy", PuzzleDifficulty.HARD, 1)
            server.scripts["reveal 1 1"] = mine
            config = CollectConfig(use_hints=False, max_steps=5)
            policies = [lambda *_: None, lambda *_: "reveal 1 1", obey]
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


def test_what_is_too_long_or_a_failure_can_be_left_out() -> None:
    async def run(**others: object) -> tuple[int, int]:
        server = ScriptedServer()
        async with scripted_server(server):
            config = toy(server, use_hints=False, **others)
            stream = PuzzleSampleStream(config, policy=obey, max_episodes=2)
            return len(await samples_of(stream)), stream.metrics.samples_filtered

    assert asyncio.run(run(max_length=20)) == (0, 6)
    assert asyncio.run(run(max_steps=2, keep_failures=False)) == (0, 4)
    assert asyncio.run(run(max_steps=2)) == (4, 0)


def test_a_stream_goes_on_after_a_pause_and_starts_again_after_a_reset() -> None:
    async def run() -> tuple[list[str | None], list[str | None], list[str | None], StreamState]:
        server = ScriptedServer(goal=1)
        async with scripted_server(server):
            stream = PuzzleSampleStream(toy(server, use_hints=False), policy=obey, max_episodes=5)
            first = []
            async with stream:
                async for sample in stream:
                    first.append(sample.info.episode_id)
                    if len(first) == 2:
                        break
            paused = stream.state
            rest = [sample.info.episode_id for sample in await samples_of(stream)]
            await stream.reset()
            assert (stream.metrics.samples_produced, stream.state) == (0, StreamState.IDLE)
            again = [sample.info.episode_id for sample in await samples_of(stream)]
            return first, rest, again, paused

    first, rest, again, paused = asyncio.run(run())
    assert first + rest == again == [f"toy_easy_{episode_seed(4, n)}_{n}" for n in range(5)]
    assert paused is StreamState.PAUSED


@pytest.mark.parametrize("between", ["nothing", "close"])
@pytest.mark.parametrize("kind", ["server, in order", "server, as they end", "mock"])
def test_a_loop_left_in_mid_episode_loses_nothing_and_counts_what_it_handed_out(
    kind: str, between: str
) -> None:
    async def run() -> tuple[list[str], list[str], list[int]]:
        server = ScriptedServer(goal=4)
        async with scripted_server(server):
            stream: PuzzleSampleStream | MockGymStream
            if kind == "mock":
                stream = MockGymStream(num_episodes=5, steps_per_episode=4)
            else:
                pool = ConnectionPoolConfig(connections=3, ordered=kind == "server, in order")
                config = toy(server, use_hints=False, pool=pool)
                stream = PuzzleSampleStream(config, policy=obey, max_episodes=5)
            found: list[str] = []
            counts = []
            async with stream:
                for most in (2, 3, 5, 1, 99):
                    taken = 0
                    async for sample in stream:
                        found.append(sample.sample_id)
                        taken += 1
                        if taken == most:
                            break
                    counts.append(stream.metrics.samples_produced - len(found))
                    if between == "close":
                        await stream.close()
            await stream.reset()
            whole = [sample.sample_id for sample in await samples_of(stream)]
            return found, whole, counts

    found, whole, counts = asyncio.run(run())
    assert len(whole) == 20 and counts == [0] * 5
    assert sorted(found) == sorted(whole)
    assert kind == "server, as they end" or found == whole


def test_a_loop_that_is_canceled_goes_on_where_it_was() -> None:
    async def slowly(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        await asyncio.sleep(0.02)
        return obey(observation, hint)

    async def run() -> tuple[list[str], list[str]]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(toy(server, use_hints=False), policy=slowly, max_episodes=4)
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
            return found, [sample.sample_id for sample in await samples_of(stream)]

    found, whole = asyncio.run(run())
    assert found == whole and len(whole) == 12


def test_a_policy_slower_than_the_servers_connections_is_asked_once_for_each_move() -> None:
    """The server ends a connection at 300 seconds; here at a fifth of one, and an episode takes a third."""
    asked: list[tuple[int, int]] = []

    async def think(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        asked.append((observation.seed, observation.moves))
        await asyncio.sleep(0.06)
        return obey(observation, hint)

    async def run(longest: float) -> tuple[list[Sample], int]:
        server = ScriptedServer(goal=6, longest=longest)
        async with scripted_server(server):
            config = toy(server, use_hints=False, pool=ConnectionPoolConfig(connections=1, ordered=True))
            stream = PuzzleSampleStream(config, policy=think, max_episodes=2)
            return await samples_of(stream), stream.metrics.episodes_replayed

    calm, _ = asyncio.run(run(60.0))
    once, asked[:] = list(asked), []
    rough, replayed = asyncio.run(run(0.2))
    assert rough == calm and len(rough) == 12
    assert asked == once == [(episode_seed(4, n), move) for n in (0, 1) for move in range(6)]
    assert replayed >= 2


def test_a_silent_server_ends_the_stream_at_the_deadline_in_words() -> None:
    async def silence(session: Session) -> None:
        await asyncio.sleep(60)

    async def run() -> StreamState:
        server = ScriptedServer()
        server.always[f"toy easy {episode_seed(4, 0)}"] = silence
        async with scripted_server(server):
            client = PuzzleClientConfig(host="127.0.0.1", port=server.port, read_timeout=0.2, deadline=0.35)
            config = toy(server, use_hints=False, client=client)
            stream = PuzzleSampleStream(config, policy=obey, max_episodes=3)
            with pytest.raises(PuzzleServerUnavailableError, match="did not answer"):
                await asyncio.wait_for(samples_of(stream), 5)
            return stream.state

    assert asyncio.run(run()) is StreamState.ERROR


def test_a_stream_that_is_closed_lets_go_of_whoever_waits_for_it() -> None:
    async def never(observation: PuzzleObservation, hint: PuzzleHint | None) -> str | None:
        await asyncio.sleep(60)
        return None

    async def run() -> tuple[list[Sample], StreamState]:
        server = ScriptedServer()
        async with scripted_server(server):
            stream = PuzzleSampleStream(toy(server, use_hints=False), policy=never)

            async def read() -> list[Sample]:
                return [sample async for sample in stream]

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            await stream.close()
            return await asyncio.wait_for(reading, 5), stream.state

    assert asyncio.run(run()) == ([], StreamState.PAUSED)


def test_a_tokenizer_is_a_function_or_has_an_encode() -> None:
    async def run(tokenizer: object) -> tuple[int, ...]:
        return (await samples_of(MockGymStream(tokenizer, num_episodes=1)))[0].input_ids

    plain = asyncio.run(run(lambda text: [ord(letter) for letter in text]))
    assert plain[:7] == tuple(map(ord, "Puzzle:"))
    assert asyncio.run(run(ByteTokenizer())) == asyncio.run(run(None)) == tuple(n + 2 for n in plain)
    with pytest.raises(TypeError, match="must be a function or have an encode method"):
        MockGymStream(7)


def test_settings_that_cannot_be_played_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="'einstein' cannot be converted to commands; pass a policy"):
        PuzzleSampleStream(CollectConfig(games=("einstein",)))
    with pytest.raises(ValueError, match="use_hints=False needs a policy"):
        PuzzleSampleStream(CollectConfig(use_hints=False))
    with pytest.raises(ValidationError, match="at least 1 item"):
        CollectConfig(games=())
    with pytest.raises(ValidationError, match=r"'sud\$' is not a valid name of a game"):
        CollectConfig(games=("sud$",))
    assert CollectConfig(games=("Killer Sudoku",)).games == ("killer",)


def test_the_mock_is_deterministic_and_each_of_its_moves_is_right_but_a_failures_last() -> None:
    def run(**settings: object) -> list[StreamSample]:
        return asyncio.run(samples_of(MockGymStream(num_episodes=20, steps_per_episode=4, **settings)))

    samples = run()
    assert samples == run() and samples != run(seed=1)
    assert len(samples) == 80
    assert {sample.success for sample in samples} == {True, False}
    for sample in samples:
        assert sample.step_index is not None and sample.difficulty is not None
        *_, board, move = text_of(sample).rpartition("\nMove: ")
        grid = [line.split() for line in text_of(sample).splitlines()[1:5]]
        row, column, number = map(int, move.split()[1:])
        clash = str(number) in grid[row - 1] or str(number) in [line[column - 1] for line in grid]
        assert grid[row - 1][column - 1] == "."
        assert board.strip() == "Move:" and not (sample.success and clash)
        assert sample.reward == (0.0 if sample.step_index < 3 else 1.0 if sample.success else -0.1)
    assert {sample.success for sample in run(success_rate=0.0)} == {False}
    assert all(0.4 <= sample.difficulty <= 0.5 for sample in run(difficulty_range=(0.4, 0.5)))


def test_the_mock_has_the_interface_of_the_real_stream() -> None:
    async def run() -> None:
        stream = MockGymStream(num_episodes=2, steps_per_episode=1)
        assert isinstance(stream, AsyncSampleStream)
        first = await samples_of(stream)
        assert stream.state is StreamState.EXHAUSTED and stream.metrics.episodes_completed == 2
        assert await samples_of(stream) == []
        await stream.reset()
        assert await samples_of(stream) == first

    asyncio.run(run())
    with pytest.raises(ValueError, match="steps_per_episode must be between 1 and 16, got 0"):
        MockGymStream(steps_per_episode=0)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with running_server() as running:
        yield running


def test_the_real_servers_puzzles_are_the_same_on_one_connection_and_on_four(server: RealServer) -> None:
    async def run(connections: int) -> list[Sample]:
        config = CollectConfig(
            client=PuzzleClientConfig(host="127.0.0.1", port=server.port),
            games=("binary", "lights", "tents"),
            difficulties=("easy", "medium"),
            pool=ConnectionPoolConfig(connections=connections, ordered=True),
        )
        return await samples_of(PuzzleSampleStream(config, max_episodes=12))

    one, four = asyncio.run(run(1)), asyncio.run(run(4))
    assert one == four
    assert all(sample.info.success for sample in one)
    assert {sample.info.difficulty for sample in one} == {0.3, 0.6}
    assert {str(sample.info.episode_id).split("_")[0] for sample in one} == {"binary", "lights", "tents"}
    first = text_of(one[0])
    assert first.startswith("Puzzle: binary (easy)\n  |1|2|") and first.rpartition("Move: ")[2].startswith(
        "place "
    )


def test_logic_grid_gives_its_first_hint_and_a_failure(server: RealServer) -> None:
    async def run() -> list[Sample]:
        config = CollectConfig(
            client=PuzzleClientConfig(host="127.0.0.1", port=server.port), games=("logic",)
        )
        return await samples_of(PuzzleSampleStream(config, max_episodes=1))

    (sample,) = asyncio.run(run())
    assert sample.info.success is False and "connect person" in text_of(sample)


def test_the_prompt_is_the_games_picture() -> None:
    observation = PuzzleObservation(game="Toy", difficulty="hard", seed=1, grid_display="a  \nb\n")
    assert move_prompt("toy", observation) == "Puzzle: toy (hard)\na\nb\nMove: "
    assert episode_samples.__doc__
