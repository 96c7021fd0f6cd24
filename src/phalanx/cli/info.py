"""`phalanx info`: shows versions, devices and the native extension, or lists the environments."""

import json
import platform
from typing import Annotated, Any

import typer

from phalanx import __version__
from phalanx.cli.output import format_table
from phalanx.extras import MissingExtraError, require_jax

app = typer.Typer(add_completion=False)


def collect_info() -> dict[str, Any]:
    """Return the values that `phalanx info --json` prints: versions, devices, extension and cache."""
    from phalanx.compilation_cache import cache_info
    from phalanx.native import instruction_set, is_native_available, native_unavailable_reason

    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **_jax_info(),
        "native": {
            "available": is_native_available(),
            "instruction_set": instruction_set() if is_native_available() else None,
            "reason": native_unavailable_reason() or None,
        },
        "compilation_cache": cache_info(),
    }


def _jax_info() -> dict[str, Any]:
    try:
        require_jax("this command")
    except MissingExtraError:
        return {"jax": None, "backend": None, "devices": []}
    import jax

    return {
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
    }


def format_info(info: dict[str, Any]) -> str:
    """Format the result of `collect_info` as text."""
    native, cache = info["native"], info["compilation_cache"]
    jax = f"{info['jax']}, backend {info['backend']}, devices {', '.join(info['devices'])}"
    if info["jax"] is None:
        jax = "not installed: pip install 'phalanx[jax]'"
    size = f"{cache['bytes'] / 1e6:,.1f} of {cache['max_bytes'] / 1e6:,.0f} MB in {cache['folder']}"
    rows = {
        "phalanx": info["version"],
        "python": f"{info['python']} on {info['platform']}",
        "jax": jax,
        "cache": size if cache["enabled"] else f"disabled: {cache['reason']}",
        "native": native["instruction_set"] if native["available"] else f"unavailable: {native['reason']}",
    }
    return "\n".join(f"{name:<9}{value}" for name, value in rows.items())


def format_environments(as_json: bool) -> str:
    """Format the registered environments as a table or as JSON."""
    from phalanx.registry import registered_environments

    specs = registered_environments()
    if as_json:
        return json.dumps([{"id": s.id, "version": s.version, "description": s.description} for s in specs])
    rows = [[spec.id, spec.version, spec.description] for spec in specs]
    return format_table(["ID", "VERSION", "DESCRIPTION"], rows)


@app.command()
def info(
    environments: Annotated[
        bool, typer.Option("--environments", help="List the registered environments.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, JAX devices, the compilation cache and the native extension.

    With --environments, list the registered environments instead, including those of installed packages.
    """
    if environments:
        typer.echo(format_environments(as_json))
        return
    values = collect_info()
    typer.echo(json.dumps(values) if as_json else format_info(values))
