"""Text environments for SkyRL, and dataset rows for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.extras import require_extra
from phalanx.text.env import TextInfo, validate_seed
from phalanx.text.names import TextFactory, text_env_factory

with require_extra(__name__, "skyrl", "skyrl_gym"):
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class SkyRLEnvironment(BaseTextEnv):
    """A SkyRL environment that runs one episode of a text environment.

    The `environment`, `settings` and `seed` keys of the dataset row or of `env_config` determine the episode.

    Args:
        env_config: Default values for all rows.
        extras: Dataset row, which SkyRL passes. It takes precedence over `env_config`.
        environments: Function that creates the text environment for all rows. If None, each episode creates
            an environment from the `environment` and `settings` keys, and the tasks are loaded again.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        *,
        environments: TextFactory | None = None,
    ) -> None:
        super().__init__()
        row = {**(env_config or {}), **(extras or {})}
        self._seed = validate_seed(row.get("seed"))
        if environments is None:
            if "environment" not in row:
                raise ValueError("the row or env_config must have an environment, such as sudoku or arc-v2")
            environments = text_env_factory(row["environment"], **row.get("settings", {}))
        self._environment = environments()
        self._info = TextInfo()
        self._reward = 0.0

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Start the episode.

        Returns:
            A list of messages and a dictionary with the seed. The messages are those of `prompt`, followed by
            the first prompt of the episode unless this prompt is already the last message.
        """
        text = self._environment.reset(self._seed)
        self.turns, self._info, self._reward = 0, TextInfo(), 0.0
        messages = [dict(message) for message in prompt]
        if not messages or messages[-1]["content"] != text:
            messages.append({"role": "user", "content": text})
        return messages, {"seed": self._seed}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Pass the model's answer to the environment.

        Returns:
            The next prompt (none if the episode has ended), the reward, whether the episode has ended, and
            metadata.
        """
        step = self._environment.step(action)
        self.turns += 1
        self._info, self._reward = step.info, self._reward + step.reward
        return BaseTextEnvStepOutput(
            observations=[] if step.done else [{"role": "user", "content": step.text}],
            reward=step.reward,
            done=step.done,
            metadata=step.info._asdict(),
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return the metrics `solved` (0 or 1), `turns` (number of answers) and `reward` (total reward)."""
        return {"solved": float(self._info.solved), "turns": float(self.turns), "reward": self._reward}

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


def skyrl_rows(
    environment: str, seeds: Sequence[int], *, env_class: str = "phalanx", **settings: Any
) -> list[dict[str, Any]]:
    """Create one dataset row per seed, with `prompt`, `env_class` and the keys that `SkyRLEnvironment` reads.

    Args:
        environment: Name of a text environment, such as `sudoku`.
        seeds: Seeds of the episodes.
        env_class: Name under which the environment is registered with `register`.
        **settings: Additional arguments to `text_env_factory`.
    """
    episode = text_env_factory(environment, **settings)()
    return [
        {
            "prompt": [{"role": "user", "content": episode.reset(seed)}],
            "env_class": env_class,
            "environment": environment,
            "settings": settings,
            "seed": seed,
        }
        for seed in seeds
    ]


def register(env_class: str = "phalanx", **kwargs: Any) -> None:
    """Register `SkyRLEnvironment` for `skyrl_gym.make(env_class, ...)`.

    Call this function in every process that creates the environment. A second call with the same name
    replaces the default arguments. If the name belongs to another environment class, `skyrl_gym` raises an
    error.

    Args:
        env_class: Name of the environment.
        **kwargs: Default arguments for `SkyRLEnvironment`.
    """
    import skyrl_gym

    known = skyrl_gym.registry.get(env_class)
    if known is not None and known.entry_point is SkyRLEnvironment:
        del skyrl_gym.registry[env_class]
    skyrl_gym.register(id=env_class, entry_point=SkyRLEnvironment, kwargs=kwargs)
