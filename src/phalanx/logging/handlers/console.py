"""Handler that prints to the terminal with Rich. Metrics are printed as a table, other events as lines."""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table

from phalanx.formatting import escape_untrusted, format_percent
from phalanx.logging.config import HasLogging, LoggingConfig, logging_section
from phalanx.logging.handlers.handler import Handler
from phalanx.logging.records import Metrics, Record


class RichHandler(Handler):
    """Prints metrics, tasks, episodes, steps and evaluations to the terminal, depending on `log_level`.

    Args:
        config: Logging settings, or a config with a `logging` section. None means the default settings.
        console: Console to print to. None means standard output. If the console is a terminal, one table of
            metrics is updated in place. Otherwise, a new table is printed each time.
    """

    def __init__(
        self, config: LoggingConfig | HasLogging | None = None, *, console: Console | None = None
    ) -> None:
        self.console = Console() if console is None else console
        level = logging_section(config).log_level
        self._shows_steps = level == "DEBUG"
        self._shows_events = level in ("DEBUG", "INFO")
        self._live: Live | None = None

    def log_task_start(self, task_data: Record) -> None:
        """Print one line when an episode starts, if the log level is INFO or DEBUG."""
        self._print(f"[bold]task[/bold] {_format_fields(task_data, ('task_id', 'episode_num'))}")

    def log_step(self, step_data: Record) -> None:
        """Print one line for a step, if the log level is DEBUG."""
        if self._shows_steps:
            self._print(f"[dim]step {_format_fields(step_data, ('step_num', 'reward', 'similarity'))}[/dim]")

    def log_episode_summary(self, summary_data: Record) -> None:
        """Print one line for a finished episode, if the log level is INFO or DEBUG."""
        solved = "[green]solved[/green]" if summary_data.get("success") else "[yellow]not solved[/yellow]"
        names = ("task_id", "environment_id", "total_reward", "total_steps", "final_similarity")
        self._print(f"[bold]episode[/bold] {solved} {_format_fields(summary_data, names)}")

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Print or update the table of metrics, if the log level is INFO or DEBUG."""
        if not self._shows_events:
            return
        shown = metrics_table(metrics, step)
        if not self.console.is_terminal:
            self.console.print(shown)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(shown, refresh=True)

    def log_evaluation(self, record: Record) -> None:
        """Print one line for an evaluation, if the log level is INFO or DEBUG."""
        success_rate = record.get("success_rate")
        solved = "" if success_rate is None else f"solved {format_percent(float(success_rate))}  "
        metrics = _format_fields(record, ("step", "similarity", "loss", "mrr"))
        split_and_mode = _format_fields(record, ("split", "mode"))
        self._print(f"[bold]evaluation[/bold] {split_and_mode}  {solved}{metrics}")

    def close(self) -> None:
        """Stop updating the table. It stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: str) -> None:
        if self._shows_events:
            # Neither wrapped nor highlighted, so that every event is one line in a log file.
            self.console.print(line, soft_wrap=True, highlight=False)


def metrics_table(metrics: Metrics, step: int) -> Table:
    """Create a table of metrics, grouped into rewards, similarity, episodes and training."""
    name_column = Column("metric", style="bold blue")
    table = Table(name_column, Column("value", justify="right"), title=f"update {step}")
    groups: dict[str, dict[str, float]] = {"Rewards": {}, "Similarity": {}, "Episodes": {}, "Training": {}}
    for name, value in metrics.items():
        groups[_group(name)][name] = value
    for title, group in groups.items():
        if group:
            table.add_row(f"[bold]{title}[/bold]", "")
        for name, value in group.items():
            table.add_row(f"  {escape(escape_untrusted(name.replace('_', ' ').title()))}", _format(value))
    return table


def _group(name: str) -> str:
    if name.startswith("reward_"):
        return "Rewards"
    if name.startswith("similarity_"):
        return "Similarity"
    return "Episodes" if name.startswith(("success_rate", "episode_length_")) else "Training"


def _format(value: float) -> str:
    # A learning rate would be shown as 0.0000.
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def _format_fields(record: Record, names: tuple[str, ...]) -> str:
    fields = {name: record[name] for name in names if record.get(name) is not None}
    return "  ".join(f"{name.replace('_', ' ')} {escape(_format_field(v))}" for name, v in fields.items())


def _format_field(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else escape_untrusted(value)
