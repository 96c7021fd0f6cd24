"""Environments with text observations and text actions."""

from phalanx.text.env import (
    EpisodeId,
    TextEnvironment,
    TextInfo,
    TextRewards,
    TextStep,
    TextVectorEnvironment,
    TextVectorStep,
)
from phalanx.text.env_spec import (
    TextEnvConfig,
    make_text_env,
    make_text_vector_env,
    parse_env_spec,
    text_env_factory,
)
from phalanx.text.splits import Split, split_of
from phalanx.text.wrapper import TextVectorWrapper, TextWrapper

__all__ = [
    "EpisodeId",
    "Split",
    "TextEnvConfig",
    "TextEnvironment",
    "TextInfo",
    "TextRewards",
    "TextStep",
    "TextVectorEnvironment",
    "TextVectorStep",
    "TextVectorWrapper",
    "TextWrapper",
    "make_text_env",
    "make_text_vector_env",
    "parse_env_spec",
    "split_of",
    "text_env_factory",
]
