"""The `plog` command: a broker and the tools to use one.

Owns how a command ends. It prints each error as one line on stderr (with --json as one object) and
exits with status 1, or 2 for wrong usage. Ctrl-C and a closed output pipe end it silently. Each
subcommand is a module of this package, imported only when it is called, so that the tools do not
slow down the broker's start.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from plog import __version__
from plog.cli.advice import explain
from plog.errors import PlogError
from plog.ops.log_lines import LineFormatter
from plog.printable import printable, printable_json

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "server": "Run a broker.",
    "cluster": "Show brokers, controller, versions, features and offline partitions.",
    "reassign": "Move partitions to other brokers: add, drain, replace or remove brokers.",
    "topics": "List, describe, create, change and delete topics.",
    "produce": "Write lines of text or JSON to a topic.",
    "consume": "Print the records of topics.",
    "groups": "Show the progress and lag of consumer groups; reset and delete their offsets.",
    "transactions": "Inspect transactions; abort hanging ones.",
    "configs": "Show and change the settings of topics, brokers and groups.",
    "features": "Show and set cluster feature levels.",
    "perf": "Measure the throughput and latency of a broker.",
    "top": "Show live statistics of a broker.",
    "host-metrics": "Publish metrics of this host and its broker to a topic.",
    "adopt": "Take over a Kafka broker's log directories, or give them back.",
    "move-store": "Move a broker's own coordination store to ZooKeeper.",
    "log-dirs": "Show the log directories of a stopped broker; forget a lost one.",
    "doctor": "Check a host, a properties file, and a running broker.",
    "health": "Ask a broker on this host whether it is healthy.",
    "bundle": "Collect everything that helps to find a problem into one file.",
    "dump-log": "Print the contents of log segments, indexes and snapshots.",
    "kafka-scripts": "Install scripts with the names and options of Kafka's.",
    "completion": "Print the script that completes command lines in a shell.",
    "man": "Write the manual pages of the commands.",
}

INTERRUPTED = 128 + 2
"""The exit status that a shell reports for a command ended by SIGINT."""
BROKEN_PIPE = 1
"""The exit status that click uses when the reader of the output has gone."""


class LazyGroup(click.Group):
    """A group whose commands are modules, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of `name` and return its `command`."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"plog.cli.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the name of a command, without importing the commands."""
        from click.shell_completion import CompletionItem

        return [
            *(
                CompletionItem(n, help=text)
                for n, text in COMMANDS.items()
                if n.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="plog")
def plog() -> None:
    """A distributed commit log that speaks the Kafka protocol.

    Start a broker, then try in another terminal:

    \b
      plog server --override log.dirs=/tmp/plog

    \b
      plog topics create greetings
      echo hello | plog produce greetings
      plog consume greetings --exit-at-end

    The tools connect to 127.0.0.1:9092 unless --bootstrap-server or the environment variable
    PLOG_BOOTSTRAP_SERVER names another broker. `plog COMMAND --help` describes each command.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    if "_PLOG_COMPLETE" in os.environ:  # a shell completes a line
        from plog.cli.completion import register

        register()
    if logging.lastResort is not None:  # the client's warnings look like our own lines
        logging.lastResort.setFormatter(LineFormatter("plog: %(message)s"))
    try:
        plog.main(args=given, prog_name="plog", standalone_mode=False)
        # The reader may have gone before the buffer is flushed.
        sys.stdout.flush()
    except click.ClickException as fault:
        if isinstance(fault, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            fault.show()  # the help, where a group was called without a command
        else:
            # click puts the choices of a missing argument on lines of their own.
            lines = re.split(r"\n\t|\n +", fault.format_message())
            _print_error(fault, " ".join(lines), given, _hint(fault, given))
        sys.exit(fault.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Otherwise the interpreter complains when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except PlogError as fault:
        _print_error(fault, explain(fault), given)
        sys.exit(1)
    sys.exit(0)


def _hint(fault: click.ClickException, arguments: Sequence[str]) -> str | None:
    """Return a line with plog's command for the words of Kafka or kcat, or for misspelt ones."""
    if not isinstance(fault, click.UsageError) or isinstance(fault, click.BadParameter):
        return None
    from plog.cli.hints import hint

    return hint(plog, arguments)


def _print_error(
    fault: Exception, text: str, arguments: Sequence[str], hint: str | None = None
) -> None:
    """Write an error to stderr: as text, or as JSON if the caller gave --json."""
    # Look at the words themselves: after a wrong option click has not parsed the others.
    if "--json" in arguments:
        kind = type(fault).__name__
        if isinstance(fault, click.ClickException):
            kind = "UsageError" if isinstance(fault, click.UsageError) else "Error"
        error = {"error": kind, "message": text, **({"hint": hint} if hint else {})}
        click.echo(printable_json(json.dumps(error, ensure_ascii=False)), err=True)
        return
    if hint and isinstance(fault, click.UsageError):
        text = f"{fault.message}\n{hint}"  # without click's own "Did you mean"
    elif isinstance(fault, click.UsageError) and fault.ctx is not None:
        path = fault.ctx.command_path
        click.echo(f"{fault.ctx.get_usage()}\nTry '{path} --help' for help.\n", err=True)
    for line in text.split("\n"):
        click.echo(f"plog: {printable(line)}", err=True)
