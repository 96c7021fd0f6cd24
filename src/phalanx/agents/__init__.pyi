# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .answers import paint_and_submit as paint_and_submit
from .arc_evaluation import evaluate_arc as evaluate_arc, pass_at_k as pass_at_k
from .arc_hand_in import (
    HandIn as HandIn,
    TaskAnswers as TaskAnswers,
    examination as examination,
    hand_in as hand_in,
    hand_in_at_random as hand_in_at_random,
)
from .arc_training import (
    ArcTraining as ArcTraining,
    ArcTrainingConfig as ArcTrainingConfig,
    arc_distribution as arc_distribution,
    load_arc_policy as load_arc_policy,
    load_arc_training as load_arc_training,
)
from .cloning.config import (
    CloningConfig as CloningConfig,
    CloningTrainingConfig as CloningTrainingConfig,
    load_cloning as load_cloning,
)
from .cloning.training import CloningTraining as CloningTraining
from .evaluation import play as play, record_episodes as record_episodes
from .kge_training import (
    KGEData as KGEData,
    KGETraining as KGETraining,
    KGETrainingConfig as KGETrainingConfig,
    load_kge_training as load_kge_training,
)
from .lm.batches import (
    PlannedBatches as PlannedBatches,
    StreamedBatches as StreamedBatches,
    token_batch as token_batch,
)
from .lm.config import (
    LMTrainingConfig as LMTrainingConfig,
    OptimizerConfig as OptimizerConfig,
    load_lm_training as load_lm_training,
)
from .lm.generation import (
    Generated as Generated,
    SamplingConfig as SamplingConfig,
    generate as generate,
    generate_batch as generate_batch,
)
from .lm.grpo import GRPOTraining as GRPOTraining, GRPOTrainingConfig as GRPOTrainingConfig
from .lm.grpo_update import GRPOConfig as GRPOConfig, group_advantages as group_advantages
from .lm.huggingface import (
    export_huggingface as export_huggingface,
    import_huggingface as import_huggingface,
)
from .lm.model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .lm.playing import (
    Conversation as Conversation,
    Player as Player,
    play_at_random as play_at_random,
)
from .lm.puzzle_scores import PuzzleScore as PuzzleScore, score_puzzles as score_puzzles
from .lm.sources import open_source as open_source
from .lm.tasks import Prompter as Prompter, TextTask as TextTask, read_tasks as read_tasks
from .lm.training import LMTraining as LMTraining, load_language_model as load_language_model
from .lm.update import LMTrainer as LMTrainer
from .networks.arc import create_arc_network as create_arc_network
from .networks.arc_answers import (
    AnswerNetwork as AnswerNetwork,
    AnswerNetworkConfig as AnswerNetworkConfig,
    answer_loss as answer_loss,
    answer_of as answer_of,
)
from .networks.arc_layers import ArcNetworkConfig as ArcNetworkConfig
from .networks.distributions import MaskedCategorical as MaskedCategorical
from .networks.proofs import (
    ProofNetworkConfig as ProofNetworkConfig,
    create_proof_network as create_proof_network,
)
from .policies import Policy as Policy, load_policy as load_policy
from .policy_rollout import NetworkPolicy as NetworkPolicy, batch_policy_rollout as batch_policy_rollout
from .ppo.config import PPOConfig as PPOConfig, generalized_advantages as generalized_advantages
from .ppo.training import PPOTraining as PPOTraining, PPOTrainingConfig as PPOTrainingConfig
from .ppo.update import PPO as PPO
from .proof_training import (
    ProofTraining as ProofTraining,
    ProofTrainingConfig as ProofTrainingConfig,
    load_proof_policy as load_proof_policy,
    load_proof_training as load_proof_training,
    read_data as read_data,
    untrained_policy as untrained_policy,
)
from .random import RandomAgent as RandomAgent, VectorizedRandomAgent as VectorizedRandomAgent
from .search.beam import SearchConfig as SearchConfig, search_proofs as search_proofs
from .search.best_first import BestFirstConfig as BestFirstConfig, search_best_first as search_best_first
from .search.guide import GuideConfig as GuideConfig
from .search.guide_training import (
    GuideTraining as GuideTraining,
    GuideTrainingConfig as GuideTrainingConfig,
    load_guide as load_guide,
)
from .search.ranking import (
    ProofRanking as ProofRanking,
    RankingConfig as RankingConfig,
    evaluate_proofs as evaluate_proofs,
)
