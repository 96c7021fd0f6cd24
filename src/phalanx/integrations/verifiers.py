"""Taskset, environment and harness for verifiers 0.4 and prime-rl.

verifiers imports these classes from the `phalanx_verifiers` package, so the taskset id is
`phalanx-verifiers`.
"""

import asyncio
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from phalanx.extras import require_extra
from phalanx.text.env import MAX_SEED, TextVectorEnvironment
from phalanx.text.names import TextFactory, parse_env_name, text_env_factory
from phalanx.text.splits import Split

with require_extra(__name__, "verifiers", "verifiers", "openai"):
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire


class PhalanxTasksetConfig(vf.TasksetConfig):
    """Settings for a taskset, which determine its episodes."""

    environment: str = "sudoku"
    """Name of a text environment, such as `sudoku` or `arc-v2`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Additional arguments to `text_env_factory`, such as `difficulty` and `turns` for puzzles."""
    split: Split | None = None
    """Split of the episodes: `train`, `validation` or `test`. If None, consecutive seeds are used, and
    their episodes can belong to any split."""
    first_seed: int = Field(0, ge=0, le=MAX_SEED)
    """Smallest seed to use. With `split`, seeds whose episodes are in other splits are skipped."""
    num_tasks: int = Field(1_000, ge=1)
    """Number of episodes. Seeds are used in ascending order from `first_seed`, without those that `split`
    excludes."""

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, environment: str) -> str:
        if len(parts := parse_env_name(environment)) > 1:
            raise ValueError(f"a taskset serves one kind of environment, got {len(parts)}: {environment}")
        return environment


class PhalanxTaskData(vf.TaskData):
    """Data for one episode."""

    seed: int
    """Seed of the episode."""


class PhalanxTask(vf.Task[PhalanxTaskData, vf.State, vf.TaskConfig]):
    """Task that consists of one episode. Its reward is computed by `VerifiersEnv`."""


class PhalanxTaskset(vf.Taskset[PhalanxTask, PhalanxTasksetConfig]):
    """Taskset for a text environment. Each task is the episode of one seed."""

    @functools.cached_property
    def environments(self) -> TextFactory:
        """Factory that creates the text environment."""
        return text_env_factory(self.config.environment, **self.config.settings)

    def load(self) -> Iterator[PhalanxTask]:
        environment, name = self.environments(), self.config.environment
        first, split = self.config.first_seed, self.config.split
        if split is None:
            seeds = iter(range(first, MAX_SEED + 1))
        else:
            seeds = TextVectorEnvironment({name: self.environments}).seeds(name, split, first)
        for seed in itertools.islice(seeds, self.config.num_tasks):
            data = PhalanxTaskData(name=f"{name}#{seed}", prompt=environment.reset(seed), seed=seed)
            yield PhalanxTask(data, self.config.task)
        environment.close()


class VerifiersEnvConfig(vf.EnvConfig):
    """Settings for `VerifiersEnv`.

    By default, the agent runs in a subprocess. It needs no sandbox, because the text that the model generates
    is not executed.
    """

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """Agent whose model answers the prompts."""


class VerifiersEnv(vf.Env[VerifiersEnvConfig]):
    """Environment that runs an episode as a conversation between the model and a text environment.

    The reward is the sum of the episode's rewards. The metrics are `solved` (0 or 1) and `invalid_answers`
    (number of invalid answers).
    """

    async def run(self, task: Any, agents: vf.Agents) -> None:
        assert isinstance(self.taskset, PhalanxTaskset)
        environment = self.taskset.environments()
        await asyncio.to_thread(environment.reset, task.data.seed)
        reward, solved, invalid_answers = 0.0, False, 0
        try:
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    step = await asyncio.to_thread(environment.step, segment.last_reply)
                    reward, solved = reward + step.reward, step.info.solved
                    invalid_answers += bool(step.info.error)
                    if step.done:
                        break
                    segment = await interaction.turn(step.text)
        finally:
            await asyncio.to_thread(environment.close)
        interaction.trace.record_reward("reward", reward)
        interaction.trace.record_metric("solved", float(solved))
        interaction.trace.record_metric("invalid_answers", float(invalid_answers))


class ChatHarnessConfig(vf.HarnessConfig):
    """Settings for `ChatHarness`. There are none besides those of the base class."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Harness that requests an answer from the model directly in this process.

    The harnesses in verifiers start a program for every answer, which a chat without tools does not need.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Send the prompt to the model through `endpoint`. The endpoint records the answer."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(message_to_wire(message) for message in prompt or [])
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(0, "", "")
