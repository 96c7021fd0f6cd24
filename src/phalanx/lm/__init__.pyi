# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .episode_stream import EnvironmentStream as EnvironmentStream
from .evaluation import TaskScore as TaskScore, evaluate_policy as evaluate_policy
from .expert_samples import generate_expert_samples as generate_expert_samples
from .generation import (
    GenerationOutput as GenerationOutput,
    generate as generate,
    generate_batch as generate_batch,
)
from .huggingface import export_huggingface as export_huggingface, import_huggingface as import_huggingface
from .model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .prompt_tokenizer import PromptTokenizer as PromptTokenizer
from .sampling import SamplingConfig as SamplingConfig
from .text_policy import LMPolicy as LMPolicy, RandomTextPolicy as RandomTextPolicy, Turn as Turn
from .text_rollout import Conversation as Conversation, rollout as rollout
