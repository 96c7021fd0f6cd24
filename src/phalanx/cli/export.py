"""`phalanx export`: a run's language model as other libraries read it.

How is in `phalanx.lm.huggingface`.
"""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors

app = typer.Typer(add_completion=False)


@app.command()
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN[@STEP]", help="A run of `phalanx train lm` or `train grpo`.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where config.json and model.safetensors go.")],
) -> None:
    """Write a run's language model as a LlamaForCausalLM of Hugging Face transformers."""
    from phalanx.lm.huggingface import export_huggingface
    from phalanx.training.lm.trained import load_trained
    from phalanx.training.warm_start import CheckpointRef

    with user_errors():
        origin = CheckpointRef.parse(run)
        trained = load_trained(origin.run, origin.which)
        tokenizer = trained.prompter.tokenizer
        export_huggingface(
            trained.model, folder, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
    typer.echo(f"written: {folder}, tokens of the tokenizer {tokenizer.tokenizer_hash}")
