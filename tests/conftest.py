"""Every test runs on the CPU with the package's shape annotations checked; the slow ones are marked.

Fixtures belong to the test files that use them. Which tests are slow is in `slow.txt`.
"""

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.annotations import check_annotations
from tests.lowering import share_contexts
from tests.speeds import HERE, is_slow

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the suite's time is XLA compiling: what one file has compiled is kept for the others and for the
# next run, and programs that run for a moment are not worth LLVM's slower passes, nor the slower emitters.
# The tests' processes fill the cores: a program need not be compiled in parts side by side.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# Much of what the tests write is synced, which is waited for on a disk and done at once in memory.
memory = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4e9:
    os.environ["TMPDIR"], tempfile.tempdir = str(memory), str(memory)

# A shell starts what it puts into the background with SIGINT ignored, which children inherit: tests that send
# it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if early := [name for name in sys.modules if name.partition(".")[0] == "phalanx"]:
    raise RuntimeError(f"{early[0]} was imported before the annotations could be switched on")

if library := os.environ.get("PHALANX_NATIVE_LIBRARY"):  # another build of the extension, for `.ci/sanitize`
    spec = importlib.util.spec_from_file_location("phalanx._native", library)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["phalanx._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["phalanx._native"])

share_contexts()
check_annotations("phalanx")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow as a whole is not even imported where slow tests are left out."""
    if config.option.markexpr != "not slow" or not collection_path.is_relative_to(HERE):
        return None
    name = collection_path.relative_to(HERE).as_posix()
    return True if is_slow(f"{name}/" if collection_path.is_dir() else name) else None


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the process: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and let their files come first: no process has a long one left at the end."""
    slow_files = set()
    for item in items:
        if is_slow(item.nodeid.removeprefix("tests/")):
            item.add_marker("slow")
            slow_files.add(item.path)
    items.sort(key=lambda item: item.path not in slow_files)
