"""The `plog` command: a broker and the tools to use one.

Owns how a command ends: errors in one line each on stderr with status 1 (2 where it was called
wrongly), with --json as one object; Ctrl-C and a reader that went away in silence. Each
subcommand is a module of this package, imported only when it is called: the broker's start must
not pay for the tools.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from plog import __version__
from plog.errors import (
    GroupIdNotFound,
    PlogError,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from plog.ops.log_lines import LineFormatter
from plog.printable import printable, printable_json

COMMANDS = {
    "server": "Run a broker.",
    "topics": "List, describe, create, change and delete topics.",
    "produce": "Write lines of text into a topic.",
    "consume": "Print the records of a topic.",
    "groups": "Show how far consumer groups have read; reset and delete what they committed.",
    "transactions": "Show what transactions are at, and end those that hang.",
    "configs": "Show and change the settings of topics, brokers and groups.",
    "features": "Show what the whole cluster may do, and change it.",
    "perf": "Measure a broker: rates and latencies of producers and consumers.",
    "top": "Show what a broker is doing, live.",
    "host-metrics": "Publish what this host and its broker do into a topic.",
    "adopt": "Take over a Kafka broker's data directory, and give it back.",
    "log-dirs": "Show the log directories of a stopped broker, and forget one that is gone.",
    "doctor": "Look at a host and a properties file before a broker runs.",
    "dump-log": "Print what is in a log segment, an index or a snapshot.",
}

INTERRUPTED = 128 + 2
"""What a shell reports of a command that SIGINT ended."""
BROKEN_PIPE = 1
"""As click has it: whoever read the output has gone, which is no news to anybody."""


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

    The tools look for a broker at 127.0.0.1:9092; --bootstrap-server or the environment variable
    PLOG_BOOTSTRAP_SERVER names another. `plog COMMAND --help` tells more of each.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    if logging.lastResort is not None:  # what the client warns of, as everything else is told
        logging.lastResort.setFormatter(LineFormatter("plog: %(message)s"))
    try:
        plog.main(args=given, prog_name="plog", standalone_mode=False)
        # What is still buffered may find the reader gone, too.
        sys.stdout.flush()
    except click.ClickException as fault:
        if isinstance(fault, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            fault.show()  # the help, where a group was called without a command
        else:
            _tell(fault, fault.format_message(), given)
        sys.exit(fault.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Else the interpreter complains when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except PlogError as fault:
        _tell(fault, explain(fault), given)
        sys.exit(1)
    sys.exit(0)


def _tell(fault: Exception, text: str, arguments: Sequence[str]) -> None:
    """Write an error to stderr, as whoever called wants to read it."""
    # Asked of the words: an option that is wrong keeps the others from being understood.
    if "--json" in arguments:
        kind = type(fault).__name__
        if isinstance(fault, click.ClickException):
            kind = "UsageError" if isinstance(fault, click.UsageError) else "Error"
        told = {"error": kind, "message": text}
        click.echo(printable_json(json.dumps(told, ensure_ascii=False)), err=True)
        return
    if isinstance(fault, click.UsageError) and fault.ctx is not None:
        path = fault.ctx.command_path
        click.echo(f"{fault.ctx.get_usage()}\nTry '{path} --help' for help.\n", err=True)
    for line in text.split("\n"):
        click.echo(f"plog: {printable(line)}", err=True)


def explain(fault: PlogError) -> str:
    """Return an error's text, with what to do about it where that is known."""
    from plog.client.connection import BrokerUnreachable

    text = str(fault)
    if isinstance(fault, BrokerUnreachable):
        text += (
            " (is a broker running there? `plog server` starts one,"
            " --bootstrap-server names another address)"
        )
    elif isinstance(fault, UnknownTopicOrPartition):
        text += " (`plog topics list` shows the topics there are)"
    elif isinstance(fault, GroupIdNotFound):
        text += " (`plog groups list` shows the groups there are)"
    elif isinstance(fault, TransactionalIdNotFound):
        text += " (`plog transactions list` shows those there are)"
    return text
