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
    EpisodeState as EpisodeState,
    Key as Key,
    Keys as Keys,
    VectorKernel as VectorKernel,
    array_field as array_field,
    host_field as host_field,
    is_done as is_done,
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
from phalanx.core.policy_from_spaces import (
    DefaultNetworkConfig as DefaultNetworkConfig,
    policy_from_spaces as policy_from_spaces,
)
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
from phalanx.core.spec import (
    EnvSpec as EnvSpec,
    Evaluation as Evaluation,
    FixedTasks as FixedTasks,
    TaskSource as TaskSource,
)
from phalanx.core.text import TextInterface as TextInterface
from phalanx.core.vector import (
    batch_metrics as batch_metrics,
    batch_reset as batch_reset,
    batch_step as batch_step,
    map_where as map_where,
    select_rows as select_rows,
)
