"""The run on the console: a table of the latest metrics, and a line for each task, episode and step.

Progress bars belong to the training commands.
"""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from phalanx.formatting import escape_untrusted, format_percent
from phalanx.logging.config import LoggedConfig, LoggingConfig, logged_config
from phalanx.logging.handlers.handler import Handler
from phalanx.logging.records import Data, Metrics

_EPISODES = ("success_rate", "episode_length_")


class RichHandler(Handler):
    """Shows the latest metrics in one table that stays in its place (`live`), or prints each table.

    `live` is the default on a terminal. The config's `log_level` says how much is shown.
    """

    def __init__(
        self,
        config: LoggingConfig | LoggedConfig | None = None,
        *,
        console: Console | None = None,
        live: bool | None = None,
    ) -> None:
        self.console = Console() if console is None else console
        self._level = logged_config(LoggingConfig() if config is None else config).logging.log_level
        self._is_live = self.console.is_terminal if live is None else live
        self._live: Live | None = None

    def log_task_start(self, task_data: Data) -> None:
        """A line, at INFO."""
        if self._level in ("DEBUG", "INFO"):
            self._print(f"[bold]task[/bold] {_words(task_data, ('task_id', 'episode_num'))}")

    def log_step(self, step_data: Data) -> None:
        """A line, at DEBUG only."""
        if self._level == "DEBUG":
            self._print(f"[dim]step {_words(step_data, ('step_num', 'reward', 'similarity'))}[/dim]")

    def log_episode_summary(self, summary_data: Data) -> None:
        """A line, at INFO."""
        if self._level in ("DEBUG", "INFO"):
            solved = "[green]solved[/green]" if summary_data.get("success") else "[yellow]not solved[/yellow]"
            names = ("task_id", "environment_id", "total_reward", "total_steps", "final_similarity")
            self._print(f"[bold]episode[/bold] {solved} {_words(summary_data, names)}")

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """The table, at INFO."""
        if self._level not in ("DEBUG", "INFO"):
            return
        table = metrics_table(metrics, step)
        if not self._is_live:
            self.console.print(table)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def log_evaluation(self, record: Data) -> None:
        """A line, at INFO."""
        if self._level in ("DEBUG", "INFO"):
            solved = record.get("success_rate")
            figures = _words(record, ("step", "similarity", "loss", "mrr"))
            share = "" if solved is None else f"solved {format_percent(float(solved))}  "
            self._print(f"[bold]evaluation[/bold] {_words(record, ('split', 'mode'))}  {share}{figures}")

    def close(self) -> None:
        """Leave the last table on the screen and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: str) -> None:
        # Not wrapped or colored word by word: one event is one line, in a terminal and in a log of one.
        self.console.print(line, soft_wrap=True, highlight=False)


def metrics_table(metrics: Metrics, step: int) -> Table:
    """The metrics by category: rewards, similarity, episodes, and everything else under training."""
    table = Table(title=f"Batch Metrics - Step {step}")
    table.add_column("Metric", style="cyan")
    table.add_column("Value", style="green", justify="right")
    groups: dict[str, dict[str, float]] = {"Rewards": {}, "Similarity": {}, "Episodes": {}, "Training": {}}
    for name, value in metrics.items():
        groups[_category(name)][name] = value
    for category, group in groups.items():
        if group:
            table.add_row(f"[bold]{category}[/bold]", "")
        for name, value in group.items():
            table.add_row(f"  {escape(escape_untrusted(name.replace('_', ' ').title()))}", _number(value))
    return table


def _category(name: str) -> str:
    if name.startswith("reward_"):
        return "Rewards"
    if name.startswith("similarity_"):
        return "Similarity"
    return "Episodes" if name.startswith(_EPISODES) else "Training"


def _number(value: float) -> str:
    # A learning rate of 0.0000 says nothing.
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def _words(data: Data, names: tuple[str, ...]) -> str:
    given = {name: data[name] for name in names if data.get(name) is not None}
    return "  ".join(f"{name.replace('_', ' ')} {escape(_short(value))}" for name, value in given.items())


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else escape_untrusted(value)
