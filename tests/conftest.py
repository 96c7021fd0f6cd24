"""Configuration of all tests: platform, XLA flags, temporary folder and checks of shape annotations."""

import gc
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.annotations import check_annotations

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the time is spent compiling. Compiled programs are cached for other files and later runs. They run
# only briefly, so LLVM's expensive passes and the fusion emitters do not pay off. Code generation is not
# parallel, because the test processes already use all cores.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
XLA_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# XLA aborts the process if it does not know a flag, and later versions do not know this one.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    XLA_FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(XLA_FLAGS))

# With several threads, PyTorch's threads wait for each other in loops, which takes most of the time of small
# models if the cores are busy. PyTorch reads the variable when it is imported, also in child processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Many tests sync files, which is slow on a disk and fast in memory.
memory = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4e9:
    os.environ["TMPDIR"], tempfile.tempdir = str(memory), str(memory)

# A shell starts background processes with SIGINT ignored, and their child processes inherit this. Tests that
# send SIGINT would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402 - it reads the environment variables when it is imported

if imported := [name for name in sys.modules if name.partition(".")[0] == "phalanx"]:
    raise RuntimeError(f"{imported[0]} was imported before the annotations could be checked")

# `.ci/sanitize` sets the path of another build of the extension.
if library := os.environ.get("PHALANX_NATIVE_LIBRARY"):
    spec = importlib.util.spec_from_file_location("phalanx._native", library)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["phalanx._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["phalanx._native"])


def share_mlir_contexts(lifetime: int = 250) -> None:
    """Let JAX use an MLIR context for several programs instead of creating one for each.

    Creating a context takes longer than lowering a small program: this saves about 8% of the time of tests
    that compile much. A context keeps the types and constants of all its programs, so each thread replaces
    its context after `lifetime` programs.
    """
    create, local = mlir.make_ir_context, threading.local()

    def shared_context() -> Any:
        num_uses = getattr(local, "num_uses", 0)
        if num_uses % lifetime == 0:
            local.context = create()
        local.num_uses = num_uses + 1
        return local.context

    mlir.make_ir_context = shared_context


# The function is private, so other versions of JAX may not have it.
if jax.__version_info__[:2] == (0, 10):
    from jax._src.interpreters import mlir

    share_mlir_contexts()
check_annotations("phalanx")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no process has a long file left at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection, because they exist until the process ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
