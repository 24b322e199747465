"""`plog server`: read the properties, start the broker, stop it on SIGTERM."""

from __future__ import annotations

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
    from plog.ops.log_lines import log_to_stderr
    from plog.settings import load

    log_to_stderr()  # first, because reading the file warns of keys without effect
    server.run(load(properties, overrides, environment))
