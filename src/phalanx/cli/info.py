"""`phalanx info`: what is installed here and which engine will step the environments.

How the native engine is found and switched off is in `phalanx.core.engine`.
"""

import json
import platform
from typing import Annotated, Any

import typer

from phalanx import __version__

app = typer.Typer(add_completion=False)


def collect() -> dict[str, Any]:
    """Everything that `phalanx info --json` prints."""
    import jax

    from phalanx.core import engine as native

    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "native": {
            "in_use": native.available(),
            "isa": native.isa() if native.available() else None,
            "reason": native.reason() or None,
        },
    }


def describe(facts: dict[str, Any]) -> str:
    """The same for people: one line for each fact, the native engine's last."""
    native = facts["native"]
    engine = f"in use ({native['isa']})" if native["in_use"] else f"not in use: {native['reason']}"
    rows = {
        "phalanx": facts["version"],
        "python": f"{facts['python']} on {facts['platform']}",
        "jax": f"{facts['jax']}, backend {facts['backend']}, devices {', '.join(facts['devices'])}",
        "native engine": engine,
    }
    return "\n".join(f"{name:<15}{value}" for name, value in rows.items())


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the version, JAX's backend and devices, and whether the native engine is used, or why not."""
    facts = collect()
    typer.echo(json.dumps(facts) if as_json else describe(facts))
