"""The section `env` of SFT and GRPO."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from phalanx.puzzles.server.env import PuzzleServerConfig
from phalanx.text.env import PromptFormat, TextVectorEnvironment
from phalanx.text.env_spec import TextEnvConfig, make_text_vector_env, parse_env_spec
from phalanx.text.wrapper import TextVectorWrapper

PUZZLE_SERVER = "puzzle_server"


class TrainingEnvConfig(TextEnvConfig):
    """A text environment by spec, or games of a puzzle server (`id=puzzle_server`)."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "connections": "num_connections",
        "max_refused": "max_invalid_answers",
    }

    address: str = "localhost:8023"
    """HOST:PORT of the puzzle server."""
    games: tuple[str, ...] = ("lights",)
    """Games of the puzzle server, such as `lights` or `binary:medium`."""
    num_connections: int = Field(default=32, ge=1)
    """Number of episodes on the puzzle server at the same time."""
    max_steps: int = Field(default=40, ge=1)
    """Number of answers after which an episode on the puzzle server is truncated."""
    max_invalid_answers: int = Field(default=3, ge=1)
    """Number of invalid answers in a row after which an episode on the puzzle server is truncated."""

    @property
    def is_puzzle_server(self) -> bool:
        """Whether the episodes are games of a puzzle server."""
        return self.id == PUZZLE_SERVER

    @property
    def is_jax(self) -> bool:
        """Whether this is a JAX environment with text."""
        if self.id in ("arc", "proofs"):
            return True
        return not self.is_puzzle_server and parse_env_spec(self.id)[0].interface == "jax"

    def make(self, prompt_format: PromptFormat = "compact") -> TextVectorEnvironment:
        """Create the environment."""
        if self.is_puzzle_server:
            return PuzzleServerConfig(
                address=self.address,
                games=self.games,
                difficulty=self.difficulty,
                num_connections=self.num_connections,
                max_steps=self.max_steps,
                max_invalid_answers=self.max_invalid_answers,
            ).make()
        if self.id in ("arc", "proofs"):
            if self.overrides:
                raise ValueError(f"env.id={self.id} takes no env.overrides; use an id such as arc-v2")
            return TextVectorWrapper(
                make_preset_environment(self.id), task=self.id, prompt_format=prompt_format
            )
        if self.is_jax:
            overrides = {"overrides": list(self.overrides)} if self.overrides else {}
            return make_text_vector_env(self.id, text={"prompt_format": prompt_format}, **overrides)
        if self.overrides:
            raise ValueError(f"{self.id!r} takes no env.overrides; only JAX environments do, such as arc-v2")
        return make_text_vector_env(
            self.id, difficulty=self.difficulty, turns=self.turns, prompt_format=prompt_format
        )


def make_preset_environment(name: str) -> Any:
    """Create `arc` or `proofs` with the tasks of their training presets."""
    if name == "arc":
        from phalanx.arc.env import ArcEnvironment
        from phalanx.training.arc_training import load_arc_training

        return ArcEnvironment.create(load_arc_training().arc)
    from phalanx.proofs.env import ProofEnvironment
    from phalanx.training.proof_training import load_proof_training

    return ProofEnvironment.from_config(load_proof_training().proofs)
