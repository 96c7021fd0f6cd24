# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .autoreset import (
    AutoReset as AutoReset,
    AutoResetInfo as AutoResetInfo,
    AutoResetState as AutoResetState,
)
from .batching import (
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
from .config import (
    Config as Config,
    FieldRow as FieldRow,
    describe as describe,
    list_presets as list_presets,
    load_config as load_config,
    save_config as save_config,
    to_yaml as to_yaml,
)
from .conformance import (
    CHECKS as CHECKS,
    ConformanceError as ConformanceError,
    Report as Report,
    check_environment as check_environment,
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
from .files import (
    DamagedFileError as DamagedFileError,
    atomic_directory as atomic_directory,
    atomic_write as atomic_write,
)
from .models import FrozenModel as FrozenModel, load_json as load_json, save_json as save_json
from .profiling import (
    BatchPerformanceMonitor as BatchPerformanceMonitor,
    analyze_memory_usage as analyze_memory_usage,
    find_optimal_batch_size as find_optimal_batch_size,
    inspect_batch_states as inspect_batch_states,
    warm_up_batch_functions as warm_up_batch_functions,
)
from .registry import (
    RegisteredEnvironment as RegisteredEnvironment,
    config_from as config_from,
    make as make,
    register as register,
    registered_environments as registered_environments,
)
from .spaces import (
    Box as Box,
    Discrete as Discrete,
    Record as Record,
    Space as Space,
    choice_of as choice_of,
    num_choices as num_choices,
    refuse_floats as refuse_floats,
    with_choice as with_choice,
)
from .text import percent as percent
from .text_bridge import (
    EnvironmentText as EnvironmentText,
    EnvironmentTextBatch as EnvironmentTextBatch,
)
from .text_environment import (
    TextBatch as TextBatch,
    TextBatchStep as TextBatchStep,
    TextEnvironment as TextEnvironment,
    TextInfo as TextInfo,
    TextRewards as TextRewards,
    TextStep as TextStep,
)
