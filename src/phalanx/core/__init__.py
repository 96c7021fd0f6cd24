"""The ground that every domain stands on: environments in batches, configs, spaces, and how to check them.

Nothing here knows a domain; ARC, proofs and tokens live in their own packages.
"""

from phalanx.core.autoreset import AutoReset, AutoResetInfo, AutoResetState
from phalanx.core.batching import batch_reset, batch_step, environment_of
from phalanx.core.config import (
    Config,
    FieldRow,
    describe,
    list_presets,
    load_config,
    save_config,
    to_yaml,
)
from phalanx.core.conformance import CHECKS, ConformanceError, Report, check_environment
from phalanx.core.environment import (
    Environment,
    EnvironmentConfigLike,
    Key,
    Keys,
    TransitionInfo,
    as_environment,
)
from phalanx.core.episodes import Trajectory, run_episode_batch
from phalanx.core.files import atomic_directory, atomic_write
from phalanx.core.profiling import (
    BatchPerformanceMonitor,
    analyze_memory_usage,
    find_optimal_batch_size,
    inspect_batch_states,
    warm_up_batch_functions,
)
from phalanx.core.rows import map_where
from phalanx.core.spaces import Box, Discrete, Record, Space
from phalanx.core.stacking import (
    combine_batch_results,
    pad_actions,
    pad_states,
    process_dynamic_batch,
    stack_actions,
    stack_states,
    unpad_results,
)

__all__ = [
    "CHECKS",
    "AutoReset",
    "AutoResetInfo",
    "AutoResetState",
    "BatchPerformanceMonitor",
    "Box",
    "Config",
    "ConformanceError",
    "Discrete",
    "Environment",
    "EnvironmentConfigLike",
    "FieldRow",
    "Key",
    "Keys",
    "Record",
    "Report",
    "Space",
    "Trajectory",
    "TransitionInfo",
    "analyze_memory_usage",
    "as_environment",
    "atomic_directory",
    "atomic_write",
    "batch_reset",
    "batch_step",
    "check_environment",
    "combine_batch_results",
    "describe",
    "environment_of",
    "find_optimal_batch_size",
    "inspect_batch_states",
    "list_presets",
    "load_config",
    "map_where",
    "pad_actions",
    "pad_states",
    "process_dynamic_batch",
    "run_episode_batch",
    "save_config",
    "stack_actions",
    "stack_states",
    "to_yaml",
    "unpad_results",
    "warm_up_batch_functions",
]
