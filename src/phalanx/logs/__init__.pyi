# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .config import (
    ExperimentConfig as ExperimentConfig,
    LoggedConfig as LoggedConfig,
    LoggingConfig as LoggingConfig,
    logged_config as logged_config,
    validate_batched_logging_config as validate_batched_logging_config,
)
from .experiment import ExperimentLogger as ExperimentLogger
from .handlers.console import RichHandler as RichHandler, metrics_table as metrics_table
from .handlers.files import (
    FileHandler as FileHandler,
    LineFile as LineFile,
    read_lines as read_lines,
    read_records as read_records,
)
from .handlers.svg import SVGHandler as SVGHandler
from .handlers.trackers import TensorBoardHandler as TensorBoardHandler, WandbHandler as WandbHandler
from .records import Handler as Handler
