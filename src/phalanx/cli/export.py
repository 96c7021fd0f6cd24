"""`phalanx export`: exports the language model of a run in the format of Hugging Face transformers."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors

app = typer.Typer(add_completion=False)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="A run of `train sft` or `train grpo`.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for config.json and model.safetensors.")
    ],
) -> None:
    """Export a run's language model as a LlamaForCausalLM for Hugging Face transformers."""
    from phalanx.lm.huggingface import export_huggingface
    from phalanx.lm.text_policy import LMPolicy
    from phalanx.training.trained_policy import load_policy

    with user_errors():
        policy = load_policy(run)
        if not isinstance(policy, LMPolicy):
            raise ValueError(f"{run} has no language model: choose a run of sft or grpo")
        tokenizer = policy.tokenizer.tokenizer
        export_huggingface(
            policy.model,
            folder,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    typer.echo(f"Exported to {folder} (tokenizer {tokenizer.tokenizer_hash})")
