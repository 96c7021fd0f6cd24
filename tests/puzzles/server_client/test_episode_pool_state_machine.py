"""Stateful test of the pool on a simulated network with faults."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.puzzles.server_client import (
    ConnectionPoolConfig,
    PuzzleEpisodePool,
    PuzzleServerUnavailableError,
    episode_specs,
    rollout_episode,
)
from tests.faults import network
from tests.faults.puzzle_server_scenarios import PATIENT, calm_episodes
from tests.faults.simulator import World
from tests.helpers.scripted_puzzle_server import ScriptedServer

pytestmark = pytest.mark.slow

SPECS = list(episode_specs(["sudoku"], ["easy"], 3, end=10))


class PoolMachine(RuleBasedStateMachine):
    """Compares the episodes of the pool with those on a network without faults."""

    @initialize(
        connections=st.integers(1, 4),
        queue=st.integers(1, 5),
        ordered=st.booleans(),
        recycle=st.sampled_from([0.01, 240.0]),
        split=st.booleans(),
    )
    def begin(self, connections: int, queue: int, ordered: bool, recycle: float, split: bool) -> None:
        self.stack = contextlib.ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.server = ScriptedServer(max_connection_age=300.0, split=split)
        self.loop = self.stack.enter_context(network.simulated(World(0, folder), self.server.serve, faults=0))
        self.config = ConnectionPoolConfig(
            connections=connections,
            max_unconsumed_episodes=queue,
            ordered=ordered,
            max_connection_age=recycle,
        )
        self.received: list[int] = []
        self.started = 0
        self._open()

    def _open(self) -> None:
        self.pool = PuzzleEpisodePool(PATIENT, self.config)
        remaining = [spec for spec in SPECS if spec.index not in self.received]
        self.started = len(self.received)
        self.episodes: AsyncGenerator[Any, None] = self.pool.episodes(remaining, self._play)

    async def _play(self, client: Any, spec: Any) -> Any:
        self.started += 1
        return await rollout_episode(client, spec)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.close_and_resume()
            self.loop.check_nothing_is_left()
            self.stack.close()

    @rule(count=st.integers(1, 4))
    def take_episodes(self, count: int) -> None:
        for _ in range(count):
            try:
                spec, episode = self.loop.run_until_complete(anext(self.episodes))
            except StopAsyncIteration:
                assert sorted(self.received) == list(range(len(SPECS))), "the pool ended before its episodes"
                return
            except PuzzleServerUnavailableError:
                self._open()  # the pool gave up; a new one loses no episode
                continue
            assert spec.index not in self.received, f"episode {spec.index} was returned twice"
            assert episode == calm_episodes()[spec.index]
            self.received.append(spec.index)

    @rule(seconds=st.sampled_from([0.003, 0.02, 1.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule()
    def close_and_resume(self) -> None:
        self.loop.run_until_complete(self.episodes.aclose())
        self.loop.run_until_complete(self.pool.close())
        assert not self.loop.connections
        self._open()

    @rule(all_connections=st.booleans())
    def lose_connections(self, all_connections: bool) -> None:
        for end in self.loop.connections[: None if all_connections else 1]:
            end.cut()

    @rule()
    def half_open_connection(self) -> None:
        for end in self.loop.connections[:1]:
            end.deafen()

    @rule(count=st.integers(1, 5))
    def refuse_connections(self, count: int) -> None:
        self.loop.refusals += count

    @rule(count=st.integers(1, 3))
    def fill_server(self, count: int) -> None:
        self.server.full += count

    @rule(seconds=st.sampled_from([1.0, 29.0, 200.0, 3600.0]))
    def jump_clock(self, seconds: float) -> None:
        self.loop.jump(seconds)

    @precondition(lambda self: hasattr(self, "loop"))
    @invariant()
    def limits_are_respected(self) -> None:
        assert len(self.loop.connections) <= self.config.connections
        # Each received episode frees one slot of the queue.
        assert self.started - len(self.received) <= self.config.max_unconsumed_episodes
        if self.config.ordered:
            assert self.received == list(range(len(self.received)))


def test_pool_invariants_hold_with_network_faults() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=40, stateful_step_count=15, deadline=None)
    )
