"""`phalanx demo`: a batch of random agents on built-in tasks, and a drawing of the best episode.

The running is in `phalanx.core.episodes`, the drawing in `phalanx.arc.render`.
"""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import user_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.agents import VectorizedRandomAgent
    from phalanx.arc.config import ArcConfig
    from phalanx.arc.state import ArcState

app = typer.Typer(add_completion=False)

NUM_TASKS = 64
CHUNK = 10
"""Steps in one compiled call: few enough for the progress bar to move."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What happened in one batch of episodes."""

    initial: "ArcState"
    final: "ArcState"
    actions: list[Any]
    """What the agents did, a list of chunks of [steps, environments]."""
    seconds: float
    """Without compiling."""

    @property
    def steps(self) -> int:
        """Steps that were really taken: an environment that has finished takes none."""
        return int(self.final.step_count.sum())

    def best(self) -> int:
        """The environment to draw: a solved one before others, then the one that gained most similarity."""
        import numpy as np

        gain = np.asarray(self.final.similarity_score - self.initial.similarity_score)
        return int(np.lexsort((gain, np.asarray(self.final.solved)))[-1])


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the drawing.")] = Path("out/demo"),
    envs: Annotated[int, typer.Option(min=1, help="How many environments step together.")] = 1024,
    steps: Annotated[int, typer.Option(min=1, help="How many steps an episode may take.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the tasks and of the agents.")] = 0,
) -> None:
    """Run a batch of random agents on built-in tasks and draw the best episode as SVG."""
    with user_errors():
        out.mkdir(parents=True, exist_ok=True)

    import jax
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from phalanx.agents import VectorizedRandomAgent
    from phalanx.arc.buffer import TaskBuffer
    from phalanx.arc.config import ActionConfig, ArcConfig, DatasetConfig, EnvironmentConfig
    from phalanx.arc.generators import generate_tasks
    from phalanx.arc.operations import Operation
    from phalanx.core import batch_reset

    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=NUM_TASKS, seed=seed))
    rows, columns = tasks.max_shape
    config = ArcConfig(
        environment=EnvironmentConfig(max_episode_steps=steps),
        dataset=DatasetConfig(max_grid_height=rows, max_grid_width=columns),
        # Without submitting and switching pairs: an episode ends when it is solved, or out of steps.
        action=ActionConfig(selection_format="bbox", allowed_operations=tuple(range(Operation.SUBMIT))),
    )
    agent = VectorizedRandomAgent(config.grid_shape, "bbox", config=config)
    reset_key, run_key = jax.random.split(jax.random.PRNGKey(seed))
    initial, _ = batch_reset(jax.random.split(reset_key, envs), config, tasks)

    console = Console()
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console) as progress:
        shown = progress.add_task("compiling", total=steps)

        def advance(done: int) -> None:
            progress.update(shown, completed=done, description=f"{envs:,} environments")

        run = _run(agent, initial, config, steps, run_key, advance)
    _report(console, run)
    with user_errors():
        path = _draw(run, config, out / "episode.svg")
    console.print(f"Drew the best episode: {path}", soft_wrap=True, highlight=False)


def _run(
    agent: "VectorizedRandomAgent",
    initial: "ArcState",
    config: "ArcConfig",
    steps: int,
    key: Any,
    advance: "Callable[[int], None]",
) -> Run:
    """The whole batch in chunks; each length of chunk compiles before its clock starts."""
    import jax

    from phalanx.core import run_episode_batch

    states, actions, seconds, compiled = initial, [], 0.0, set()
    for start in range(0, steps, CHUNK):
        length = min(CHUNK, steps - start)
        key, chunk_key = jax.random.split(key)

        def chunk(states: Any = states, length: int = length, chunk_key: Any = chunk_key) -> Any:
            return jax.block_until_ready(
                run_episode_batch(states, agent.select_batch_actions, length, config, key=chunk_key)
            )

        if length not in compiled:
            chunk()
            compiled.add(length)
        began = time.perf_counter()
        states, _, trajectory = chunk()
        seconds += time.perf_counter() - began
        actions.append(trajectory.actions)
        advance(start + length)
    return Run(initial, states, actions, seconds)


def _report(console: Any, run: Run) -> None:
    import numpy as np
    from rich.table import Table

    solved = np.asarray(run.final.solved)
    tasks = run.final.tasks
    console.print(
        f"{run.steps:,} steps at {run.steps / run.seconds:,.0f} steps/s; {len(solved):,} episodes, "
        f"{solved.mean():.1%} solved",
        highlight=False,
    )
    table = Table("family", title="Random agents, by family of tasks")
    for name in ("episodes", "solved", "similarity at the start", "at the end"):
        table.add_column(name, justify="right")
    families = np.asarray([task.family for task in tasks])[np.asarray(run.final.task_index)]
    before, after = np.asarray(run.initial.similarity_score), np.asarray(run.final.similarity_score)
    for family in tasks.families:
        its: np.ndarray = families == family
        if its.any():
            table.add_row(
                family,
                f"{its.sum():,}",
                f"{solved[its].mean():.1%}",
                f"{before[its].mean():.2f}",
                f"{after[its].mean():.2f}",
            )
    console.print(table)


def _draw(run: Run, config: "ArcConfig", path: Path) -> Path:
    """The best episode, played once more by itself: the same actions give the same episode."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from phalanx.arc.render import draw_episode, episode_frames, save_svg
    from phalanx.core import run_episode_batch

    best = run.best()
    taken = jax.tree.map(
        lambda *chunks: jnp.concatenate([c[:, best : best + 1] for c in chunks]), *run.actions
    )
    start = run.initial[best : best + 1]

    def replay(_: Any, step: Any, key: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda leaf: leaf[step], taken), step + 1

    length = int(run.final.step_count[best])
    _, _, trajectory = run_episode_batch(start, replay, length, config, agent_state=jnp.int32(0))
    frames = episode_frames(trajectory, 0, initial=start)
    task = run.final.tasks[int(run.final.task_index[best])]
    drawing = draw_episode(
        frames, title=f"Random agent on {task.id}", target=np.asarray(start.target_grid[0])
    )
    return save_svg(drawing, path)
