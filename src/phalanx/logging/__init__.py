"""Experiment logger, and handlers that write to files, the terminal and experiment trackers."""

from phalanx.io.append_only import read_records as read_records
from phalanx.logging.config import LoggingConfig as LoggingConfig
from phalanx.logging.experiment_logger import ExperimentLogger as ExperimentLogger
from phalanx.logging.handlers.console import RichHandler as RichHandler, metrics_table as metrics_table
from phalanx.logging.handlers.file import FileHandler as FileHandler
from phalanx.logging.handlers.handler import Handler as Handler, Picture as Picture
from phalanx.logging.handlers.mlflow import MLflowHandler as MLflowHandler
from phalanx.logging.handlers.svg import SVGHandler as SVGHandler
from phalanx.logging.handlers.tensorboard import TensorBoardHandler as TensorBoardHandler
from phalanx.logging.handlers.tracker import (
    TRACKERS as TRACKERS,
    Tracker as Tracker,
    make_tracker as make_tracker,
)
from phalanx.logging.handlers.wandb import WandbHandler as WandbHandler
