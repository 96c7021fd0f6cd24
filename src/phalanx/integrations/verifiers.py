"""A taskset and an environment for verifiers 0.4, and so for prime-rl: the puzzle is the model's user.

verifiers looks for them in the package `phalanx_verifiers`, so `phalanx-verifiers` is the taskset's id. The
environments are `phalanx.text.TextEnvironment`s; models, rollouts and training are verifiers' and prime-rl's.
"""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

try:
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("verifiers", "openai"):
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.verifiers needs {error.name}: pip install "phalanx[verifiers]"',
        name=error.name,
    ) from error

from pydantic import Field

from phalanx.text.env import MAX_SEED
from phalanx.text.env_spec import TextFactory, text_env_factory


class PhalanxConfig(vf.TasksetConfig):
    """Which episodes there are."""

    environment: str = "sudoku"
    """A kind of puzzle, or the id of a registered environment that has words, such as `arc-v2`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What `text_env_factory` takes besides: `difficulty` and `turns` for puzzles, ..."""
    first_seed: int = Field(0, ge=0, le=MAX_SEED)
    """The seed of the first episode."""
    num_tasks: int = Field(1_000, ge=1)
    """How many episodes there are; the seeds follow one another."""


class PhalanxData(vf.TaskData):
    """One episode."""

    seed: int


class PhalanxTask(vf.Task[PhalanxData, vf.State, vf.TaskConfig]):
    """One episode; what it pays is the environment's to say."""


class PhalanxTaskset(vf.Taskset[PhalanxTask, PhalanxConfig]):
    """The episodes of an environment, one for each seed, with their first text as the prompt."""

    @functools.cached_property
    def environments(self) -> TextFactory:
        """What makes the environments."""
        return text_env_factory(self.config.environment, **self.config.settings)

    def load(self) -> Iterator[PhalanxTask]:
        environment, name = self.environments(), self.config.environment
        first = self.config.first_seed
        for seed in range(first, min(first + self.config.num_tasks, MAX_SEED + 1)):
            data = PhalanxData(name=f"{name}#{seed}", prompt=environment.reset(seed), seed=seed)
            yield PhalanxTask(data, self.config.task)
        environment.close()


class PhalanxEnvConfig(vf.EnvConfig):
    """Who plays; answers are words, so nothing of a model's runs anywhere."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class PhalanxEnv(vf.Env[PhalanxEnvConfig]):
    """An episode as a conversation: the model answers, and the environment says what follows.

    The reward is the sum of the episode's; `solved`, and `refused` (answers that were no moves) are metrics.
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
    """A chat has no settings of its own."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Asks the model for one answer, from within this process.

    verifiers' own harnesses are programs, started anew for every answer; a chat without tools needs none.
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
        """One request through the endpoint that records it."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(message_to_wire(message) for message in prompt or [])
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(0, "", "")
