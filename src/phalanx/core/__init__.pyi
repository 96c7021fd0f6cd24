# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .autoreset import (
    AutoReset as AutoReset,
    AutoResetInfo as AutoResetInfo,
    AutoResetState as AutoResetState,
)
from .environment import (
    Environment as Environment,
    EnvironmentConfigLike as EnvironmentConfigLike,
    Key as Key,
    Keys as Keys,
    TracedEnvironment as TracedEnvironment,
    TransitionInfo as TransitionInfo,
    as_environment as as_environment,
)
from .episodes import Trajectory as Trajectory, run_episode_batch as run_episode_batch
from .evaluation import record_episodes as record_episodes, rollout_episodes as rollout_episodes
from .expert import Expert as Expert, ExpertLabels as ExpertLabels
from .profiling import (
    BatchPerformanceMonitor as BatchPerformanceMonitor,
    analyze_memory_usage as analyze_memory_usage,
    find_optimal_batch_size as find_optimal_batch_size,
    inspect_batch_states as inspect_batch_states,
    warm_up_batch_functions as warm_up_batch_functions,
)
from .spaces import (
    Box as Box,
    Composite as Composite,
    Discrete as Discrete,
    Space as Space,
    check_integer_dtypes as check_integer_dtypes,
    masked_choice as masked_choice,
    masked_size as masked_size,
    replace_choice as replace_choice,
)
from .vector import (
    batch_reset as batch_reset,
    batch_step as batch_step,
    combine_batch_results as combine_batch_results,
    environment_of as environment_of,
    map_where as map_where,
    pad_actions as pad_actions,
    pad_states as pad_states,
    process_dynamic_batch as process_dynamic_batch,
    select_rows as select_rows,
    stack_actions as stack_actions,
    stack_states as stack_states,
    unpad_results as unpad_results,
)
