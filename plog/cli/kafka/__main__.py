"""Run one of Kafka's scripts: `python -m plog.cli.kafka kafka-topics OPTIONS`.

Owns how a script ends: its errors on stderr, and its exit status.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from plog import __version__
from plog.cli.kafka.commands import CommandFault, Commands
from plog.cli.kafka.config import ClientFault
from plog.cli.kafka.names import SCRIPTS
from plog.cli.kafka.options import HelpWanted, OptionFault, UsageFault, VersionWanted
from plog.errors import PlogError
from plog.ops.log_lines import LineFormatter

KAFKA_VERSION = "3.9.1"
"""The release whose scripts these follow."""
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""The exit statuses of Java for these signals."""


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a script to its end; return its exit status.

    Args:
        name: such as `kafka-topics`.
    """
    script = importlib.import_module(f"plog.cli.kafka.{SCRIPTS[name]}")
    try:
        status: int = script.run(script.OPTIONS.read(arguments))
    except VersionWanted:
        print(f"{KAFKA_VERSION} (plog {__version__})")
        return 0
    except HelpWanted as wanted:
        out = sys.stdout if isinstance(script.OPTIONS, Commands) else sys.stderr
        out.write(script.OPTIONS.help())
        return wanted.status
    except UsageFault as fault:
        sys.stderr.write(f"{fault}\n{script.OPTIONS.help()}")
        return 1
    except CommandFault as fault:
        sys.stderr.write(f"{script.OPTIONS.usage()}{script.OPTIONS.program}: error: {fault}\n")
        return 1
    except ClientFault as fault:
        sys.stderr.write(f"{fault}\nCaused by: {fault.why}\n")
        return 1
    except OSError as fault:
        if isinstance(fault, BrokenPipeError):
            raise
        sys.stderr.write(f"{fault.filename}: {fault.strerror}\n")
        return 1
    except (OptionFault, PlogError, ValueError) as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    return status


def run_to_end(name: str, arguments: Sequence[str]) -> int:
    """Run a script as `run`, also if Ctrl-C or the reader of stdout ends it.

    A reader that has gone is no error: Java's System.out ignores it.
    """
    try:
        return run(name, arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # Otherwise the interpreter complains when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the script that the command line names, and exit with its status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    # As in Java, consumers leave their group and print their totals.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    sys.exit(run_to_end(sys.argv[1], sys.argv[2:]))


if __name__ == "__main__":
    main()
