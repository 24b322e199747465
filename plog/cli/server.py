"""`plog server`: read the properties, start the broker, stop it on SIGTERM."""

from __future__ import annotations

import click


@click.command()
@click.argument("properties", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key, over what the file says. May be given many times.",
)
def command(properties: str | None, overrides: tuple[str, ...]) -> None:
    """Run a broker with the settings of a PROPERTIES file (Kafka's server.properties syntax).

    Without a file every key has its default: one broker on 127.0.0.1:9092. SIGTERM or Ctrl-C stop
    it cleanly. Log lines go to stderr.
    """
    from plog import broker
    from plog.ops.log_lines import log_to_stderr
    from plog.settings import load

    log_to_stderr()  # before the file is read: keys without effect are warned of
    broker.run(load(properties, overrides))
