"""Environment base class, spaces, batched reset and step, auto-reset, rollouts, evaluation and experts."""

from phalanx.extras import require_jax

require_jax(__name__)

from phalanx.core.autoreset import (
    AutoReset as AutoReset,
    AutoResetInfo as AutoResetInfo,
    AutoResetState as AutoResetState,
)
from phalanx.core.environment import (
    Environment as Environment,
    EnvironmentWithArrays as EnvironmentWithArrays,
    Key as Key,
    Keys as Keys,
    TransitionInfo as TransitionInfo,
)
from phalanx.core.episodes import (
    BatchTrajectory as BatchTrajectory,
    EpisodeResults as EpisodeResults,
    record_episodes as record_episodes,
    rollout_episodes as rollout_episodes,
    run_episode_batch as run_episode_batch,
)
from phalanx.core.evaluation import (
    EpisodeEvaluationConfig as EpisodeEvaluationConfig,
    EvaluationConfig as EvaluationConfig,
    EvaluationResult as EvaluationResult,
)
from phalanx.core.expert import Expert as Expert, ExpertLabels as ExpertLabels
from phalanx.core.spaces import (
    Box as Box,
    Composite as Composite,
    Discrete as Discrete,
    Space as Space,
    check_integer_dtypes as check_integer_dtypes,
    masked_choice as masked_choice,
    masked_size as masked_size,
    replace_choice as replace_choice,
)
from phalanx.core.vector import (
    batch_reset as batch_reset,
    batch_step as batch_step,
    map_where as map_where,
    select_rows as select_rows,
)
