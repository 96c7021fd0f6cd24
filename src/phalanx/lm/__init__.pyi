# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .episode_stream import EnvironmentStream as EnvironmentStream
from .episode_tokens import (
    ArcTokenizer as ArcTokenizer,
    EpisodeTokenizer as EpisodeTokenizer,
    KnownEpisodes as KnownEpisodes,
    ProofTokenizer as ProofTokenizer,
    TokenRows as TokenRows,
    known_episodes as known_episodes,
)
from .evaluation import PuzzleScore as PuzzleScore, score_puzzles as score_puzzles
from .generation import (
    Generated as Generated,
    SamplingConfig as SamplingConfig,
    generate as generate,
    generate_batch as generate_batch,
)
from .huggingface import export_huggingface as export_huggingface, import_huggingface as import_huggingface
from .model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .playing import Conversation as Conversation, Player as Player, play_at_random as play_at_random
from .tasks import Prompter as Prompter, TextTask as TextTask, read_tasks as read_tasks
