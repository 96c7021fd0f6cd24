"""The pool on a network that does whatever it likes, against the episodes of one that does nothing of it."""

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

from phalanx.puzzles.server import (
    ConnectionPoolConfig,
    PuzzlePool,
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
    """Knows what was taken, and what each episode is where nothing goes wrong."""

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
        self.server = ScriptedServer(longest=300.0, split=split)
        self.loop = self.stack.enter_context(network.simulated(World(0, folder), self.server.serve, faults=0))
        self.config = ConnectionPoolConfig(
            connections=connections, queue_size=queue, ordered=ordered, max_connection_age=recycle
        )
        self.taken: list[int] = []
        self.begun = 0
        self._open()

    def _open(self) -> None:
        self.pool = PuzzlePool(PATIENT, self.config)
        left = [spec for spec in SPECS if spec.index not in self.taken]
        self.begun = len(self.taken)
        self.playing: AsyncGenerator[Any, None] = self.pool.episodes(left, self._play)

    async def _play(self, client: Any, spec: Any) -> Any:
        self.begun += 1
        return await rollout_episode(client, spec)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.is_closed_and_goes_on()
            self.loop.check_nothing_is_left()
            self.stack.close()

    @rule(count=st.integers(1, 4))
    def takes_episodes(self, count: int) -> None:
        for _ in range(count):
            try:
                spec, episode = self.loop.run_until_complete(anext(self.playing))
            except StopAsyncIteration:
                assert sorted(self.taken) == list(range(len(SPECS))), "the pool ends before its episodes"
                return
            except PuzzleServerUnavailableError:
                self._open()  # it said that it gives up; whoever goes on loses nothing
                continue
            assert spec.index not in self.taken, f"episode {spec.index} comes twice"
            assert episode == calm_episodes()[spec.index]
            self.taken.append(spec.index)

    @rule(seconds=st.sampled_from([0.003, 0.02, 1.0]))
    def plays_ahead(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule()
    def is_closed_and_goes_on(self) -> None:
        self.loop.run_until_complete(self.playing.aclose())
        self.loop.run_until_complete(self.pool.close())
        assert not self.loop.connections
        self._open()

    @rule(everyone=st.booleans())
    def loses_connections(self, everyone: bool) -> None:
        for end in self.loop.connections[: None if everyone else 1]:
            end.cut()

    @rule()
    def has_a_half_open_connection(self) -> None:
        for end in self.loop.connections[:1]:
            end.deafen()

    @rule(count=st.integers(1, 5))
    def is_refused(self, count: int) -> None:
        self.loop.refusals += count

    @rule(count=st.integers(1, 3))
    def finds_the_server_full(self, count: int) -> None:
        self.server.full += count

    @rule(seconds=st.sampled_from([1.0, 29.0, 200.0, 3600.0]))
    def sleeps_with_the_machine(self, seconds: float) -> None:
        self.loop.jump(seconds)

    @precondition(lambda self: hasattr(self, "loop"))
    @invariant()
    def never_has_more_than_it_may(self) -> None:
        assert len(self.loop.connections) <= self.config.connections
        # Those that were taken have made room for as many more.
        assert self.begun - len(self.taken) <= self.config.queue_size
        if self.config.ordered:
            assert self.taken == list(range(len(self.taken)))


def test_a_pool_keeps_its_promises_on_any_network() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=40, stateful_step_count=15, deadline=None)
    )
