"""`bin/fuzz`: looks for inputs that break a parser, for as long as it is told.

What it finds is kept in tests/fuzz/found, where every run of the tests tries it again.
"""

from __future__ import annotations

import argparse
import sys

from . import corpora, instrumented
from .targets import TARGETS


def main() -> int:
    """Run the command and return its exit code: 1 when something was found."""
    parser = argparse.ArgumentParser(
        prog="bin/fuzz", description="Fuzz plog's parsers, guided by the branches they take."
    )
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"all, or some of: {', '.join(TARGETS)}"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="afterwards take into tests/fuzz/corpus what reaches more than it does",
    )
    options = parser.parse_args()
    unknown = set(options.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    try:
        instrumented.build()
    except instrumented.NoClang as missing:
        print(missing, file=sys.stderr)
        return 2
    broken = False
    for name in options.targets or TARGETS:
        run = corpora.fuzz_for(name, f"-max_total_time={options.seconds}")
        edges, features = run.reached
        print(f"{name}: {run.executions} inputs, {edges} edges, {features} features", flush=True)
        for path in run.found:
            print(f"{run.report()}\nkept as {path.relative_to(instrumented.ROOT)}", flush=True)
        if run.status and not run.found:
            print(run.output)
        broken = broken or run.status != 0
        if options.keep:
            print(f"{name}: {corpora.keep(name)} inputs taken", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
