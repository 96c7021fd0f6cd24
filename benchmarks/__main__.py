"""Run benchmarks: `python -m benchmarks [SUITE...]`."""

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.load import MAX_LOAD, OtherLoad
from benchmarks.machine import load_average
from benchmarks.peers import WorkerError
from benchmarks.suite import RESULTS, find_suites, merge_results, write_result
from benchmarks.timing import DEFAULT_REPEATS, DEFAULT_SECONDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run benchmarks. Prints one JSON line per measurement and a summary on standard error.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="suites to run [default: all of them]")
    parser.add_argument("--list", action="store_true", help="list the suites and their cases")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="run only this case or group"
    )
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to check that everything runs")
    parser.add_argument("--no-peers", action="store_true", help="do not measure other libraries")
    parser.add_argument(
        "--repeats", type=int, default=DEFAULT_REPEATS, help="repeats of each case [default: %(default)s]"
    )
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="seconds of a repeat [default: %(default)g]"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/SUITE.json")
    parser.add_argument("--allow-load", action="store_true", help="write results of a busy machine, too")
    options = parser.parse_args(arguments)
    if options.smoke and options.write:
        parser.error("--smoke cannot be combined with --write: its numbers mean nothing")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    suites = find_suites()
    if unknown := [name for name in options.suites if name not in suites]:
        parser.error(f"there is no suite {unknown[0]!r}; choose from {', '.join(suites)}")
    chosen = [suites[name] for name in options.suites] or list(suites.values())
    known = {case for suite in chosen for case in (*suite.ids(), *suite.groups())}
    if unknown := [case for case in options.only if case not in known]:
        parser.error(f"there is no case {unknown[0]!r} in {', '.join(suite.name for suite in chosen)}")
    if options.list:
        for suite in chosen:
            print(f"{suite.name}: {', '.join(suite.ids())}")
        return 0
    # Later, the load comes from the benchmark itself.
    load = load_average()
    must_be_idle = options.write and any(suite.depends_on_load for suite in chosen)
    if must_be_idle and not options.allow_load and load[0] > MAX_LOAD:
        print(
            f"the load average is {load[0]:.2f}, but --write needs an idle machine (at most {MAX_LOAD}); "
            "wait, or use --allow-load",
            file=sys.stderr,
        )
        return 2
    for suite in chosen:
        other_load = OtherLoad()
        measurements = []
        try:
            for measurement in suite.run(
                only=options.only,
                smoke=options.smoke,
                peers=not options.no_peers,
                repeats=options.repeats,
                seconds=options.seconds,
            ):
                measurements.append(measurement)
                print(json.dumps({"suite": suite.name, **measurement.to_json()}), flush=True)
                spread = f"{min(measurement.values):,.4g} to {max(measurement.values):,.4g}"
                print(
                    f"{suite.name} {measurement.id} ({measurement.system}): "
                    f"{measurement.median():,.4g} {measurement.unit} ({spread})",
                    file=sys.stderr,
                )
        except WorkerError as error:
            print(f"{suite.name}: {error}", file=sys.stderr)
            return 1
        if options.write:
            path = RESULTS / f"{suite.name}.json"
            result = suite.result(measurements, load, other_load.measure())
            if options.repeats != DEFAULT_REPEATS:
                result["command"] += f" --repeats {options.repeats}"
            if options.seconds != DEFAULT_SECONDS:
                result["command"] += f" --seconds {options.seconds:g}"
            if options.only and path.exists():
                result = merge_results(path, result)
            elif options.only:
                result["command"] += "".join(f" --only {case}" for case in options.only)
            write_result(result, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
