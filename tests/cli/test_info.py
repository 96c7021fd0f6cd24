"""`phalanx info` as text and JSON, with and without the native extension."""

import json
import os
import re
import subprocess
import sys

import jax
from typer.testing import CliRunner

import phalanx
from phalanx.cli.app import app
from phalanx.cli.info import collect_info, format_info
from phalanx.native import is_native_available

INFO = {
    "version": "1.2.3",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "jax": "0.10.2",
    "backend": "cpu",
    "devices": ["TFRT_CPU_0"],
    "native": {"available": True, "instruction_set": "avx2", "reason": None},
    "compilation_cache": {"enabled": True, "bytes": 2_340_000, "max_bytes": 1_000_000_000, "folder": "/c/x"},
}


def test_text_has_one_line_per_component() -> None:
    assert format_info(INFO) == (
        "phalanx  1.2.3\n"
        "python   3.11.7 on Linux x86_64\n"
        "jax      0.10.2, backend cpu, devices TFRT_CPU_0\n"
        "cache    2.3 of 1,000 MB in /c/x\n"
        "native   avx2"
    )


def test_text_has_the_reason_if_the_extension_is_unavailable() -> None:
    native = {"available": False, "instruction_set": None, "reason": "PHALANX_NATIVE=0 is set"}
    text = format_info({**INFO, "native": native})
    assert text.splitlines()[-1] == "native   unavailable: PHALANX_NATIVE=0 is set"


def test_json_describes_this_installation() -> None:
    result = CliRunner().invoke(app, ["info", "--json"])
    assert result.exit_code == 0
    info = json.loads(result.output)
    assert info["version"] == phalanx.__version__
    assert info["jax"] == jax.__version__
    assert info["backend"] == jax.default_backend()
    assert len(info["devices"]) == len(jax.devices())
    assert info["native"]["available"] is is_native_available()


def test_environments_are_listed_with_version_and_description() -> None:
    listed = CliRunner().invoke(app, ["info", "--environments"]).output
    assert re.search(r"^arc-v2 +2  ARC grid puzzles", listed, re.MULTILINE)
    assert re.search(r"^proofs-v1 +1  proof search", listed, re.MULTILINE)
    found = json.loads(CliRunner().invoke(app, ["info", "--environments", "--json"]).output)
    assert {"arc-v2", "proofs-v1"} <= {one["id"] for one in found}
    assert all(set(one) == {"id", "version", "description"} for one in found)


def test_either_instruction_set_or_reason_is_given() -> None:
    native = collect_info()["native"]
    assert (native["instruction_set"] is None) == (not native["available"])
    assert (native["reason"] is None) == native["available"]


def test_phalanx_native_0_disables_the_extension() -> None:
    environment = {**os.environ, "PHALANX_NATIVE": "0", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-m", "phalanx", "info"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("native   unavailable: ")
    assert "PHALANX_NATIVE" in last
