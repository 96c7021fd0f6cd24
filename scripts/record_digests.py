"""Record the digests of the regression workloads in tests/regression/digests.json.

    python scripts/record_digests.py                  # floats of this machine, computed by the base commit
    python scripts/record_digests.py --commit HEAD~3  # the same, computed by another commit
    python scripts/record_digests.py --here [NAME...] # integers and floats, computed by this checkout

Float results depend on the machine, so each kind of machine has its own entry. To add one, the base commit is
checked out, built and run here, so that a later commit can be compared with it. Use `--here` only to record
workloads that are new, or whose results change on purpose.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

BASE_COMMIT = "1f7bdb7f829d7ad659182c38d1e53833d811205a"
"""The last commit with intended changes of float results (learning rates of embeddings)."""

BASE_REQUIREMENTS = ["lazy-loader==0.6"]
"""Dependencies of the base commit that are no longer installed with the package."""

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = Path("tests/regression/workloads.py")
DIGESTS = ROOT / "tests/regression/digests.json"


def build(source: Path, target: Path) -> None:
    """Install a checkout and `BASE_REQUIREMENTS`, without other dependencies, into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    if all(map(importlib.util.find_spec, ("scikit_build_core", "nanobind"))):
        command.append("--no-build-isolation")
    pins = {name: str(source / "constraints/ci.txt") for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    subprocess.run([*command, str(source), *BASE_REQUIREMENTS], check=True, env={**os.environ, **pins})


def run(root: Path, options: list[str], package: Path | None = None) -> dict[str, Any]:
    """Run workloads of a checkout, with its installed package or with the one in a folder."""
    command, environment = [sys.executable], dict(os.environ)
    if package is not None:
        # -S ignores the .pth file of an editable install, which would be imported instead.
        command.append("-S")
        environment["PYTHONPATH"] = os.pathsep.join([str(package), sysconfig.get_path("purelib")])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "digests.json"
        subprocess.run(
            [*command, str(root / WORKLOADS), "--output", str(output), *options], check=True, env=environment
        )
        computed = json.loads(output.read_text())
    if computed["errors"]:
        raise SystemExit("\n".join(f"{name} failed:\n{error}" for name, error in computed["errors"].items()))
    if package is not None and not Path(computed["package"]).is_relative_to(package.resolve()):
        raise SystemExit(f"expected the package in {package}, but {computed['package']} was imported")
    return computed


def run_commit(commit: str, options: list[str]) -> dict[str, Any]:
    """Check out a commit into a temporary worktree, build it and run its own workloads."""
    with tempfile.TemporaryDirectory() as folder:
        worktree, package = Path(folder) / "worktree", Path(folder) / "package"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), commit], check=True)
        try:
            build(worktree, package)
            return run(worktree, options, package)
        finally:
            subprocess.run([*git, "remove", "--force", str(worktree)], check=True)


def main() -> None:
    """Compute digests and merge them into the file."""
    sys.path.insert(0, str(ROOT / WORKLOADS.parent))
    from workloads import WORKLOADS as workloads

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads to record (default: all)")
    parser.add_argument("--commit", default=BASE_COMMIT, help="commit that computes the digests")
    parser.add_argument("--here", action="store_true", help="use this checkout, and record integers too")
    arguments = parser.parse_args()
    if arguments.here:
        for name, workload in workloads.items():
            if workload.missing_data and name in (arguments.names or workloads):
                print(f"{name} cannot run: {workload.data} is missing", file=sys.stderr)
        computed = run(ROOT, arguments.names)
        kinds = {name: workload.kind for name, workload in workloads.items()}
    else:
        computed = run_commit(arguments.commit, ["--kind", "floats", *arguments.names])
        kinds = dict.fromkeys(computed["digests"], "floats")

    recorded = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {"integers": {}, "floats": {}}
    floats = recorded["floats"].setdefault(computed["machine"], {})
    for name, digests in computed["digests"].items():
        (recorded["integers"] if kinds[name] == "integers" else floats)[name] = digests
    DIGESTS.write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n")
    print(f"recorded {len(computed['digests'])} workloads for {computed['machine']} in {DIGESTS}")


if __name__ == "__main__":
    main()
