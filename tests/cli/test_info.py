"""`phalanx info`: the facts as JSON and as text, with the native engine in use and not."""

import json
import os
import re
import subprocess
import sys

import jax
from typer.testing import CliRunner

import phalanx
from phalanx.cli.app import app
from phalanx.cli.info import collect, describe
from phalanx.native import is_native_available

FACTS = {
    "version": "1.2.3",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "jax": "0.10.2",
    "backend": "cpu",
    "devices": ["TFRT_CPU_0"],
    "native": {"in_use": True, "isa": "avx2", "reason": None},
    "compilation_cache": {"in_use": True, "bytes": 2_340_000, "most_bytes": 1_000_000_000, "folder": "/c/x"},
}


def test_the_text_says_that_the_native_engine_is_in_use_and_for_which_processor() -> None:
    assert describe(FACTS) == (
        "phalanx        1.2.3\n"
        "python         3.11.7 on Linux x86_64\n"
        "jax            0.10.2, backend cpu, devices TFRT_CPU_0\n"
        "compiled       2.3 MB of at most 1,000 in /c/x\n"
        "native engine  in use (avx2)"
    )


def test_the_text_says_why_the_native_engine_is_not_in_use() -> None:
    off = {**FACTS, "native": {"in_use": False, "isa": None, "reason": "PHALANX_NATIVE=0 is set"}}
    assert describe(off).splitlines()[-1] == "native engine  not in use: PHALANX_NATIVE=0 is set"


def test_json_is_one_object_with_what_is_installed_here() -> None:
    result = CliRunner().invoke(app, ["info", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["version"] == phalanx.__version__
    assert facts["jax"] == jax.__version__
    assert facts["backend"] == jax.default_backend()
    assert len(facts["devices"]) == len(jax.devices())
    assert facts["native"]["in_use"] is is_native_available()


def test_environments_are_listed_with_version_and_a_line_each() -> None:
    listed = CliRunner().invoke(app, ["info", "--environments"]).output
    assert re.search(r"^arc-v2 +version 2  ARC grid puzzles", listed, re.MULTILINE)
    assert re.search(r"^proofs-v1 +version 1  proof search", listed, re.MULTILINE)
    told = json.loads(CliRunner().invoke(app, ["info", "--environments", "--json"]).output)
    assert {"arc-v2", "proofs-v1"} <= {one["id"] for one in told}
    assert all(set(one) == {"id", "version", "description"} for one in told)


def test_exactly_one_of_processor_and_reason_is_told() -> None:
    told = collect()["native"]
    assert (told["isa"] is None) == (not told["in_use"])
    assert (told["reason"] is None) == told["in_use"]


def test_phalanx_native_0_switches_the_engine_off_and_info_names_the_switch() -> None:
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
    assert last.startswith("native engine  not in use: ")
    assert "PHALANX_NATIVE" in last
