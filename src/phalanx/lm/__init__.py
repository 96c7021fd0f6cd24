"""Transformer language models, text generation, and rollouts in text environments."""

from phalanx.extras import require_jax

require_jax(__name__)

from phalanx.lm.evaluation import PolicyScore as PolicyScore, evaluate_policy as evaluate_policy
from phalanx.lm.expert_samples import generate_expert_samples as generate_expert_samples
from phalanx.lm.generation import (
    GenerationOutput as GenerationOutput,
    generate as generate,
    generate_batch as generate_batch,
)
from phalanx.lm.huggingface import (
    export_huggingface as export_huggingface,
    import_huggingface as import_huggingface,
)
from phalanx.lm.model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from phalanx.lm.prompt_tokenizer import LMTokenizer as LMTokenizer
from phalanx.lm.sampling import SamplingConfig as SamplingConfig
from phalanx.lm.text_policy import LMPolicy as LMPolicy, RandomTextPolicy as RandomTextPolicy, Turn as Turn
from phalanx.lm.text_rollout import Conversation as Conversation, rollout as rollout
