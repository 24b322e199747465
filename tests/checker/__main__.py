"""`python -m tests.checker FILE ...`: says what is wrong with the history of one run.

Exits with 0 if nothing is, 1 if there are anomalies, 2 if the files are no history.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .checks import check
from .history import HistoryError, read_history
from .report import report


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checker", description="Check the history of one run."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="one of each worker")
    parser.add_argument("--most", type=int, default=20, help="lines for each kind of anomaly (20)")
    options = parser.parse_args()
    try:
        history = read_history(options.files)
        verdict = check(history)
    except (HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(*report(history, verdict, most=options.most), sep="\n")
    return int(bool(verdict.anomalies))


if __name__ == "__main__":
    sys.exit(main())
