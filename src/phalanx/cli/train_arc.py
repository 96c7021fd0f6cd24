"""`phalanx train arc`: a policy on ARC tasks.

The training itself is in `phalanx.agents.arc_training`; its options are in `training_options`.
"""

from phalanx.cli import training_options as options
from phalanx.cli.errors import user_errors


def arc(
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = False,
    seeds: options.Seeds = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    coordinator: options.Coordinator = None,
    process_id: options.ProcessId = None,
    num_processes: options.NumProcesses = None,
) -> None:
    """Train a policy on ARC tasks with PPO, and write its report.

    Ctrl-C saves and stops; the same command with --resume goes on, to the same numbers.
    """
    options.connect(coordinator, process_id, num_processes)
    chosen = options.Chosen("arc", overrides, preset, out, resume, seeds, wandb, tensorboard)

    from phalanx.agents.arc_training import ArcTrainingConfig, arc_experiment, load_arc_training
    from phalanx.cli.training_display import run_training

    with user_errors():
        experiment = arc_experiment(chosen.config(ArcTrainingConfig, load_arc_training))
    run_training(experiment, chosen.folder(), resume=resume, trackers=chosen.trackers())
