"""Measure one case of a suite of this checkout in a separate process."""

import importlib
import pathlib

import phalanx
from benchmarks.workers import protocol


def main() -> None:
    settings = protocol.read_settings(__doc__)
    checkout, source = pathlib.Path.cwd().resolve(), pathlib.Path(phalanx.__file__).resolve()
    if not source.is_relative_to(checkout):
        raise SystemExit(f"{checkout} should be measured, but Python imports Phalanx from {source.parent}")
    suite = importlib.import_module(f"benchmarks.speed.{settings['suite']}").suite
    case = settings["case"] or suite.ids()[0]
    workload = suite.prepare(case, settings["smoke"])
    protocol.serve(workload.run, workload.work, settings["seconds"], case=case, source=str(source.parent))


if __name__ == "__main__":
    main()
