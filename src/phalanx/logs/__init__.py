"""The experiment logger: batches summarised on the device, and handlers that write them down.

Nothing here knows an environment or a trainer; how states are drawn is handed in by the caller.
"""

from phalanx.logs.config import (
    ExperimentConfig,
    LoggedConfig,
    LoggingConfig,
    logged_config,
    validate_batched_logging_config,
)
from phalanx.logs.experiment import ExperimentLogger
from phalanx.logs.file_handler import FileHandler
from phalanx.logs.handler import Handler
from phalanx.logs.line_files import LineFile, read_lines, read_records
from phalanx.logs.rich_handler import RichHandler, metrics_table
from phalanx.logs.svg_handler import SVGHandler
from phalanx.logs.tracker_handlers import TensorBoardHandler, WandbHandler

__all__ = [
    "ExperimentConfig",
    "ExperimentLogger",
    "FileHandler",
    "Handler",
    "LineFile",
    "LoggedConfig",
    "LoggingConfig",
    "RichHandler",
    "SVGHandler",
    "TensorBoardHandler",
    "WandbHandler",
    "logged_config",
    "metrics_table",
    "read_lines",
    "read_records",
    "validate_batched_logging_config",
]
