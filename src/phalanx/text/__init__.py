"""Environments with text observations and text actions."""

from phalanx.text.env import (
    TaskSeed as TaskSeed,
    TextEnvironment as TextEnvironment,
    TextInfo as TextInfo,
    TextRewardValues as TextRewardValues,
    TextStep as TextStep,
    TextVectorEnvironment as TextVectorEnvironment,
    TextVectorStep as TextVectorStep,
)
from phalanx.text.names import (
    TextEnvConfig as TextEnvConfig,
    make_text_env as make_text_env,
    make_text_vector_env as make_text_vector_env,
    parse_env_name as parse_env_name,
    text_env_factory as text_env_factory,
)
from phalanx.text.registry import TextEnvSpec as TextEnvSpec, register_text as register_text
from phalanx.text.splits import Split as Split, split_of as split_of
