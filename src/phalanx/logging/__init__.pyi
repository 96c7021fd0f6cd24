# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .config import (
    ExperimentConfig as ExperimentConfig,
    LoggedConfig as LoggedConfig,
    LoggingConfig as LoggingConfig,
    logged_config as logged_config,
    validate_batched_logging_config as validate_batched_logging_config,
)
from .experiment_logger import ExperimentLogger as ExperimentLogger, MinimalAsyncLogger as MinimalAsyncLogger
from .handlers.console import RichHandler as RichHandler, metrics_table as metrics_table
from .handlers.file import FileHandler as FileHandler, read_records as read_records
from .handlers.handler import Handler as Handler, Picture as Picture
from .handlers.mlflow import MLflowHandler as MLflowHandler
from .handlers.svg import SVGHandler as SVGHandler
from .handlers.tensorboard import TensorBoardHandler as TensorBoardHandler
from .handlers.tracker import TRACKERS as TRACKERS, Tracker as Tracker, make_tracker as make_tracker
from .handlers.wandb import WandbHandler as WandbHandler
