"""`phalanx train`: one command for each kind of training.

The commands are in `train_arc` and its neighbours, their options in `training_options`.
"""

import typer

from phalanx.cli.train_arc import arc
from phalanx.cli.train_kge import kge
from phalanx.cli.train_lm import lm
from phalanx.cli.train_proofs import proofs

app = typer.Typer(name="train", help="Train an agent.", no_args_is_help=True, add_completion=False)

for command in (arc, proofs, kge, lm):
    app.command()(command)
