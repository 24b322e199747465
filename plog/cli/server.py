"""`plog server`: read the properties, start the broker, stop it on SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from plog.cli.properties import takes_properties


@click.command()
@takes_properties
def command(
    properties: str | None, overrides: tuple[str, ...], environment: Mapping[str, str] | None
) -> None:
    """Run a broker with the settings of a PROPERTIES file (Kafka's server.properties syntax).

    Without a file every key has its default: one broker on 127.0.0.1:9092. SIGTERM or Ctrl-C stops
    the broker cleanly. Log lines go to stderr.

    A container sets keys with variables. With --env, PLOG_NUM_PARTITIONS sets num.partitions, and
    so does KAFKA_NUM_PARTITIONS. PLOG_ overrides KAFKA_, which overrides the file.
    """
    from plog import server
    from plog.cli.advice import explain
    from plog.errors import PlogError
    from plog.ops.stderr_log import TEXT, is_for_people, log_failure, log_to_stderr, start_log
    from plog.settings.server_properties import (
        ignored_variables,
        log_remarks,
        peek,
        read,
        variables_in_force,
    )

    # The log starts before the settings are checked: errors in them are log lines too.
    form = peek("log.format", properties, overrides, environment) or TEXT
    start_log(form)
    try:
        settings, warnings = read(properties, overrides, environment)
        log_to_stderr(settings)
        variables = variables_in_force(properties, overrides, environment)
        log_remarks(warnings, variables, ignored_variables(environment))
        server.run(settings)
    except PlogError as fault:
        if is_for_people(form):
            raise
        log_failure(explain(fault))
        sys.exit(1)
