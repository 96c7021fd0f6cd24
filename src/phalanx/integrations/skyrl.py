"""SkyRL's `init`, `step` and `close` on text environments, and the rows that its datasets are made of.

Training is SkyRL's; the environments are `phalanx.text.TextEnvironment`s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "skyrl_gym":
        raise
    raise ModuleNotFoundError(
        'phalanx.integrations.skyrl needs skyrl_gym: pip install "phalanx[skyrl]"', name=error.name
    ) from error

from phalanx.text.env import TextInfo, validate_seed
from phalanx.text.env_spec import TextFactory, text_env_factory


class SkyRLEnvironment(BaseTextEnv):
    """One episode, of the `environment`, its `settings` and the `seed` that the config or the row names.

    `extras` is the dataset's row, as SkyRL hands it on; what it says goes before `env_config`. Where the two
    agree for all rows, `environments` saves making the tasks of a registered environment for each episode.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        *,
        environments: TextFactory | None = None,
    ) -> None:
        super().__init__()
        told = {**(env_config or {}), **(extras or {})}
        self._seed = validate_seed(told.get("seed"))
        if environments is None:
            if "environment" not in told:
                raise ValueError("the row or the config must name an environment, such as sudoku or arc-v2")
            environments = text_env_factory(told["environment"], **told.get("settings", {}))
        self._environment = environments()
        self._info = TextInfo()
        self._reward = 0.0

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """The prompt, with the episode's text behind it unless it is there already."""
        text = self._environment.reset(self._seed)
        self.turns, self._info, self._reward = 0, TextInfo(), 0.0
        messages = [dict(message) for message in prompt]
        if not messages or messages[-1]["content"] != text:
            messages.append({"role": "user", "content": text})
        return messages, {"seed": self._seed}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take a model's answer."""
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
        """Whether the episode was solved, after how many answers, and its rewards' sum."""
        return {"solved": float(self._info.solved), "turns": float(self.turns), "reward": self._reward}

    def close(self) -> None:
        """Let go of the environment."""
        self._environment.close()


def skyrl_rows(
    environment: str, seeds: Sequence[int], *, env_class: str = "phalanx", **settings: Any
) -> list[dict[str, Any]]:
    """A row for each seed: `prompt`, `env_class`, and what `SkyRLEnvironment` is made from."""
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
    """Make `skyrl_gym.make(env_class, ...)` know the environment; in every process that makes them.

    Registering a name again gives it the new settings; a name that stands for another environment than
    Phalanx's is refused by `skyrl_gym`.
    """
    import skyrl_gym

    known = skyrl_gym.registry.get(env_class)
    if known is not None and known.entry_point is SkyRLEnvironment:
        del skyrl_gym.registry[env_class]
    skyrl_gym.register(id=env_class, entry_point=SkyRLEnvironment, kwargs=kwargs)
