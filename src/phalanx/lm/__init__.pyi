# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .episode_stream import EnvironmentStream as EnvironmentStream
from .episode_tokens import (
    ArcTokenizer as ArcTokenizer,
    EpisodeTokenizer as EpisodeTokenizer,
    KnownEpisodes as KnownEpisodes,
    ProofTokenizer as ProofTokenizer,
    StepTokens as StepTokens,
    known_episodes as known_episodes,
)
from .evaluation import TaskScore as TaskScore, score_puzzles as score_puzzles
from .generation import (
    GenerationOutput as GenerationOutput,
    generate as generate,
    generate_batch as generate_batch,
)
from .huggingface import export_huggingface as export_huggingface, import_huggingface as import_huggingface
from .model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .playing import Conversation as Conversation, LMPolicy as LMPolicy, play_at_random as play_at_random
from .sampling import SamplingConfig as SamplingConfig
from .tasks import PromptTokenizer as PromptTokenizer, TextTask as TextTask, read_tasks as read_tasks
