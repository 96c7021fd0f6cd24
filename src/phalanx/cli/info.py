"""`phalanx info`: what is installed here, which engine will step the environments, and which ones there are.

How the native engine is found and switched off is in `phalanx.core.backends`, ids are in `core.registry`.
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

    from phalanx.cli.compilation_cache import facts as cache_facts
    from phalanx.native import instruction_set, is_native_available, native_unavailable_reason

    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "native": {
            "in_use": is_native_available(),
            "isa": instruction_set() if is_native_available() else None,
            "reason": native_unavailable_reason() or None,
        },
        "compilation_cache": cache_facts(),
    }


def describe(facts: dict[str, Any]) -> str:
    """The same for people: one line for each fact, the native engine's last."""
    native = facts["native"]
    engine = f"in use ({native['isa']})" if native["in_use"] else f"not in use: {native['reason']}"
    cache = facts["compilation_cache"]
    held = f"{cache['bytes'] / 1e6:,.1f} MB of at most {cache['most_bytes'] / 1e6:,.0f} in {cache['folder']}"
    rows = {
        "phalanx": facts["version"],
        "python": f"{facts['python']} on {facts['platform']}",
        "jax": f"{facts['jax']}, backend {facts['backend']}, devices {', '.join(facts['devices'])}",
        "compiled": held if cache["in_use"] else f"not kept: {cache['reason']}",
        "native engine": engine,
    }
    return "\n".join(f"{name:<15}{value}" for name, value in rows.items())


def list_environments(as_json: bool) -> str:
    """The ids of `phalanx.make`, each with its version and a line about it."""
    from phalanx.registry import registered_environments

    found = registered_environments()
    if as_json:
        return json.dumps(
            [{"id": one.id, "version": one.version, "description": one.description} for one in found]
        )
    width = max(len(one.id) for one in found)
    return "\n".join(f"{one.id:<{width}}  version {one.version}  {one.description}".rstrip() for one in found)


@app.command()
def info(
    environments: Annotated[
        bool, typer.Option("--environments", help="List the environments that phalanx.make knows.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show the version, JAX's devices and the engine that is used, or the environments that can be made."""
    if environments:
        typer.echo(list_environments(as_json))
        return
    facts = collect()
    typer.echo(json.dumps(facts) if as_json else describe(facts))
